"""`Node`: a value inside a request body that knows where it stands, so that errors can name it.

For bodies whose items come in many kinds, where one model per kind would say less than the code
that reads them. Every getter checks the type strictly and raises RequestError with the path,
`input[2].content[0].text`. An explicit null means the same as leaving the field out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyserve.errors import RequestError


@dataclass(frozen=True, slots=True)
class Node:
    """One JSON value and its path from the body."""

    value: Any
    path: str

    def fault(self, message: str) -> RequestError:
        """An error about this value, to be raised."""
        return RequestError(f"{self.path}: {message}", param=self.path, code="invalid_value")

    def get(self, name: str) -> Node:
        """A member of an object; null where it is absent."""
        if not isinstance(self.value, Mapping):
            raise self._wrong("an object")
        return Node(self.value.get(name), f"{self.path}.{name}")

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._wrong("a string")
        return self.value

    def text_or(self, default: str) -> str:
        return default if self.value is None else self.text()

    def flag_or(self, default: bool) -> bool:
        if self.value is None:
            return default
        if not isinstance(self.value, bool):
            raise self._wrong("a boolean")
        return self.value

    def object(self) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            raise self._wrong("an object")
        return self.value

    def items(self) -> Iterator[Node]:
        """The members of a list."""
        if not isinstance(self.value, list):
            raise self._wrong("a list")
        return (Node(value, f"{self.path}[{i}]") for i, value in enumerate(self.value))

    def one_of(self, allowed: Sequence[str]) -> str:
        if self.value not in allowed or not isinstance(self.value, str):
            raise self.fault(f"must be one of {', '.join(allowed)}, not {_shown(self.value)}")
        return self.value

    def _wrong(self, wanted: str) -> RequestError:
        got = "nothing" if self.value is None else _KINDS.get(type(self.value), "something else")
        return RequestError(
            f"{self.path} must be {wanted}, got {got}", param=self.path, code="invalid_type"
        )


_KINDS: Mapping[type, str] = {
    str: "a string", bool: "a boolean", int: "a number", float: "a number",
    list: "a list", dict: "an object",
}  # fmt: skip


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
