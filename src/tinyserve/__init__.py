"""tinyserve: a small, exact LLM inference server.

`LLM`, `SamplingParams` and `TinyServeConfig` are loaded when first used, so that importing the
package stays cheap and brings in no web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyserve.config import TinyServeConfig
    from tinyserve.engine.llm import LLM
    from tinyserve.engine.sampling import SamplingParams

__all__ = ["LLM", "SamplingParams", "TinyServeConfig", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "LLM": "tinyserve.engine.llm",
    "SamplingParams": "tinyserve.engine.sampling",
    "TinyServeConfig": "tinyserve.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinyserve' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
