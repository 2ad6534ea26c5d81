"""The interface between the forward pass and its kernels: six operations, and what a back end
must offer.

A model is written once against `Ops`. The numpy back end runs each call at once; the native one
writes the calls down into a program and replays it. Shapes: T tokens of a ragged batch (sequences
one after another), R logits rows, H hidden, V vocabulary. Arrays are f32 and opaque to the model:
it only passes them on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32, Weight

I32 = NDArray[np.int32]
NUMERICS_VERSION = 4  # changes whenever any bit of any result may change
Array = Any  # a back end's own handle of an f32 matrix
Prepared = Any  # what the back end's `linear` returned, opaque to callers


@dataclass(slots=True, eq=False)
class Batch:
    """One step's ragged batch, all int32.

    Sequence s owns token rows seq_starts[s] : seq_starts[s + 1]; its keys lie in blocks
    block_ids[block_starts[s]] ..., position p at slot p % block_size of block p // block_size.
    Blocks after the one of its last token are padding.

    May be handed in again with other numbers in the same arrays. `prepared` is the back end's: what
    it has made of the batch, to be used again then.
    """

    token_ids: I32  # [T]
    positions: I32  # [T] absolute position of each token in its sequence
    slots: I32  # [T] block * block_size + slot, where each token's key and value go
    seq_starts: I32  # [S + 1]
    block_ids: I32  # blocks of all sequences, one after another
    block_starts: I32  # [S + 1]
    logit_rows: I32  # [R] token rows whose logits are wanted
    prepared: Any = None  # what the back end keeps with it


@dataclass(frozen=True)
class KVLayout:
    """The shape of the physical KV-cache. K is [block, layer, kv_head, head_dim, slot], V is
    [block, layer, kv_head, slot, head_dim rounded up to 16]; int8 adds one f32 scale per token and
    head.
    """

    num_blocks: int
    block_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str  # f32 | f16 | bf16 | int8

    @property
    def padded_head_dim(self) -> int:
        return -(-self.head_dim // 16) * 16


class KVSlabs(Protocol):
    """What kernels see of the KV pool: its arrays, in `KVLayout`'s order."""

    @property
    def layout(self) -> KVLayout: ...
    @property
    def k(self) -> NDArray[Any]: ...
    @property
    def v(self) -> NDArray[Any]: ...
    @property
    def k_scale(self) -> F32 | None: ...
    @property
    def v_scale(self) -> F32 | None: ...


@dataclass(frozen=True)
class AttentionSpec:
    """One layer's attention."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None  # None: full attention
    cos: F32  # [positions, head_dim / 2], as `sin`
    sin: F32
    q_norm: F32 | None = None  # weights of an RMS norm over head_dim (Qwen3), as `k_norm`
    k_norm: F32 | None = None
    norm_eps: float = 1e-6


@dataclass(slots=True, eq=False)
class Draw:
    """One row of a sampling call; the fields are `SamplingParams`' and `SampleRow`'s, resolved to
    ids and numbers.

    May be handed in again: by then only `row`, `position` and `output_ids` may have changed.
    """

    row: int
    seed: int = 0
    choice: int = 0
    position: int = 0
    target: int = -1  # >= 0: score this token instead of drawing
    num_logprobs: int = -1  # -1: report none
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias_ids: I32 | None = None
    bias_values: F32 | None = None
    banned_ids: I32 | None = None
    allowed_ids: I32 | None = None
    mask: NDArray[np.uint32] | None = None  # bit i of word i // 32 allows token i
    prompt_ids: I32 | None = None
    output_ids: I32 | None = None
    wants_probs: bool = False  # report the distribution that the draw is from
    prepared: Any = None  # what the back end keeps with it


@dataclass(slots=True)
class SampledToken:
    """What came of one row: a drawn or scored token, or a state.

    Where `is_nan` or `is_blocked`, the rest is meaningless and the request must fail.
    """

    token_id: int
    logprob: float | None = None  # from the raw log-softmax, as those of `top`
    rank: int | None = None  # 1 = most likely
    top: Sequence[tuple[int, float]] = ()  # (id, logprob), most likely first
    is_nan: bool = False  # the logits held NaN or infinity, or the state is not finite
    is_blocked: bool = False  # masks and bans left no token
    state: F32 | None = None  # [hidden]; the reader's to keep
    probs: F32 | None = None  # [V], summing to 1, where they were wanted


class Linear(Protocol):
    """A prepared weight matrix: `n` outputs, `k` inputs; opaque otherwise."""

    n: int
    k: int

    @property
    def nbytes(self) -> int: ...
    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of its parts, for people: f32, f16, bf16, int8, u4."""
        ...


class Ops(Protocol):
    """The operations of a forward pass. Each returns a new array; none changes its inputs unless it
    says so.
    """

    def embed(self, table: Prepared) -> Array:
        """Rows of the table for the batch's tokens, widened to f32: [T, H]."""

    def rms_norm(self, x: Array, weight: F32, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis (Zhang & Sennrich 2019)."""

    def linear(self, x: Array, weight: Prepared, *, residual: Array | None = None) -> Array:
        """x @ weight.T (+ bias) (+ residual), or silu(gate) * up when the weight was prepared with
        `silu_mul`. [T, k] -> [T, n], or [T, n / 2] with silu_mul.
        """

    def rope_and_cache(self, qkv: Array, attention: AttentionSpec) -> None:
        """In place, on qkv [T, (heads + 2 kv_heads) * head_dim]: norms and rotary embedding of
        queries and keys, queries scaled by 1/sqrt(head_dim); keys and values written into the
        batch's slots.
        """

    def paged_attention(self, qkv: Array, attention: AttentionSpec) -> Array:
        """Causal attention of the queries over the cached keys of their sequences: [T, heads *
        head_dim]. Keys and values are read from the cache, also those written in this step.
        """

    def gather_rows(self, x: Array) -> Array:
        """The batch's logit rows of x [T, H]: [R, H]."""


class Compiled(Protocol):
    """A forward function bound to a back end. `output` is its result as an `Array` for another
    function's input.
    """

    @property
    def output(self) -> Array: ...

    @property
    def nbytes(self) -> int:
        """Bytes of activation buffers reserved."""

    def run(self, batch: Batch) -> F32:
        """Run one step; the result is a view, valid until the next run."""


class Backend(Protocol):
    """A kernel implementation. `name` and `variant` are for people; `exact` says whether it
    promises bits.
    """

    name: str
    variant: str
    exact: bool
    threads: int

    def linear(
        self, parts: Sequence[Weight], bias: F32 | None = None, *, silu_mul: bool = False
    ) -> Linear:
        """Prepare a matrix with the rows of all parts. `silu_mul`: the parts are (gate, up)."""

    def compile(
        self, function: Callable[[Ops], Array], kv: KVSlabs, *, max_rows: int, logits: bool = False
    ) -> Compiled:
        """Bind `function` for steps of at most `max_rows` rows: token rows, or logits rows with
        `logits`.
        """

    def sample(self, logits: F32, draws: Sequence[Draw]) -> list[SampledToken]:
        """Draw or score one token a row. logits: [R, V]. Order: masks and bias, penalties,
        temperature, min_p, top_k, top_p; logprobs and ranks are of the raw logits.
        """
