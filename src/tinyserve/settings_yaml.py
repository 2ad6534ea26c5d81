"""YAML without surprises: duplicate keys are errors.

Imports yaml, so it is loaded only where a file is read.
"""

from __future__ import annotations

from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_strict(text: str) -> Any:
    """The value of a YAML document. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # The reader stumbles over some: a list as a key, the 45th of a month, a thousand brackets.
        raise yaml.YAMLError(f"a value that cannot be read ({error})") from error
