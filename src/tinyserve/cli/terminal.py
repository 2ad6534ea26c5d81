"""What the terminal can show."""

from __future__ import annotations

import os
import sys


def is_fancy() -> bool:
    """May stderr be written to in colour? Not in pipes, nor under NO_COLOR (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not plain
