"""One choice of one request: the tokens it knows, and how many of them have their KV computed.

Prefill, chunk, decode and verification are all "let `num_computed` catch up with `num_known`";
there is no phase. Dumb records: the scheduler moves `status` and `num_computed`, the core appends
tokens.

    prompt_ids            output_ids
    |--------------------|------------|                    token_ids, num_known of them
    |-- KV is in the cache ---|                            num_computed < num_known while unfinished
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from tinyserve.engine.prompt_rows import PromptReader
from tinyserve.engine.request import EngineRequest, FinishReason, RequestOutput
from tinyserve.engine.sampling import SampleRow, SamplingParams
from tinyserve.kv.block_table import BlockTable, Namespace


class Status(Enum):
    """Where a sequence is. Finished sequences hold nothing."""

    WAITING = auto()  # holds no KV: new, or dropped to be recomputed
    RUNNING = auto()  # holds device blocks and a seat
    SWAPPED = auto()  # holds host slots
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Job:
    """A request after its admission, shared by its choices: everything that was settled once.

    `seed` was drawn if the request had none. `max_len`: known tokens at which a choice ends, from
    max_tokens and the context. `stop_ids` end a choice; `eos_ids` among them without a stop reason.
    `min_banned` are masked while a choice is shorter than min_tokens. `reader` is given the rows of
    the prompt whose logprobs or hidden states were asked for; None where none were. `fault`: why
    the request cannot go on, found between two steps.
    """

    request: EngineRequest
    prompt_ids: tuple[int, ...]
    seed: int
    max_len: int
    namespace: Namespace
    eos_ids: frozenset[int]
    stop_ids: frozenset[int]
    min_banned: tuple[int, ...]
    reader: PromptReader | None
    sequences: list[Sequence] = field(default_factory=list)
    num_cached_tokens: int = 0
    has_forked: bool = False  # choices 1 .. n-1 have left choice 0
    fault: Exception | None = None
    params: SamplingParams = field(init=False)
    may_ban: bool = field(init=False)  # tokens may be banned for some of its draws
    request_id: str = field(init=False)  # what each token asks for lies here, side by side
    min_tokens: int = field(init=False)
    has_logprobs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.params = params = self.request.params
        self.request_id = self.request.request_id
        self.min_tokens = params.min_tokens
        self.has_logprobs = params.logprobs is not None
        is_put_off = params.ignore_eos and bool(self.eos_ids)
        self.may_ban = is_put_off or params.min_tokens > 0 or bool(self.request.bad_words_ids)

    @property
    def wanted_positions(self) -> range:
        """The prompt positions whose rows are still to be read."""
        return self.reader.positions if self.reader is not None else range(0)

    @property
    def may_read_cache(self) -> bool:
        """False while a row before the prompt's last is wanted: it must be computed, not found."""
        wanted = self.wanted_positions
        return not wanted or wanted.start >= len(self.prompt_ids) - 1

    def forget(self) -> None:
        """All choices are finished: drop the references to them, which refer back to this job, so
        that no reference cycle is left to the garbage collector.
        """
        self.sequences.clear()


class Sequence:
    """One choice. `order` sorts by (priority, arrival, creation): first is "oldest" everywhere."""

    __slots__ = (
        "choice",
        "finish_reason",
        "grammar",
        "job",
        "num_charged",
        "num_computed",
        "num_dropped",
        "order",
        "output_ids",
        "row",
        "seq_id",
        "status",
        "step",
        "table",
        "text",
        "token_ids",
        "was_admitted",
    )

    def __init__(self, seq_id: int, job: Job, choice: int) -> None:
        request = job.request
        self.seq_id = seq_id
        self.job = job
        self.choice = choice
        self.text = request.text() if request.text is not None else None
        self.grammar = request.grammar() if request.grammar is not None else None
        self.order = (job.request.priority, job.request.arrival, seq_id)
        self.token_ids = list(job.prompt_ids)
        self.output_ids: list[int] = []
        self.num_computed = 0
        self.num_dropped = 0  # tokens whose KV its latest preemption gave up
        self.table = BlockTable(job.namespace)
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.was_admitted = False
        self.step = -1  # the latest step that planned it or swaps it in, and so may not preempt it
        self.row: SampleRow | None = None  # of its next draw, handed in again and again
        self.num_charged = 0  # tokens the fair policy has counted; recomputing them is free

    @property
    def priority(self) -> int:
        return self.job.request.priority

    @property
    def is_private(self) -> bool:
        """Its tokens must not show in what others get: it has a prefix cache of its own."""
        return self.job.request.cache_salt is not None

    @property
    def num_known(self) -> int:
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    def new_output(self) -> RequestOutput:
        """What a step adds to this choice: nothing yet."""
        job = self.job
        return RequestOutput(
            job.request_id,
            self.choice,
            [],
            "",
            len(job.prompt_ids),
            job.num_cached_tokens,
        )

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.seq_id} {self.status.name.lower()} "
            f"{self.num_computed}/{self.num_known} of {self.job.request.request_id!r}>"
        )
