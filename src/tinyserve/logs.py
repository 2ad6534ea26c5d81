"""Log lines: one plain format for everything, on stderr."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    """`level`: debug | info | warning | error."""
    logging.basicConfig(
        stream=sys.stderr,
        level=getattr(logging, level.upper()),
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
