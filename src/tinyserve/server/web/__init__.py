"""The web page's own bytes: which files there are, and the path that each is served under.

Plain HTML, CSS and JavaScript modules, no build step. Knows nothing of HTTP; `routes/web.py` serves
them. The list is made once and closed: what needs no key is exactly this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _path(file: Path) -> str:
    return "/" if file.name == "index.html" else f"/web/{file.name}"


# HTTP path -> file
FILES: Mapping[str, Path] = {
    _path(file): file for file in sorted(FOLDER.iterdir()) if file.suffix in MEDIA_TYPES
}
PATHS = frozenset(FILES)
