"""The bridge between the event loop and the engine thread. The only file of the server with a lock.

The engine thread alone touches the model, the scheduler and the KV-cache. Requests cross as
`EngineRequest`, results as `RequestOutput`: plain values. Everything the loop keeps (who listens
to which request) stays on the loop; everything the engine keeps stays on its thread; the waiting
queue and the list of releases are shared and guarded by one condition variable, on which an idle
engine sleeps.

Every way out of a request ends in `release`, which is idempotent; its blocks are free before the
next step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tinyserve.engine.request import EngineRequest, EngineStats, FinishReason, RequestOutput
from tinyserve.engine.timing import TimedCore
from tinyserve.errors import EngineDeadError, RequestError, TinyServeError
from tinyserve.server.admission import Admission, Occupancy
from tinyserve.server.fair_queue import Entry, FairRequestQueue
from tinyserve.server.mailbox import Mailbox
from tinyserve.server.pace import Pace

logger = logging.getLogger("tinyserve.server")

# How long a Python thread may hold the interpreter against one that waits for it; the default of
# 5 ms would delay every step in which the loop is busy.
SWITCH_INTERVAL_S = 0.0005

T = TypeVar("T")
OnDropped = Callable[[Sequence[EngineRequest], FinishReason], None]


class EngineBridge:
    """Owns the engine thread.

    Made on any thread; `start` and all other methods belong to the loop's.
    """

    def __init__(
        self,
        core: TimedCore,
        *,
        admission: Admission,
        queue: FairRequestQueue[EngineRequest],
        on_dropped: OnDropped = lambda requests, reason: None,
        on_delivered: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_dropped` is told, on the loop, of requests that ended before the engine saw them;
        `on_delivered` that a step's outputs are where they belong.
        """
        self._core = core
        self._admission = admission
        self._on_dropped = on_dropped
        self._on_delivered = on_delivered
        # Shared, guarded by _wake:
        self._wake = threading.Condition()
        self._queue = queue
        self._releases: list[str] = []
        self._questions: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._is_stopping = False
        self._death: BaseException | None = None
        # The loop's own:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailboxes: dict[str, Mailbox] = {}
        self._groups: dict[str, tuple[str, ...]] = {}
        # The engine thread's own:
        self._inside = Occupancy()
        self._pace = Pace()
        # Written by the engine thread, read by anyone (one reference, replaced whole):
        self._stats = core.stats()
        self._thread = threading.Thread(target=self._run, name="tinyserve-engine", daemon=True)

    # -- the loop's side -------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread; results will be delivered on the running loop."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, group: str, requests: Sequence[EngineRequest], mailbox: Mailbox) -> None:
        """Queue all requests of a group, or raise QueueFullError or EngineDeadError."""
        entries = [Entry(r, group, r.client, r.priority, len(r.prompt_token_ids)) for r in requests]
        with self._wake:
            self._raise_if_gone()
            self._queue.put(entries, retry_after=self._retry_after)
            for request in requests:
                self._mailboxes[request.request_id] = mailbox
            self._groups[group] = tuple(r.request_id for r in requests)
            self._wake.notify()

    def release(self, group: str) -> None:
        """Forget an HTTP request in whatever state it is. Idempotent."""
        request_ids = self._groups.pop(group, ())
        unfinished = [i for i in request_ids if self._mailboxes.pop(i, None) is not None]
        if not unfinished:
            return
        with self._wake:
            dropped = self._queue.remove_group(group)
            self._releases += unfinished
            self._wake.notify()
        self._on_dropped(dropped, "abort")

    def ask(self, question: Callable[[], T]) -> asyncio.Future[T]:
        """What `question` returns on the engine thread between two steps; at once when it is idle.

        Cancelled if the engine ends before. Raises EngineDeadError if it has.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._raise_if_gone()
            self._questions.append((question, future))
            self._wake.notify()
        return future

    def waiting(self, limit: int) -> list[EngineRequest]:
        """The first `limit` requests that wait outside the engine, first come first."""
        with self._wake:
            return self._queue.items(limit)

    def fail_all(self, error: TinyServeError) -> None:
        """End every open request with `error`."""
        for mailbox in set(self._mailboxes.values()):
            mailbox.put(error)

    def stop(self) -> None:
        """End the engine thread after its current step. Open requests get no further word."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def death(self) -> BaseException | None:
        """Why the engine thread ended, if it did."""
        return self._death

    @property
    def stats(self) -> EngineStats:
        """The engine's numbers after its latest step or release."""
        return self._stats

    @property
    def num_queued(self) -> int:
        """Entries that wait outside the engine."""
        return len(self._queue)

    @property
    def num_open(self) -> int:
        """Engine requests somebody listens to, waiting ones included."""
        return len(self._mailboxes)

    def _raise_if_gone(self) -> None:
        if self._death is not None:
            raise EngineDeadError(f"the engine has stopped: {self._death}")
        if self._is_stopping:
            raise EngineDeadError("the server is shutting down")

    def _retry_after(self) -> float:
        return self._pace.wait_s(len(self._queue))

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        """On the loop: hand each output to whoever listens."""
        for output in outputs:
            mailbox = self._mailboxes.get(output.request_id)
            if mailbox is not None:
                mailbox.put(output)
        assert self._loop is not None
        self._loop.call_soon(self._on_delivered)  # after those who were woken have written

    def _forget(self, finished: Sequence[str]) -> None:
        """On the loop: these requests have left the engine by themselves."""
        for request_id in finished:
            self._mailboxes.pop(request_id, None)

    # -- the engine thread's side ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                outputs = self._core.step()
                self._stats = self._core.stats()
                self._post(outputs)
        except BaseException as error:
            logger.exception("the engine has stopped")
            self._die(error)
        with self._wake:
            unanswered = self._questions
        for _, future in unanswered:
            self._call_loop(future.cancel)

    def _wait_for_work(self) -> bool:
        """Sleep until the engine has something to do; False when it is to end."""
        while True:
            with self._wake:
                if not self._is_stopping and not self._has_anything_to_do():
                    with self._pace.at_rest():
                        self._wake.wait()
                if self._is_stopping:
                    return False
                releases, self._releases = self._releases, []
                questions, self._questions = self._questions, []
            self._abort(releases)
            self._admit()
            for question, future in questions:
                self._answer(question, future)
            if self._core.has_work():
                return True

    def _has_anything_to_do(self) -> bool:
        is_asked = bool(self._releases or self._questions or len(self._queue))
        return is_asked or self._core.has_work()

    def _answer(self, question: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        try:
            answer = question()
        except Exception as error:  # the question's fault, not the engine's
            self._call_loop(_fail, future, error)
        else:
            self._call_loop(_resolve, future, answer)

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._core.abort(request_id)
            self._inside.drop(request_id)
        if request_ids:
            self._stats = self._core.stats()

    def _admit(self) -> None:
        """Give the engine as many queued requests as it can use, in the queue's order."""
        while True:
            with self._wake:
                priority = self._queue.peek_priority()
                if priority is None:
                    return
                blocked = self._admission.blocked(self._inside, priority)
                request = self._queue.pop(blocked) if blocked is not None else None
            if request is None:
                return
            self._pace.note()
            self._add(request)
            self._stats = self._core.stats()

    def _add(self, request: EngineRequest) -> None:
        try:
            self._core.add_request(request)
        except RequestError as error:  # this request alone is at fault
            self._post([_failure(request, i, error) for i in range(request.params.n)])
            return
        self._inside.add(request)

    def _post(self, outputs: Sequence[RequestOutput]) -> None:
        """Send a step's outputs to the loop: one wake-up for all of them."""
        finished = []
        for output in outputs:
            self._inside.start(output.request_id)
            if output.finish_reason is not None and self._inside.close_choice(output.request_id):
                finished.append(output.request_id)
        if outputs:
            self._call_loop(self._deliver, outputs)
        if finished:
            self._call_loop(self._forget, finished)

    def _die(self, error: BaseException) -> None:
        with self._wake:
            self._death = error
            dropped = self._queue.clear()
        self._stats = _stats_after_death(self._stats)
        self._call_loop(self._on_dropped, dropped, "error")
        self._call_loop(self.fail_all, EngineDeadError(f"the engine has stopped: {error}"))

    def _call_loop(self, function: Callable[..., object], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody listens any more
            logger.debug("results after the event loop was closed")


def _resolve(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():  # whoever asked may have given up
        future.set_result(answer)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _stats_after_death(stats: EngineStats) -> EngineStats:
    """Gauges of an engine that computes nothing any more: no request is in it."""
    return dataclasses.replace(
        stats,
        num_waiting=0,
        num_running=0,
        num_swapped=0,
        num_free_blocks=stats.num_total_blocks - stats.num_cached_blocks,
        num_free_swap_blocks=stats.num_total_swap_blocks,
    )


def _failure(request: EngineRequest, index: int, error: RequestError) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        index=index,
        new_token_ids=[],
        new_text="",
        num_prompt_tokens=len(request.prompt_token_ids),
        num_cached_tokens=0,
        finish_reason="error",
        error=error,
    )
