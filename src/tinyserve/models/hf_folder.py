"""A folder as Hugging Face writes it (config.json, safetensors, tokenizer): a `Checkpoint`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from tinyserve.errors import ModelLoadError
from tinyserve.models.cache import contents_fingerprint, files_fingerprint
from tinyserve.models.checkpoint import Checkpoint, drawable_ids
from tinyserve.models.config import ModelConfig
from tinyserve.models.hf_config import (
    read_eos_token_ids,
    read_json,
    read_max_new_tokens,
    read_model_config,
    read_sampling_defaults,
    read_value,
)
from tinyserve.models.layout import EMBEDDING, LM_HEAD, check_layout, tensor_shapes, unexpected
from tinyserve.models.safetensors_loader import (
    SafetensorsSource,
    StoredTensor,
    find_files,
    open_tensors,
    read_index,
)
from tinyserve.text.tokenizer_spec import TokenizerSpec

_FINGERPRINTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
NUM_SAMPLES = 64  # rows of a tied model's head that are compared with its embedding
# What quantized matrices bring along: GPTQ and AWQ, compressed-tensors, FP8, bitsandbytes.
_OF_QUANTIZED = (
    *(".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv"),
    *(".weight_scale_2", ".SCB", ".absmax"),
)
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers: those we know

logger = logging.getLogger(__name__)


def load_folder(folder: Path, name: str) -> Checkpoint:
    """Open a folder.

    Raises ModelLoadError naming the file, field or tensor that is missing or unsupported.
    """
    path = folder / "config.json"
    data = read_json(path)
    generation = read_json(folder / "generation_config.json", required=False)
    config = read_model_config(data, str(path))
    files = find_files(folder)
    tensors = _named_alike(open_tensors(files, read_index(folder)))
    if config.tie_word_embeddings and EMBEDDING not in tensors and LM_HEAD in tensors:
        tensors[EMBEDDING] = tensors[LM_HEAD]  # one tensor, saved under the other name
    config = _resolve_head(config, tensors.keys(), folder)
    _refuse_additions(tensors.keys(), folder)
    shapes = {tensor: stored.shape for tensor, stored in tensors.items()}
    check_layout(config, shapes, str(folder))
    _warn_unused(config, shapes, folder)
    head = tensors.get(LM_HEAD)
    if config.tie_word_embeddings and head and _differ(head, tensors[EMBEDDING]):
        logger.warning(
            "%s: tie_word_embeddings is true, so %s is ignored, though it is not the embedding",
            folder,
            LM_HEAD,
        )
    source = SafetensorsSource(tensors, tensor_shapes(config))
    read = [*files, *(folder / file for file in _FINGERPRINTED if (folder / file).is_file())]
    contents = contents_fingerprint(read)
    return Checkpoint(
        config=config,
        tensors=source,
        eos_token_ids=drawable_ids(
            read_eos_token_ids(data, generation, str(folder)), config, str(folder)
        ),
        sampling_defaults=read_sampling_defaults(generation),
        tokenizer_spec=lambda: TokenizerSpec.from_folder(folder),
        fingerprint=files_fingerprint(read, contents),
        name=name,
        pooling=_read_pooling(folder),
        contents=contents,
        max_new_tokens=read_max_new_tokens(generation),
        stored_bytes=source.num_bytes,
    )


def _refuse_additions(names: Collection[str], folder: Path) -> None:
    """Refuse matrices that would be read wrong, since tensors beside them would be ignored:
    quantized ones that config.json does not declare, and those under an adapter.
    """
    for name in names:
        if name.endswith(_OF_QUANTIZED):
            raise ModelLoadError(
                f"{folder}: tensor {name} is of a quantized checkpoint, though config.json has no "
                "quantization_config; such are not supported: use a GGUF file or the unquantized "
                "model"
            )
        if ".lora_" in name:
            raise ModelLoadError(
                f"{folder}: tensor {name} is of an adapter, which is not supported: merge it into "
                "its base model"
            )


def _read_pooling(folder: Path) -> str | None:
    """How sentence-transformers pools this model, if it says so.

    Raises ModelLoadError where it would do more, which makes other embeddings.
    """
    path = folder / "modules.json"
    modules = read_value(path) if path.is_file() else []
    for module in modules if isinstance(modules, list) else []:
        kind = str(module.get("type") if isinstance(module, dict) else None).rpartition(".")[2]
        if kind not in MODULES:
            raise ModelLoadError(f"{path}: a module {kind} is not supported ({', '.join(MODULES)})")
    said = read_json(folder / "1_Pooling" / "config.json", required=False)
    mode = said.get("pooling_mode")  # newer files; before, each mode had a flag of its own
    if mode == "lasttoken" or said.get("pooling_mode_lasttoken") is True:
        return "last"
    return "mean" if mode == "mean" or said.get("pooling_mode_mean_tokens") is True else None


def _named_alike(tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Embedding models are saved without their head and without the prefix that comes with it.

    A head has no prefix in either case.
    """
    if "embed_tokens.weight" not in tensors:
        return tensors
    return {n if n == LM_HEAD else f"model.{n}": tensor for n, tensor in tensors.items()}


def _resolve_head(config: ModelConfig, names: Collection[str], folder: Path) -> ModelConfig:
    """A model that claims an output head but has none uses its embedding, with a warning."""
    if config.tie_word_embeddings or LM_HEAD in names:
        return config
    logger.warning(
        "%s: tie_word_embeddings is false but there is no %s; the embedding is used as the head",
        folder,
        LM_HEAD,
    )
    return replace(config, tie_word_embeddings=True)


def _differ(head: StoredTensor, embedding: StoredTensor) -> bool:
    """Whether samples of the rows differ: all of them would be read from disk."""
    if (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return True
    step = max(1, head.shape[0] // NUM_SAMPLES)
    return head.read()[::step].tobytes() != embedding.read()[::step].tobytes()


def _warn_unused(config: ModelConfig, shapes: dict[str, tuple[int, ...]], folder: Path) -> None:
    unused = [name for name in unexpected(config, shapes) if name != LM_HEAD]
    if unused:
        logger.warning(
            "%s: %d tensors are not part of a %s and are ignored, such as %s",
            folder,
            len(unused),
            config.architecture,
            unused[0],
        )
