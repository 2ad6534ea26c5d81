"""`ModelRunner`: executes step plans on a model. Owns the weights, the physical KV-cache and the
compiled forward pass.

Knows nothing of requests or policies: a plan's ids and ints are all it is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinyserve.config import CacheConfig, ModelOptions, SchedulerConfig
from tinyserve.engine.batch import BatchBuilder
from tinyserve.engine.kernel_draws import draws_of
from tinyserve.engine.memory import resident_memory
from tinyserve.engine.plan import Chunk, StepPlan
from tinyserve.engine.sampling import SampledToken, SampleRow
from tinyserve.errors import ModelLoadError
from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import I32, Array, Backend, Batch, Compiled, KVLayout, Ops
from tinyserve.kernels.select import choose_backend, make_backend
from tinyserve.kv.pool import KVPool
from tinyserve.models.checkpoint import Checkpoint, Progress
from tinyserve.models.decoder import Decoder
from tinyserve.models.weights import load_decoder, resolve_kv_dtype

logger = logging.getLogger("tinyserve")

HEAD_ROWS = 64  # logits are computed so many rows at a time


class ModelRunner:
    """Runs plans of up to `max_tokens` rows; a larger step makes it compile anew for that size."""

    def __init__(self, decoder: Decoder, pool: KVPool, backend: Backend, max_tokens: int) -> None:
        self.decoder = decoder
        self.pool = pool
        self.backend = backend
        self.max_tokens = 0
        self.process_bytes = 0  # see `note_process`
        self.known_vocab = decoder.config.vocab_size  # ids from here on are never drawn
        self._body: Compiled
        self._head: Compiled
        self._states: Compiled | None = None  # compiled when an embedding first asks for it
        self._most_rows = 0
        self._most_logits = 0
        self._batches = BatchBuilder(pool)
        self._compile(max_tokens)

    @classmethod
    def create(
        cls,
        checkpoint: Checkpoint,
        options: ModelOptions,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        backend: Backend | None = None,
        progress: Progress | None = None,
    ) -> ModelRunner:
        """Load the weights and reserve the cache. `cache.num_blocks` must be resolved."""
        config = checkpoint.config
        backend = backend or make_backend(choose_backend(options.threads), options.bf16_products)
        assert cache.num_blocks is not None
        layout = KVLayout(
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=resolve_kv_dtype(checkpoint, options),
        )
        limit = scheduler.max_model_len or config.max_position_embeddings
        held = cache.num_blocks * cache.block_size  # no sequence is longer, whatever the limit
        decoder = load_decoder(checkpoint, backend, options, limit, progress, min(limit, held))
        pool = KVPool(layout, cache.num_swap_blocks)
        return cls(decoder, pool, backend, min(scheduler.max_num_batched_tokens, 4096))

    def check_numbers(self) -> None:
        """Compute one token, in a block that no sequence owns yet.

        Raises ModelLoadError for weights that are damaged, or beyond their type: every request
        would end with an error.
        """
        logits = self.run(StepPlan((Chunk(-1, 0, (0,), (0,), 1),))).array()
        if not _is_finite(logits[:, : self.known_vocab]):
            raise ModelLoadError(
                "the model computes no numbers (NaN or infinity): its files are damaged, or its "
                "weights exceed model.dtype f16 (bf16 and f32 hold more)"
            )

    @property
    def uses_bf16x2(self) -> bool:
        """Are there weights that are multiplied by activations in two bf16 parts?"""
        return getattr(self.backend, "bf16x2", False) and "bf16" in self.decoder.formats()

    def run(self, plan: StepPlan) -> StepLogits:
        """Swap, copy, then one forward pass over the plan's chunks."""
        self.pool.swap_out(plan.swap_out)
        self.pool.swap_in(plan.swap_in)
        self.pool.copy_blocks(plan.copies)
        if not plan.chunks:
            return StepLogits(self, None)
        batch = self._batches.of(plan.chunks)
        num_tokens = len(batch.token_ids)
        if num_tokens > self.max_tokens:
            self._compile(1 << (num_tokens - 1).bit_length())
        self._body.run(batch)
        self._most_rows = max(self._most_rows, num_tokens)
        return StepLogits(self, batch)

    def head(self, batch: Batch, rows: I32) -> F32:
        """Logits of at most HEAD_ROWS token rows of the last step; a view, valid until the next
        call.
        """
        self._most_logits = max(self._most_logits, len(rows))
        return self._head.run(batch if rows is batch.logit_rows else _with_rows(batch, rows))

    def states(self, batch: Batch, rows: I32) -> F32:
        """Hidden states of token rows of the last step, as `head` gives their logits."""
        if self._states is None:
            self._states = self._compile_rows(self.decoder.states)
        return self._states.run(_with_rows(batch, rows))

    def note_process(self, report: Mapping[str, Any]) -> None:
        """Measure what the process holds besides what `report` lists: interpreter, libraries,
        tokenizer.

        Call it once everything is loaded. From then on the touched bytes of the report add up to
        the process's resident memory.
        """
        known = sum(item["touched"] for item in report.values())
        self.process_bytes = max(0, resident_memory() - known)

    def memory_report(self) -> dict[str, Any]:
        """Bytes by item, reserved and touched; "process" is the baseline of `note_process`."""
        rope = self.decoder.layers[0].attention
        weights = self.decoder.nbytes
        tables = rope.cos.nbytes + rope.sin.nbytes
        body, head = self._body.nbytes, self._head.nbytes
        states = self._states.nbytes if self._states is not None else 0
        process = self.process_bytes
        touched = body * self._most_rows // self.max_tokens + head * self._most_logits // HEAD_ROWS
        return {
            "weights": {"reserved": weights, "touched": weights},
            **self.pool.memory_report(),
            "activations": {"reserved": body + head + states, "touched": touched + states},
            "rotary_tables": {"reserved": tables, "touched": tables},
            "process": {"reserved": process, "touched": process},
        }

    def _compile(self, max_tokens: int) -> None:
        if self.max_tokens:
            logger.info("steps of %d tokens: compiling the forward pass anew", max_tokens)
        self.max_tokens = max_tokens
        self._body = self.backend.compile(self.decoder.hidden, self.pool, max_rows=max_tokens)
        self._head = self._compile_rows(self.decoder.logits)
        self._states = None

    def _compile_rows(self, function: Callable[[Ops, Array], Array]) -> Compiled:
        """A function of the body's output, on at most HEAD_ROWS of its rows."""
        return self.backend.compile(
            lambda ops: function(ops, self._body.output),
            self.pool,
            max_rows=HEAD_ROWS,
            logits=True,
        )


class StepLogits:
    """The logits of one step, computed when they are asked for, HEAD_ROWS rows at a time."""

    def __init__(self, runner: ModelRunner, batch: Batch | None) -> None:
        self._runner = runner
        self._batch = batch

    def array(self) -> F32:
        """All rows at once, [rows, vocab], as a copy."""
        vocab = self._runner.decoder.config.vocab_size
        if self._batch is None or not len(self._batch.logit_rows):
            return np.zeros((0, vocab), np.float32)
        rows = self._batch.logit_rows
        tiles = range(0, len(rows), HEAD_ROWS)
        return np.concatenate(
            [self._runner.head(self._batch, rows[i : i + HEAD_ROWS]).copy() for i in tiles]
        )

    def sample(self, rows: list[SampleRow]) -> list[SampledToken]:
        """Draw or read each row. Several rows may read the same logits row."""
        states = [row.row for row in rows if row.wants_state]
        if states:
            read = iter(self._read_states(states))
            drawn = iter(self.sample([row for row in rows if not row.wants_state]))
            return [next(read if row.wants_state else drawn) for row in rows]
        if not rows:
            return []
        numbers = [row.row for row in rows]
        first, stop = min(numbers), max(numbers) + 1
        if stop - first <= HEAD_ROWS:
            return self._draw(rows, first, stop)
        return self._draw_tiles(rows, numbers)

    def _draw_tiles(self, rows: list[SampleRow], numbers: list[int]) -> list[SampledToken]:
        """Draw from logits that are computed in several parts, in the order of `rows`."""
        tiles: dict[int, list[int]] = {}
        for i, number in enumerate(numbers):
            tiles.setdefault(number // HEAD_ROWS, []).append(i)
        sampled: dict[int, SampledToken] = {}
        for indices in tiles.values():
            tile = [numbers[i] for i in indices]
            drawn = self._draw([rows[i] for i in indices], min(tile), max(tile) + 1)
            sampled.update(zip(indices, drawn, strict=True))
        return [sampled[i] for i in range(len(rows))]

    def _read_states(self, rows: list[int]) -> list[SampledToken]:
        """The hidden states of these logits rows, as copies."""
        read = []
        for begin in range(0, len(rows), HEAD_ROWS):
            assert self._batch is not None
            token_rows = self._batch.logit_rows[rows[begin : begin + HEAD_ROWS]]
            states = self._runner.states(self._batch, token_rows).copy()
            read += [SampledToken(-1, is_nan=not _is_finite(s), state=s) for s in states]
        return read

    def _draw(self, rows: list[SampleRow], first: int, stop: int) -> list[SampledToken]:
        assert self._batch is not None
        runner = self._runner
        logit_rows = self._batch.logit_rows
        if stop - first < len(logit_rows):
            logit_rows = logit_rows[first:stop]
        logits = runner.head(self._batch, logit_rows)
        if runner.known_vocab < logits.shape[1]:
            logits[:, runner.known_vocab :] = -np.inf
        draws = draws_of(rows, first, logits.shape[1])
        return runner.backend.sample(logits, draws)


def _with_rows(batch: Batch, rows: I32) -> Batch:
    """The same batch asking for the logits of other token rows."""
    return replace(batch, logit_rows=rows, prepared=None)


def _is_finite(x: F32) -> bool:
    return bool(np.isfinite(x).all())
