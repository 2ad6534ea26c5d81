"""`SaidOnce`: log lines that clients may cause with every request, each the first time only."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Set

from tinyserve.server.foreign_fields import KNOWN_AND_HARMLESS

logger = logging.getLogger("tinyserve.server")

MOST = 1000  # field names, and messages; any later ones are not logged


class SaidOnce:
    """Remembers what it has logged, up to a limit."""

    def __init__(self) -> None:
        self._fields: set[str] = set()
        self._messages: set[str] = set()

    def unknown_fields(self, names: Set[str]) -> None:
        """Fields of a request that are ignored."""
        new = names - KNOWN_AND_HARMLESS - self._fields
        if new and len(self._fields) < MOST:
            self._fields |= new
            shown = ", ".join(repr(name[:64]) for name in itertools.islice(sorted(new), 20))
            logger.info("ignoring unknown request fields: %s (said once)", shown)

    def left_out(self, path: str, kinds: Set[str]) -> None:
        """Tools and items that clients of `path` may send and this server passes over."""
        for kind in sorted(kinds):
            self.message(f"{path}: leaving out {kind[:64]!r}, which this server cannot offer")

    def message(self, message: str) -> None:
        if message not in self._messages and len(self._messages) < MOST:
            self._messages.add(message)
            logger.info("%s (said once)", message)
