"""`SharedCore`: one engine for several calls, each on a thread of its own.

Its users take turns at steps, and whoever has one hands each output to the call it belongs to: into
an inbox, by the request's id. Knows nothing of what a call makes of them.
"""

from __future__ import annotations

from collections import deque

from tinyserve.engine.core import EngineCore
from tinyserve.engine.exclusive import Exclusive
from tinyserve.engine.request import EngineRequest, RequestOutput
from tinyserve.errors import TinyServeError

Inbox = deque[RequestOutput]  # the outputs that have come for one call


class SharedCore:
    """`inboxes` are those of the requests that are open."""

    def __init__(self, core: EngineCore) -> None:
        self.inboxes: dict[str, Inbox] = {}
        self._core = core
        self._given_up: deque[str] = deque()  # requests that the engine may not have aborted yet
        self._use = Exclusive()  # one thread at a time uses the engine

    def submit(self, request: EngineRequest, inbox: Inbox) -> None:
        """Let the engine have a request. Raises RequestError."""
        with self._use.turn():
            self._core.add_request(request)
            self.inboxes[request.request_id] = inbox

    def release(self, request_id: str) -> None:
        """Forget a request. While a step is running (the garbage collector may drop a stream in the
        middle of one), whoever runs it aborts the request afterwards.
        """
        self.inboxes.pop(request_id, None)
        self._given_up.append(request_id)
        with self._use.turn_if_free() as is_free:
            if is_free:
                self._abort_given_up()

    def end_all(self, why: str) -> None:
        """Abort whatever is open; who waits for it will find an error."""
        for request_id, inbox in list(self.inboxes.items()):
            self.release(request_id)
            error = TinyServeError(f"the request was aborted: {why}")
            inbox.append(
                RequestOutput(request_id, 0, [], "", 0, 0, finish_reason="abort", error=error)
            )

    def step(self) -> None:
        """Advance the engine once; every output goes to the call that waits for it. An exception
        goes to the caller, and ends what others wait for: outputs may be lost with it.
        """
        with self._use.turn():
            self._abort_given_up()
            try:
                outputs = self._core.step()
            except BaseException as error:
                self.end_all(f"a step of the engine failed: {error!r}")
                raise
            finally:
                self._abort_given_up()
            for output in outputs:
                inbox = self.inboxes.get(output.request_id)
                if inbox is not None:
                    inbox.append(output)

    def _abort_given_up(self) -> None:
        while self._given_up:
            self._core.abort(self._given_up.popleft())
