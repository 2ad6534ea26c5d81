"""Hugging Face hub ids: what they look like, and the folder or file that one is downloaded to.

`huggingface-hub` does the work and honours HF_HOME, HF_TOKEN and HF_HUB_OFFLINE; it is imported on
first use.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tinyserve.errors import ModelLoadError
from tinyserve.models.gguf_parts import part_names

# What the loaders read. Other formats of the same weights (.bin, .pth, .onnx, original/) are left
# out.
_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
_NOT_FILES = ["*/*.safetensors", "original/*", "onnx/*", "consolidated*.safetensors"]
_ID = re.compile(
    r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[^:@]+))?(:(?P<file>[^:@]+\.gguf))?"
)


@dataclass(frozen=True)
class HubId:
    """`repo` is org/name; `file` names one GGUF file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None


def parse_hub_id(model: str) -> HubId | None:
    """None where `model` cannot be the id of a repository, such as a path."""
    match = _ID.fullmatch(model)
    if match is None or (match["file"] is None and model.endswith((".gguf", ".safetensors"))):
        return None
    return HubId(match["repo"], match["revision"], match["file"])


def download(hub_id: HubId) -> Path:
    """The local folder of the repository's snapshot, or the local GGUF file.

    Downloads what is not cached.

    Raises ModelLoadError with what was tried and the hub's reason.
    """
    import huggingface_hub

    if not sys.stderr.isatty():  # bars would fill logs
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    try:
        if hub_id.file is not None:
            parts = [
                huggingface_hub.hf_hub_download(hub_id.repo, name, revision=hub_id.revision)
                for name in part_names(hub_id.file)
            ]
            return Path(parts[0])
        folder = Path(
            huggingface_hub.snapshot_download(
                hub_id.repo,
                revision=hub_id.revision,
                allow_patterns=_FILES,
                ignore_patterns=_NOT_FILES,
            )
        )
    except Exception as error:  # the client's errors have no common base besides this
        raise ModelLoadError(_failure(hub_id, error)) from error
    if (folder / "adapter_config.json").is_file():
        return folder  # the loader refuses it
    for kind, pattern in (("config.json", "config.json"), (".safetensors file", "*.safetensors")):
        if not any(folder.glob(pattern)):
            raise ModelLoadError(
                f"{hub_id.repo} on the Hugging Face hub has no {kind}; in a repository of GGUF "
                f"files, name one: {hub_id.repo}:FILE.gguf"
            )
    return folder


def _failure(hub_id: HubId, error: Exception) -> str:
    what = hub_id.repo + (f" (revision {hub_id.revision})" if hub_id.revision else "")
    if hub_id.file:
        what += f", file {hub_id.file}"
    reason = " ".join(str(error).split())[:300]
    return (
        f"there is no folder {hub_id.repo!r} here, and the Hugging Face hub gave no model {what}: "
        f"{type(error).__name__}: {reason}"
    )
