"""The calls of an `LLM`: requests run to their end, or one as a `Stream`.

A call steps the shared engine while it waits, for itself and for the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tinyserve.engine.exclusive import interrupts_put_off
from tinyserve.engine.outputs import Choice, Output, StreamDelta
from tinyserve.engine.progress import counted
from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.engine.shared_core import Inbox, SharedCore
from tinyserve.errors import TinyServeError
from tinyserve.text.answer_format import AnswerFormat
from tinyserve.text.messages import Part


def run(core: SharedCore, requests: Sequence[EngineRequest], progress: bool | None) -> list[Output]:
    """Run requests to their end. All were made, and so checked, before the first is added: a
    refusal leaves nothing behind. `progress` as in `counted`.
    """
    results = [
        Output(None, list(r.prompt_token_ids), [Choice(i) for i in range(r.params.n)])
        for r in requests
    ]
    open_requests: dict[str, Output] = {}
    inbox: Inbox = deque()
    try:
        for request, result in zip(requests, results, strict=True):
            open_requests[request.request_id] = result
            core.submit(request, inbox)
        with counted(len(results), progress) as advance:
            while open_requests:
                with interrupts_put_off() as interrupts:
                    while open_requests and not interrupts:
                        core.step()
                        for _ in range(_collect(core, inbox, open_requests)):
                            advance()
    finally:
        with interrupts_put_off():
            for request_id in open_requests:
                core.release(request_id)
    return results


def _collect(core: SharedCore, inbox: Inbox, open_requests: dict[str, Output]) -> int:
    """Move what has come into the results; how many requests it completes."""
    num_open = len(open_requests)
    while inbox:
        output = inbox.popleft()
        result = open_requests.get(output.request_id)
        if result is None:
            continue  # closed by another thread when it was already complete
        result.add(_without_error(output))
        if output.finish_reason is not None and result.is_complete:
            del open_requests[output.request_id]
            core.inboxes.pop(output.request_id, None)
    return num_open - len(open_requests)


class Stream:
    """The deltas of one request, as an iterator.

    `answer`, of a conversation, says how its messages are read; other texts are not.
    Leaving it early (`close` on any thread, a with block, or dropping it) aborts the request.
    """

    def __init__(
        self, core: SharedCore, request: EngineRequest, answer: AnswerFormat | None = None
    ) -> None:
        self._core = core
        self._request_id = request.request_id
        self._left = request.params.n
        self._parsers = [answer.new_parser() for _ in range(self._left)] if answer else []
        self._inbox: Inbox = deque()
        core.submit(request, self._inbox)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> StreamDelta:
        try:
            while not self._inbox and self._left:
                self._core.step()
            output = _without_error(self._inbox.popleft()) if self._left else None
        except BaseException:
            self.close()
            raise
        if output is None:
            raise StopIteration
        if output.finish_reason is not None:
            self._left = max(0, self._left - 1)  # 0 once another thread has closed it
        if not self._left:
            self.close()
        return StreamDelta.of(output, self._parts(output))

    def _parts(self, output: RequestOutput) -> list[Part]:
        """What became certain of a message."""
        if not self._parsers:
            return []
        parser = self._parsers[output.index]
        parts = parser.push(output.new_text) if output.new_text else []
        return parts if output.finish_reason is None else [*parts, *parser.flush()]

    def close(self) -> None:
        """Abort what is not finished; idempotent."""
        self._left = 0
        self._core.release(self._request_id)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _without_error(output: RequestOutput) -> RequestOutput:
    if output.finish_reason in ("error", "abort"):
        raise output.error or TinyServeError("the request was aborted")
    return output
