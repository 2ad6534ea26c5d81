"""Servers over the synthetic model, which really computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from helpers.live_server import Live, live

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine


def serve_synthetic(**sections: dict[str, Any]) -> AbstractContextManager[Live]:
    """A live server; `sections` are those of the configuration."""
    model = {"name": "synthetic", "threads": 1, **sections.pop("model", {})}
    return live(build_engine(TinyServeConfig.from_dict({"model": model, **sections})))
