"""YAML without surprises: duplicate keys are errors, and numbers are decimal.

Imports yaml, so it is loaded only where a file is read.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

# Numbers as YAML 1.2 and JSON write them. In YAML 1.1, 010 is 8, 1:30 is 90 and 1e3 is a text.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]*)",
    "tag:yaml.org,2002:float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`, which is no key
                continue
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _StrictLoader.add_implicit_resolver(_tag, re.compile(f"^({_pattern})$"), list("-+.0123456789"))


def load_strict(text: str) -> Any:
    """The value of a YAML document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # PyYAML lets some through: for a list as a key, the 45th of a month, a thousand brackets.
        raise yaml.YAMLError(f"a value that cannot be read ({error})") from error
