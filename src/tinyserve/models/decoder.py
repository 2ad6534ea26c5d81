"""The forward pass: one decoder for Llama, Qwen2, Qwen3, Mistral, SmolLM2 and their kin.

Pre-norm transformer blocks with rotary grouped-query attention and a SwiGLU feed-forward, as in
Llama (Touvron et al. 2023). The families differ in fields of `ModelConfig` alone: Qwen2 has biases
on queries, keys and values, Qwen3 RMS norms on each head of queries and keys, Mistral in some
versions a sliding window. Owns the order of operations; knows neither what an operation does nor
how weights are packed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import Array, AttentionSpec, Linear, Ops
from tinyserve.models.config import ModelConfig


@dataclass(frozen=True)
class Layer:
    """One block's prepared weights."""

    input_norm: F32
    qkv: Linear
    attention: AttentionSpec
    o: Linear
    post_norm: F32
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Decoder:
    """A model's prepared weights, and the parts of its forward pass."""

    config: ModelConfig
    embedding: Linear
    layers: tuple[Layer, ...]
    norm: F32
    head: Linear  # the embedding itself where they are tied

    def hidden(self, ops: Ops) -> Array:
        """The batch's tokens through every block: [T, hidden], before the last norm."""
        eps = self.config.rms_norm_eps
        x = ops.embed(self.embedding)
        for layer in self.layers:
            h = ops.rms_norm(x, layer.input_norm, eps)
            qkv = ops.linear(h, layer.qkv)
            ops.rope_and_cache(qkv, layer.attention)
            a = ops.paged_attention(qkv, layer.attention)
            x = ops.linear(a, layer.o, residual=x)
            h = ops.rms_norm(x, layer.post_norm, eps)
            m = ops.linear(h, layer.gate_up)
            x = ops.linear(m, layer.down, residual=x)
        return x

    def states(self, ops: Ops, x: Array) -> Array:
        """The batch's logit rows of x, after the last norm: [R, hidden]."""
        return ops.rms_norm(ops.gather_rows(x), self.norm, self.config.rms_norm_eps)

    def logits(self, ops: Ops, x: Array) -> Array:
        """The logits of the batch's logit rows of x: [R, vocab]."""
        return ops.linear(self.states(ops, x), self.head)

    @property
    def nbytes(self) -> int:
        """Bytes of the prepared weights, a tied head counted once."""
        return sum(matrix.nbytes for matrix in self.matrices())

    def matrices(self) -> list[Linear]:
        """Every matrix, a tied head counted once."""
        matrices = [self.embedding] if self.head is self.embedding else [self.embedding, self.head]
        for layer in self.layers:
            matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
        return matrices

    def formats(self) -> tuple[str, ...]:
        """The formats of the matrices, that of most first."""
        counts = Counter(name for matrix in self.matrices() for name in matrix.formats)
        return tuple(name for name, _ in counts.most_common())
