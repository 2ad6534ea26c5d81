"""Clients that stop reading: bounded in memory and in time, then cut off; their blocks are free."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, sse_events, wait_for

from tinyserve.engine.request import RequestOutput
from tinyserve.engine.sampling import SampledToken
from tinyserve.server.mailbox import Mailbox, Signal, estimated_bytes
from tinyserve.server.outlet import ABORT, PIECE, Outlet, Readers, SlowReaderError

# Each step writes about 100 KB, far more in all than the sockets of both sides take.
TALK = {"prompt": "x", "n": 64, "max_tokens": 30, "logprobs": 20, "ignore_eos": True}


@contextlib.contextmanager
def talkative(**server: Any) -> Iterator[Live]:
    scheduler = {"max_num_seqs": 64, "max_num_batched_tokens": 256}
    cache = {"num_blocks": 8192}
    engine = make_engine(server=server, scheduler=scheduler, cache=cache)
    with live(engine, send_buffer=16384) as served:
        yield served


@contextlib.contextmanager
def deaf(served: Live, **body: Any) -> Iterator[socket.socket]:
    """A client that has sent a request and does not read."""
    host, _, port = served.base_url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(20)
        client.connect((host, int(port)))
        content = json.dumps({**TALK, **body}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        head += f"Content-Length: {len(content)}\r\n"
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
        yield client


def everything(client: socket.socket, piece: int = 1 << 16) -> bytes:
    """All that still comes; a reset is an end as well."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(piece):
            received += data
    return bytes(received)


@pytest.mark.parametrize("stream", [True, False])
def test_a_reader_that_stalls_is_cut_off(stream: bool) -> None:
    with talkative(stream_stall_timeout_s=0.3, request_timeout_s=60) as served:
        with deaf(served, stream=stream) as client:
            wait_for(lambda: served.state.readers.num_cut_off == 1, 60)
            wait_for(lambda: served.bridge.num_open == 0)
            received = everything(client)  # what was under way, but never the end
            assert not received.endswith((b"[DONE]\n\n\r\n0\r\n\r\n", b"}"))
        served.wait_idle()
        assert served.complete(max_tokens=1)
        assert "tinyserve:slow_readers_total 1.0" in served.client.get("/metrics").text


def test_a_stalled_reader_is_given_up_before_its_time_when_too_much_waits() -> None:
    with (
        talkative(stream_stall_timeout_s=60, stream_buffer_size="256KiB") as served,
        deaf(served, stream=True) as client,
    ):
        wait_for(lambda: served.bridge.num_open == 1)
        (mailbox,) = set(served.bridge._mailboxes.values())
        wait_for(lambda: served.bridge.num_open == 0, 60)
        served.wait_idle()  # long before the client is cut off
        assert mailbox._size < (256 << 10) + 64 * 25 * 200  # the bound and one step
        assert served.complete(max_tokens=1)
        text = everything(client).decode()  # it reads after all: an error, and no [DONE]
        assert "was not read fast enough" in text
        assert "[DONE]" not in text


def test_a_time_out_frees_the_blocks_of_a_stalled_reader() -> None:
    with (
        talkative(request_timeout_s=0.4, stream_buffer_size="1GiB") as served,
        deaf(served, stream=True, max_tokens=100),
    ):
        wait_for(lambda: served.bridge.num_open == 1)
        wait_for(lambda: served.bridge.num_open == 0)
        served.wait_idle()
        assert served.state.readers.num_cut_off == 0  # it still may read its error


def test_a_reader_that_is_merely_slow_gets_everything() -> None:
    body = {"n": 8, "max_tokens": 25, "seed": 5, "stream": True}
    with talkative(stream_buffer_size="64MiB") as served:
        with deaf(served, **body) as client:
            wait_for(lambda: served.bridge.num_open == 1)
            received = bytearray()
            while not received.endswith(b"0\r\n\r\n"):
                received += client.recv(1500)
        pieces = received.split(b"\r\n\r\n", 1)[1].split(b"\r\n")
        text = b"".join(pieces[1:-3:2]).decode()
        whole = served.post("/v1/completions", **{**TALK, **body}).text
        assert len(sse_events(text)) == len(sse_events(whole))
        assert served.state.readers.num_cut_off == 0


# -- the parts ------------------------------------------------------------------------------------


def output(text: str = "", num_scores: int = 0) -> RequestOutput:
    scores = [SampledToken(1, -1.0, 1, [(1, -1.0)] * 20) for _ in range(num_scores)]
    return RequestOutput("r", 0, [1], text, 1, 0, logprobs=scores)


def test_a_mailbox_is_bounded_only_while_it_is_held() -> None:
    full: list[bool] = []
    mailbox = Mailbox(4096, lambda: full.append(True))
    for _ in range(1000):
        mailbox.put(output("abc"))
    assert not full
    taken = asyncio.run(mailbox.take())
    assert len(taken) == 1000
    mailbox.is_held = True
    for _ in range(1000):
        mailbox.put(output("abc"))
    mailbox.put(Signal.GONE)
    assert full == [True]
    taken = asyncio.run(mailbox.take())
    assert taken[-1] is Signal.GONE
    assert len(taken) < 20


def test_estimated_bytes_grow_with_what_is_in_an_output() -> None:
    assert estimated_bytes(output("x" * 1000)) > estimated_bytes(output("x")) + 999
    assert estimated_bytes(output(num_scores=100)) > 100 * 20 * 48


class Client:
    """The other end of an outlet: takes messages until it is told to stall."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.may_take = asyncio.Event()
        self.may_take.set()

    async def send(self, message: Any) -> None:
        await self.may_take.wait()
        self.taken.append(message)


@pytest.mark.parametrize("can_abort", [True, False])
def test_a_stalled_send_ends_with_or_without_the_servers_help(can_abort: bool) -> None:
    aborted: list[bool] = []
    scope = {"extensions": {ABORT: lambda: aborted.append(True)}} if can_abort else {}

    async def scenario() -> None:
        client, waits = Client(), list[bool]()
        readers = Readers(stall_timeout_s=0.01, buffer_size=1)
        outlet = Outlet(client.send, scope, readers, on_wait=waits.append)
        await outlet.write(b"a")
        client.may_take.clear()
        with pytest.raises(SlowReaderError):
            await outlet.write(b"b")
        assert readers.num_cut_off == 1
        assert waits == [True, False, True, False]
        await asyncio.sleep(0)  # the task itself goes on
        assert [m["body"] for m in client.taken] == [b"a"]

    asyncio.run(scenario())
    assert aborted == [True] * can_abort


def test_a_cancelled_send_is_cancelled_and_not_slow() -> None:
    async def scenario() -> None:
        client = Client()
        client.may_take.clear()
        readers = Readers(stall_timeout_s=60, buffer_size=1)
        task = asyncio.create_task(Outlet(client.send, {}, readers).write(b"a"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert readers.num_cut_off == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("is_last", [True, False])
def test_long_bodies_go_out_in_pieces(size: int, is_last: bool) -> None:
    async def scenario() -> list[Any]:
        client = Client()
        outlet = Outlet(client.send, {}, Readers(60, 1))
        await outlet.write(bytes(i % 251 for i in range(size)), is_last=is_last)
        return client.taken

    sent = asyncio.run(scenario())
    assert b"".join(m["body"] for m in sent) == bytes(i % 251 for i in range(size))
    assert all(len(m["body"]) <= PIECE for m in sent)
    assert [m["more_body"] for m in sent] == [True] * (len(sent) - 1) + [not is_last]
