"""The engine: plan, run, sample, commit.

Owns the requests from admission to release and turns each step's draws into outputs. Knows no
tokenizer, no HTTP and no thread: one thread calls it, and what it returns are plain values. A fault
of one request (NaN logits, say) ends that request; an exception of the runner passes through
`step`, after which the engine must not be used.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from tinyserve.config import SchedulerConfig
from tinyserve.engine.commit import confirmed, take_tokens
from tinyserve.engine.drawing import DrawRows, draw_coupled
from tinyserve.engine.job import Job, job_of
from tinyserve.engine.model_limits import ModelLimits
from tinyserve.engine.plan import Chunk, Runner
from tinyserve.engine.request import EngineRequest, EngineStats, FinishReason, RequestOutput
from tinyserve.engine.sample_rows import read_positions, rows_of
from tinyserve.engine.sampling import SampledToken
from tinyserve.engine.scheduler import Scheduler
from tinyserve.engine.sequence import Sequence, Status
from tinyserve.engine.snapshot import EngineSnapshot, take_snapshot
from tinyserve.engine.step import Lap
from tinyserve.errors import RequestError, TinyServeError
from tinyserve.kv.manager import KVManager
from tinyserve.spec.drafter import Drafter

UNLIMITED = 2**31


class EngineCore:
    """Serves requests over one runner and one KV-cache, one step at a time.

    `config.max_model_len` is resolved (None: as long as the KV-cache holds). `eos_token_ids` are
    all the ids that end an answer. `vocab_size`, where given, bounds the ids a request may name.
    """

    def __init__(
        self,
        runner: Runner,
        kv: KVManager,
        config: SchedulerConfig,
        *,
        eos_token_ids: tuple[int, ...] = (),
        vocab_size: int | None = None,
        drafter: Drafter | None = None,
        draw: DrawRows = draw_coupled,
    ) -> None:
        self.runner = runner
        self._kv = kv
        self.limits = ModelLimits(
            UNLIMITED if vocab_size is None else vocab_size,
            UNLIMITED if config.max_model_len is None else config.max_model_len,
            kv.num_blocks * kv.block_size,
        )
        self.eos_token_ids = eos_token_ids
        self._scheduler = Scheduler(config, kv, drafter=drafter)
        self._drafter = drafter
        self._draw = draw
        self._jobs: dict[str, Job] = {}
        self._ready: list[RequestOutput] = []  # outputs that no step has to compute
        self.clock: Callable[[], float] = monotonic
        self.lap: Lap | None = None  # what the latest `step` computed
        self._next_seq_id = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_corrupted = 0

    def add_request(self, request: EngineRequest) -> None:
        """Take a request in. Raises RequestError when it is wrong or could never fit."""
        if request.request_id in self._jobs:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id")
        job = job_of(request, self.limits, self.eos_token_ids)
        for choice in range(request.params.n):
            job.sequences.append(Sequence(self._next_seq_id + choice, job, choice))
        self._next_seq_id += request.params.n
        if job.max_len == len(job.prompt_ids) and not job.wanted_positions:
            self._num_prompt_tokens += len(job.prompt_ids)
            self._ready += self._end_all(job)
            job.forget()
            return
        self._jobs[request.request_id] = job
        self._scheduler.add(job.sequences[0])

    def abort(self, request_id: str) -> bool:
        """Release a request at once, in whatever state; False if unknown. No output follows."""
        num_ready = len(self._ready)
        self._ready = [output for output in self._ready if output.request_id != request_id]
        job = self._jobs.get(request_id)
        for seq in tuple(job.sequences) if job is not None else ():
            self._release(seq, "abort")
        return job is not None or len(self._ready) < num_ready

    def has_work(self) -> bool:
        """Would `step` do or return anything?"""
        return bool(self._jobs or self._ready)

    def step(self) -> list[RequestOutput]:
        """Compute one step; returns what it added to the choices that advanced."""
        outputs, self._ready = self._ready, []
        self.lap = None
        if not self._jobs:
            return outputs
        began = self.clock()
        step = self._scheduler.schedule()
        planned = self.clock()
        logits = self.runner.run(step.plan)
        ran = self.clock()
        rows, ends = rows_of(step)
        sampled = self._draw(logits, rows) if rows else []
        drawn = self.clock()
        begin = 0
        for seq, chunk, end in zip(step.seqs, step.plan.chunks, ends, strict=True):
            outputs += self._commit(seq, chunk, sampled[begin:end])
            begin = end
        self._num_steps += 1
        self._num_generation_tokens += sum([len(output.new_token_ids) for output in outputs])
        self.lap = Lap(step, began, planned, ran, drawn, self.clock())
        if self._drafter is not None:
            self._drafter.learn(step.plan.num_tokens, self.lap.end - began)
        return outputs

    def stats(self) -> EngineStats:
        """Gauges and counters as plain numbers."""
        kv, scheduler, counts = self._kv, self._scheduler, self._scheduler.counters
        num_accepted = () if self._drafter is None else tuple(self._drafter.num_accepted)
        return EngineStats(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_swapped=scheduler.num_swapped,
            num_free_blocks=kv.num_free,
            num_cached_blocks=kv.num_cached,
            num_total_blocks=kv.num_blocks,
            num_free_swap_blocks=kv.arena.num_free,
            num_total_swap_blocks=kv.arena.num_slots,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_scheduled_tokens=counts.scheduled_tokens,
            num_preemptions_swap=counts.preemptions_swap,
            num_preemptions_recompute=counts.preemptions_recompute,
            num_prefix_query_tokens=counts.prefix_query_tokens,
            num_prefix_hit_tokens=counts.prefix_hit_tokens,
            num_cow_copies=kv.counters.cow_copies,
            num_swapped_out_blocks=kv.counters.swapped_out_blocks,
            num_swapped_in_blocks=kv.counters.swapped_in_blocks,
            num_draft_tokens=counts.draft_tokens,
            num_accepted_tokens=sum(num_accepted),
            num_corrupted=self._num_corrupted,
            num_recomputed_tokens=counts.recomputed_tokens,
            num_drafts=counts.drafts,
            num_accepted_per_position=num_accepted,
        )

    def snapshot(self) -> EngineSnapshot:
        """Who is in the engine and who owns which block, between two steps."""
        return take_snapshot(self._jobs.values(), self._kv, self.stats())

    def memory_report(self) -> dict[str, Any]:
        """The runner's bytes by item, and the block bookkeeping's: {"reserved": ..., "touched":
        ...}.
        """
        num_bytes = self._kv.bookkeeping_bytes()
        report = dict(self.runner.memory_report())
        report["kv_bookkeeping"] = {"reserved": num_bytes, "touched": num_bytes}
        if self._drafter is not None:
            report.update(self._drafter.memory_report())
        return report

    def _commit(
        self, seq: Sequence, chunk: Chunk, sampled: list[SampledToken]
    ) -> list[RequestOutput]:
        """Count the chunk as computed and give its draws to their sequences."""
        job = seq.job
        if seq.finish_reason is not None:  # it failed with another choice in this step
            return []
        if chunk.num_drafts:
            sampled = confirmed(sampled, chunk.drafts)
        if job.fault is not None:
            return self._fail(job, job.fault)
        for token in sampled:
            if token.is_nan or token.is_blocked:
                self._num_corrupted += token.is_nan
                return self._fail(job, _fault_of(job, token))
        if sampled and job.has_forked:
            return [self._commit_tokens(seq, chunk, sampled)]
        return self._commit_prompt(seq, chunk, sampled)

    def _commit_tokens(
        self, seq: Sequence, chunk: Chunk, sampled: list[SampledToken]
    ) -> RequestOutput:
        """The next tokens of a choice; the KV of the last one is the next step's to compute."""
        output = take_tokens(seq, sampled)
        if self._drafter is not None:
            num_accepted = chunk.num_accepted(output.new_token_ids)
            self._drafter.record(seq.seq_id, chunk.num_drafts, num_accepted)
        seq.num_computed = num_computed = len(seq.token_ids) - 1
        if num_computed >= seq.table.tail_stop:
            self._kv.publish(seq.table, seq.token_ids, num_computed)
        if output.finish_reason is not None:
            self._release(seq, output.finish_reason)
        return output

    def _commit_prompt(
        self, seq: Sequence, chunk: Chunk, sampled: list[SampledToken]
    ) -> list[RequestOutput]:
        """A piece of a prompt, or of what a preemption has dropped. A prompt's last piece brings
        the first tokens of all its choices.
        """
        reader = seq.job.reader
        if reader is not None:
            num_read = len(read_positions(seq, chunk))
            reader.take(sampled[:num_read])
            sampled = sampled[num_read:]
        seq.num_computed = end = chunk.end
        self._kv.publish(seq.table, seq.token_ids, end)
        return self._first_tokens(seq.job, sampled) if end == len(seq.token_ids) else []

    def _first_tokens(self, job: Job, drawn: list[SampledToken]) -> list[RequestOutput]:
        """The prompt is computed: fork the other choices, and give each its first token."""
        job.has_forked = True
        self._num_prompt_tokens += len(job.prompt_ids)
        first, *others = job.sequences
        if drawn:
            for child in others:
                self._scheduler.fork(first, child)
            outputs = [take_tokens(s, [t]) for s, t in zip(job.sequences, drawn, strict=True)]
            if self._drafter is not None:
                for seq in job.sequences:
                    self._drafter.record(seq.seq_id, 0, 0)
            if job.reader is not None:
                job.reader.deliver(outputs[0])
        else:
            outputs = self._end_all(job)
        for seq, output in zip(tuple(job.sequences), outputs, strict=True):
            if output.finish_reason is not None:
                self._release(seq, output.finish_reason)
        return outputs

    def _end(self, seq: Sequence, reason: FinishReason) -> RequestOutput:
        """The last output of a choice that ends without another token."""
        output = seq.new_output()
        output.finish_reason = reason
        output.logprobs = [] if seq.job.has_logprobs else None
        return output

    def _end_all(self, job: Job) -> list[RequestOutput]:
        """The only outputs of a job that draws nothing (max_tokens = 0)."""
        outputs = [self._end(seq, "length") for seq in job.sequences]
        if job.reader is not None:
            job.reader.deliver(outputs[0])
        return outputs

    def _fail(self, job: Job, error: Exception) -> list[RequestOutput]:
        """End every choice of a job."""
        outputs = []
        for seq in [seq for seq in job.sequences if seq.status is not Status.FINISHED]:
            output = self._end(seq, "error")
            output.error = error
            outputs.append(output)
            self._release(seq, "error")
        return outputs

    def _release(self, seq: Sequence, reason: FinishReason) -> None:
        """The one way out of every state: free all that the sequence holds. Idempotent."""
        if seq.status is Status.FINISHED:
            return
        self._scheduler.remove(seq)
        seq.finish_reason = reason
        job = seq.job
        if all(other.status is Status.FINISHED for other in job.sequences):
            self._jobs.pop(job.request_id, None)
            job.forget()


def _fault_of(job: Job, token: SampledToken) -> Exception:
    """Why a request cannot go on after this draw."""
    if token.is_nan:
        return TinyServeError(
            f"request {job.request_id!r}: the model's logits are not numbers (NaN)"
        )
    return RequestError(
        "no token may come next: the request's grammar, allowed_token_ids, bad_words, "
        "logit_bias and min_tokens together rule out every one"
    )
