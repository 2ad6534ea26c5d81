"""One choice of one request: the tokens it knows, and how many of them have their KV computed.

Prefill, chunk, decode and verification are all "let `num_computed` catch up with `num_known`";
there is no phase. Dumb records: the scheduler moves `status` and `num_computed`, the core appends
tokens.

    prompt_ids            output_ids
    |--------------------|------------|                    token_ids, num_known of them
    |-- KV is in the cache ---|                            num_computed < num_known while unfinished
"""

from __future__ import annotations

from enum import Enum, auto

from tinyserve.engine.job import Job
from tinyserve.engine.request import FinishReason, RequestOutput
from tinyserve.engine.sampling import SampleRow
from tinyserve.kv.block_table import BlockTable


class Status(Enum):
    """What becomes of a sequence. One that has finished holds no blocks."""

    WAITING = auto()  # holds no KV: new, or dropped to be recomputed
    RUNNING = auto()  # holds device blocks and a seat
    SWAPPED = auto()  # holds host slots
    FINISHED = auto()


class Sequence:
    """One choice of a request: its tokens, its blocks and what it draws from.

    `order` sorts by (priority, arrival, creation); "oldest" means the first by it, everywhere.
    """

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
        self.text = request.new_text() if request.new_text is not None else None
        self.grammar = request.new_grammar() if request.new_grammar is not None else None
        self.order = (request.priority, request.arrival, seq_id)
        self.token_ids = list(job.prompt_ids)
        self.output_ids: list[int] = []
        self.num_computed = 0
        self.num_dropped = 0  # tokens whose KV its latest preemption gave up
        self.table = BlockTable(request.cache_salt)
        self.status = Status.WAITING
        self.finish_reason: FinishReason | None = None
        self.was_admitted = False
        self.step = -1  # the latest step that planned it or swaps it in, and so may not preempt it
        self.row: SampleRow | None = None  # for its next draw; the same object every time
        self.num_charged = 0  # tokens the fair policy has counted; recomputing them is free

    @property
    def priority(self) -> int:
        return self.job.request.priority

    @property
    def is_private(self) -> bool:
        """Whether its tokens must not show in what others get: its request named a cache salt."""
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
            f"{self.num_computed}/{self.num_known} of {self.job.request_id!r}>"
        )
