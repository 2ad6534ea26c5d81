"""Any model as a folder that every peer reads: `config.json`, f32 safetensors, `tokenizer.json`.

    python -m tinyserve.bench.float_folder --model default --out FOLDER

So that engines which do not read GGUF, or not its quantized formats, run the very weights that this
engine runs: each matrix is written as the values that its quantized form stands for. The tokenizer
goes along, since some of the peers do not start without one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinyserve.bench.common import argument_parser, model_section, say
from tinyserve.models.checkpoint import Checkpoint, TensorSource, load_checkpoint
from tinyserve.models.config import ModelConfig
from tinyserve.models.layout import tensor_shapes
from tinyserve.text.cache import load_backend
from tinyserve.text.tokenizer import Tokenizer

MODULE = "float_folder"
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
}


def main(argv: list[str] | None = None) -> None:
    args = argument_parser(MODULE, __doc__).parse_args(argv)
    if not args.out:
        raise SystemExit(f"{MODULE}: --out names the folder to write")
    name = model_section(args)["name"]
    write_folder(load_checkpoint(name), Path(args.out))
    say(f"{name} is in {args.out}")


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint's values as Hugging Face's files. Raises ValueError for rotary scaling,
    which these few lines do not write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = hugging_face_config(checkpoint.config)
    config["eos_token_id"] = list(checkpoint.eos_token_ids)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    spec = checkpoint.tokenizer_spec()
    backend = load_backend(spec, None, None)
    (folder / "tokenizer.json").write_text(backend.to_str())
    tokens = Tokenizer(backend, spec).special_tokens
    special = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=1))
    shapes = tensor_shapes(checkpoint.config)
    write_safetensors(folder / "model.safetensors", checkpoint.tensors, shapes)


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """The fields of `config.json`."""
    if config.rope.kind != "none":
        raise ValueError(f"rotary scaling {config.rope.kind!r} is not written")
    return {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPES[config.architecture],
        "dtype": "float32",
        "hidden_act": "silu",
        "rope_theta": config.rope.theta,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
    }


def write_safetensors(
    path: Path, tensors: TensorSource, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """All tensors in f32. The safetensors format: the length of the JSON, the JSON, the data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            is_matrix = len(shape) == 2
            values = tensors.weight(name).dequantize() if is_matrix else tensors.vector(name)
            file.write(np.ascontiguousarray(values, dtype="<f4").data)


if __name__ == "__main__":
    main()
