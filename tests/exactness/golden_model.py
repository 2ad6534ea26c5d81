"""A tiny model whose every number is fixed by integer arithmetic, and the hashes of its logits.

`python tests/exactness/golden_model.py` (with the packages on the path) adds the hashes of the
current NUMERICS_VERSION to data/golden_logits.json; it refuses to change those of an older one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from helpers.plans import F32, Sequences, run_chunks

from tinyserve.config import ModelOptions
from tinyserve.engine.runner import ModelRunner
from tinyserve.kernels.formats import FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import NUMERICS_VERSION, KVLayout
from tinyserve.kv.pool import KVPool
from tinyserve.models.checkpoint import Checkpoint
from tinyserve.models.config import ModelConfig, RopeConfig
from tinyserve.models.layout import tensor_shapes
from tinyserve.models.weights import load_decoder

GOLDEN = Path(__file__).parent / "data" / "golden_logits.json"
# name -> how the weights are kept, and the KV-cache's type
FORMATS = {
    "f32": (ModelOptions(dtype="f32"), "f32"),
    "f16": (ModelOptions(dtype="f16"), "f16"),
    "bf16": (ModelOptions(dtype="bf16"), "bf16"),
    "bf16x2": (ModelOptions(dtype="bf16", bf16_products="bf16x2"), "f16"),
    "int8": (ModelOptions(quantization="int8"), "int8"),
    "u4": (ModelOptions(quantization="int4"), "f16"),
}
CONFIG = ModelConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=200,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10000.0),
    max_position_embeddings=512,
    tie_word_embeddings=False,
    qkv_bias=True,
    qk_norm=True,
    windows=(40, None),
)
PROMPT = tuple((i * i * 7 + i * 13 + 5) % 200 for i in range(300))  # two partitions of keys


class FixedTensors:
    """Numbers from a multiplicative hash of their place: no random generator, no libm."""

    def __init__(self) -> None:
        self._shapes = tensor_shapes(CONFIG)
        self._seeds = {name: index for index, name in enumerate(self._shapes)}

    def names(self) -> Collection[str]:
        return self._shapes.keys()

    def weight(self, name: str) -> FloatWeight:
        return FloatWeight(self._numbers(name) * np.float32(0.25))  # spread about 1 / sqrt(fan-in)

    def vector(self, name: str) -> F32:
        shift = 0.0 if name.endswith("bias") else 1.0
        return self._numbers(name) * np.float32(0.125) + np.float32(shift)

    def _numbers(self, name: str) -> F32:
        """Between -1 and 1, multiples of 2^-15."""
        shape = self._shapes[name]
        x = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(self._seeds[name] << 32)
        for _ in range(2):
            x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (x >> np.uint64(48)).astype(np.float32) - np.float32(32768)
        return (values / np.float32(32768)).reshape(shape)


def golden_hash(name: str, variant: str = "", threads: int = 1) -> str:
    """SHA-256 of the logits of all positions of the prompt, little-endian f32."""
    options, kv_dtype = FORMATS[name]
    checkpoint = Checkpoint(
        config=CONFIG,
        tensors=FixedTensors(),
        eos_token_ids=(),
        sampling_defaults={},
        tokenizer_spec=_no_tokenizer,
        fingerprint="",
        name="golden",
    )
    backend = NativeBackend(threads, variant, bf16x2=options.bf16_products == "bf16x2")
    decoder = load_decoder(checkpoint, backend, options, 512)
    layout = KVLayout(32, 16, CONFIG.num_layers, CONFIG.num_kv_heads, CONFIG.head_dim, kv_dtype)
    runner = ModelRunner(decoder, KVPool(layout, 0), backend, 512)
    blocks = Sequences(block_size=16, num_blocks=32)
    logits = run_chunks(runner, [blocks.chunk(0, PROMPT)])[0]
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 10, "the model has lost its scale"
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()


def read_golden() -> dict[str, dict[str, str]]:
    """NUMERICS_VERSION (as text) -> format -> hash."""
    if not GOLDEN.exists():
        return {}
    content: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())
    return content


def _no_tokenizer() -> Any:
    raise AssertionError("the golden model has no tokenizer")


def main() -> None:
    known = read_golden()
    version = str(NUMERICS_VERSION)
    hashes = {name: golden_hash(name) for name in FORMATS}
    if any(hashes[name] != value for name, value in known.get(version, {}).items()):
        raise SystemExit(f"the bits changed: raise NUMERICS_VERSION (now {version}) first")
    known[version] = hashes
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
