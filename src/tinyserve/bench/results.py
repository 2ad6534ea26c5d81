"""Where committed results are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]


class Results:
    """The folder `benchmarks` of a checkout: results as JSON, plots as PNG."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> dict[str, Any] | None:
        """A result; None where it was not measured yet."""
        path = self.folder / "results" / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
