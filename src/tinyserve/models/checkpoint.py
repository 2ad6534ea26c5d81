"""`Checkpoint`: a model as it lies on disk, and `load_checkpoint`, which finds one by name.

Owns the meaning of a model's name and the shape of what every loader returns. Knows no file format
(each loader does) and nothing of kernels' packed forms. Tensors are read lazily, through a memory
map where the format allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinyserve.errors import ModelLoadError, reason_of
from tinyserve.kernels.formats import F32, Weight
from tinyserve.models.config import ModelConfig
from tinyserve.text.tokenizer_spec import TokenizerSpec

logger = logging.getLogger(__name__)


class TensorSource(Protocol):
    """A model's tensors under Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`).

    Complete and of the right shapes: loaders check that before they hand one out.
    """

    def names(self) -> Collection[str]:
        """The tensors that the decoder needs; a tied model has no `lm_head.weight`."""

    def weight(self, name: str) -> Weight:
        """A matrix `[out, in]`, in whichever plain format holds the stored values exactly."""

    def vector(self, name: str) -> F32:
        """A norm or bias, f32 `[size]`."""


class Progress(Protocol):
    """Told how far something long has come: `done` of `total` (0: total not known)."""

    def __call__(self, label: str, done: int, total: int, *, unit: str = "bytes") -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """A model ready to be packed and run."""

    config: ModelConfig
    tensors: TensorSource
    # Every id that ends a text, from all files that name one, each inside the vocabulary.
    eos_token_ids: tuple[int, ...]
    # What the authors recommend (generation_config.json, GGUF's `general.sampling`), by the names
    # of `SamplingParams`.
    sampling_defaults: Mapping[str, float | int]
    # Reads the tokenizer's files. Raises ModelLoadError where they are missing.
    tokenizer_spec: Callable[[], TokenizerSpec]
    # Changes whenever the files do, and so is part of the keys of caches; empty where there are no
    # files, and nothing is to be cached.
    fingerprint: str
    name: str  # what the user called it
    pooling: str | None = None  # the authors' for embeddings, "last" or "mean", if the files say
    contents: str = ""  # the same for all copies of one model, different for other weights
    max_new_tokens: int | None = None  # the authors' limit of an answer
    stored_bytes: int = 0  # what the tensors that are needed take in the files, where there are any


def drawable_ids(ids: Collection[int], config: ModelConfig, source: str) -> tuple[int, ...]:
    """Those of a model's end-of-text ids that its logits have a place for.

    Files name others (-1 for none, an id of a larger vocabulary). No token can ever be one of them,
    and used as an index they would reach outside the logits.
    """
    strange = [token_id for token_id in ids if not 0 <= token_id < config.vocab_size]
    if strange:
        logger.warning(
            "%s: end-of-text ids %s are outside the vocabulary of %d and are ignored",
            source,
            strange,
            config.vocab_size,
        )
    return tuple(token_id for token_id in ids if token_id not in strange)


def load_checkpoint(model: str, *, progress: Progress | None = None) -> Checkpoint:
    """Find and open a model; raises ModelLoadError saying what is missing, damaged or unsupported.

    `model` is `default` (or empty), `synthetic` or `synthetic:PRESET`, a folder, a `.gguf` file, or
    a hub id: `org/name`, `org/name@revision`, `org/name:file.gguf`. Only `default` and hub ids may
    use the network.
    """
    # Loaders are imported on demand: a model needs one of them, and each imports this module.
    if model in ("", "default"):
        from tinyserve.models.default_model import NAME, default_model_path

        return _load_gguf(default_model_path(progress), NAME)
    kind, _, preset = model.partition(":")
    if kind == "synthetic":
        from tinyserve.models.synthetic import synthetic_checkpoint

        return synthetic_checkpoint(preset=preset or "tiny")
    path = _existing_path(model)
    if path is not None:
        return load_path(path, model)
    from tinyserve.models.hub import download, parse_hub_id

    hub_id = parse_hub_id(model)
    if hub_id is None:
        raise ModelLoadError(
            f"model {model!r} was not found: there is no folder or file {_absolute(model)}, and "
            "it is not the name of a model on the Hugging Face hub either (org/name, "
            "org/name@revision, or org/name:FILE.gguf)"
        )
    return load_path(download(hub_id), model)


def _absolute(model: str) -> Path:
    try:
        return Path(model).expanduser().absolute()
    except (OSError, RuntimeError):  # the working folder has been removed; an unknown user's home
        return Path(model)


def load_path(path: Path, name: str) -> Checkpoint:
    """Open a GGUF file, a folder with config.json and safetensors, or a folder with a GGUF (where a
    config.json may have been left beside it). Raises ModelLoadError.
    """
    try:
        return _load_existing(path, name)
    except OSError as error:  # no permission, an input error, a file that vanished
        raise ModelLoadError(f"cannot read {error.filename or path}: {reason_of(error)}") from error


def _existing_path(model: str) -> Path | None:
    path = Path(model)
    try:
        path = path.expanduser()
        return path if path.exists() else None
    except PermissionError:  # something is there
        return path
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown user's home
        return None


def _load_existing(path: Path, name: str) -> Checkpoint:
    if path.is_file():
        if path.suffix == ".safetensors":
            raise ModelLoadError(
                f"{path} is a file of tensors; name its folder instead: {path.parent}"
            )
        return _load_gguf(path, name)
    if (path / "adapter_config.json").is_file():
        raise ModelLoadError(
            f"{path} holds an adapter (adapter_config.json), which is not supported: merge it into "
            "its base model, and serve the folder of that"
        )
    gguf_files = sorted(path.glob("[!.]*.gguf"))
    is_gguf = bool(gguf_files) and not any(path.glob("*.safetensors"))
    if (path / "config.json").is_file() and not is_gguf:
        from tinyserve.models.hf_folder import load_folder

        return load_folder(path, name)
    if gguf_files:
        from tinyserve.models.gguf_parts import part_names

        # Of a split file any part stands for all.
        if all(file.name in part_names(gguf_files[0].name) for file in gguf_files):
            return _load_gguf(gguf_files[0], name)
        listed = ", ".join(file.name for file in gguf_files)
        raise ModelLoadError(f"{path} holds several GGUF files, name one of them: {listed}")
    raise ModelLoadError(f"{path} has neither a config.json nor a .gguf file")


def _load_gguf(path: Path, name: str) -> Checkpoint:
    from tinyserve.models.gguf_loader import load_gguf

    return load_gguf(path, name)
