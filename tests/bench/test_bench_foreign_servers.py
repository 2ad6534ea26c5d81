"""The load generator against servers that others wrote, as odd as they come."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyserve.bench.common import run_program
from tinyserve.bench.http_stream import Answer, post
from tinyserve.bench.latency import SLO, Record, percentile, summary
from tinyserve.bench.loadgen import main, read_trace
from tinyserve.bench.served import free_port, serving
from tinyserve.bench.target import Target, first_model
from tinyserve.bench.workload import Arrival
from tinyserve.errors import ConfigError

STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 4}


def event(chunk: Any) -> str:
    return f"data: {json.dumps(chunk)}\n\n"


def piece(text: str = "w", **more: Any) -> str:
    return event({"choices": [{"index": 0, "text": text, **more}]})


def delta(**fields: Any) -> str:
    return event({"choices": [{"index": 0, "delta": fields}]})


@contextlib.contextmanager
def server(*parts: str) -> Iterator[str]:
    """Answers each connection with the parts, one write each, and closes it; its URL."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            for part in parts:
                connection.sendall(part.encode())

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def load(parts: Sequence[str], out: Path, endpoint: str = "completions") -> dict[str, Any]:
    """The result of two requests."""
    with server(*parts) as url:
        main(
            [
                *("--url", url, "--model", "m", "--endpoint", endpoint, "--num-requests", "2"),
                *("--rate", "1000", "--quiet", "--allow-failures", "--out", str(out)),
            ]
        )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


FOUR = [piece() for _ in range(4)]
ANSWERS: dict[str, Sequence[str]] = {
    "plain": [*FOUR, DONE],
    "usage at the end": [piece("w w w"), piece(), event({"choices": [], "usage": USAGE}), DONE],
    "usage in every piece": [
        *[
            event({"choices": [{"text": "w"}], "usage": {**USAGE, "completion_tokens": n}})
            for n in (1, 2, 3, 4)
        ],
        DONE,
    ],
    "usage null": [*FOUR, event({"choices": [], "usage": {"completion_tokens": None}}), DONE],
    "usage without the prompt": [
        event({"choices": [], "usage": {"completion_tokens": 4}}),
        *FOUR,
        DONE,
    ],
    "comments and pings": [
        ": hold the line\n\n",
        *FOUR,
        ":\n\n",
        "event: ping\ndata: {}\n\n",
        DONE,
    ],
    "no choices": [event({"choices": None}), event({"choices": []}), *FOUR, DONE],
    "no object": ["data: 5\n\n", *FOUR, DONE],
    "an error that is none": [event({"choices": [{"text": "w"}], "error": None})] * 4 + [DONE],
    "CRLF": [part.replace("\n", "\r\n") for part in (*FOUR, DONE)],
    "CR": [part.replace("\n", "\r") for part in (*FOUR, DONE)],
    "one byte at a time": [*"".join(FOUR).replace("\n", "\r\n"), DONE],
    "data in several lines": [
        *[part.replace(', "text"', ',\ndata: "text"') for part in FOUR],
        DONE,
    ],
    "no DONE": [*FOUR, piece("", finish_reason="length")],
    "no empty line after DONE": [*FOUR, "data: [DONE]"],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_odd_stream_is_read(name: str, tmp_path: Path) -> None:
    found = load([STREAM, *ANSWERS[name]], tmp_path / "load.json")
    assert (found["failed"], found["output_tokens"]) == (0, 8)


def test_headers_know_no_case(tmp_path: Path) -> None:
    head = STREAM.replace("text/event-stream", "Text/Event-Stream; charset=UTF-8")
    assert load([head, *FOUR, DONE], tmp_path / "load.json")["failed"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "w"},
        {"reasoning_content": "w", "content": None},
        {"reasoning": "w"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_all_that_a_model_wrote_counts(fields: dict[str, Any], tmp_path: Path) -> None:
    parts = [delta(role="assistant", content=""), *[delta(**fields)] * 4, DONE]
    found = load([STREAM, *parts], tmp_path / "load.json", "chat")
    assert (found["failed"], found["output_tokens"]) == (0, 8)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([STREAM, *FOUR], "the stream ended early"),
        ([STREAM, DONE], "the stream had no text"),
        ([STREAM, piece(), event({"error": {"message": "boom"}})], '{"message": "boom"}'),
        ([STREAM, piece(), event({"object": "error", "code": 5})], '{"object": "error"'),
        (
            [STREAM, piece(), piece("", finish_reason="abort"), DONE],
            "the stream ended with finish_reason abort",
        ),
        ([STREAM, piece(), "data: {\n\n"], "JSONDecodeError"),
        ([], "the connection was closed without an answer"),
        (["\0garbage\r\n\r\n"], "HttpParserError"),
        (
            ["HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"],
            "not a stream but application/json: {}",
        ),
        (
            ["HTTP/1.1 429 X\r\nContent-Type: text/event-stream\r\n\r\n", "data: slow down\n\n"],
            "HTTP 429: data: slow down",
        ),
    ],
)
def test_failures_are_told_apart(
    parts: Sequence[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(parts, tmp_path / "load.json")["failed"] == 2
    assert f"2 x {said}" in capsys.readouterr().out


def test_fields_beyond_openais_can_be_left_out() -> None:
    """Some servers refuse what they do not know."""

    def fields(**options: Any) -> set[str]:
        target = Target("http://x", model="m", **options)
        return set(target._body(Arrival(0.0, (1, 2, 3, 4), 5), 0))

    known = {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert fields() == {*known, "ignore_eos"}
    assert fields(ignore_eos=False) == known


def test_pieces_are_not_taken_for_tokens_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load([STREAM, *FOUR, DONE], tmp_path / "load.json")
    assert "each piece counts as one" in capsys.readouterr().out
    load([STREAM, *FOUR, event({"choices": [], "usage": USAGE}), DONE], tmp_path / "load.json")
    assert "each piece counts as one" not in capsys.readouterr().out


def test_an_event_has_arrived_when_its_empty_line_has() -> None:
    """Wherever the network cuts the line's end: it is not stamped with the time of the next."""
    first_seen = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall((STREAM + "data: 1\r\n\r").encode())
            first_seen.wait(20)
            connection.sendall(b"\ndata: 2\r\n\r\n")

    async def ask() -> Answer:
        task = asyncio.create_task(post(f"http://127.0.0.1:{port}/", {}, {}, 20))
        await asyncio.sleep(0.1)
        moments.append(asyncio.get_running_loop().time())
        first_seen.set()
        return await task

    moments: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=answer)
        thread.start()
        answered = asyncio.run(ask())
        thread.join()
    (first, one), (second, two) = answered.events
    assert (one, two) == (b"1", b"2")
    assert second - first > 0, "not read at once"


@pytest.mark.parametrize(
    "body", ["<html></html>", "[]", '[{"id": "m"}]', '{"data": [{"name": "m"}]}', '{"data": 5}']
)
def test_what_is_no_list_of_models(body: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with server(head + body) as url, pytest.raises(ConfigError, match=r"/v1/models.*--model"):
        first_model(url)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"], "404"),
        (["HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"], "401"),
        ([], "without response"),
        (["garbage\r\n\r\n"], "no list of models"),
    ],
)
def test_models_that_cannot_be_asked_for(parts: Sequence[str], said: str) -> None:
    with server(*parts) as url, pytest.raises(ConfigError, match=said):
        first_model(url)


def test_proxies_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    body = '{"data": [{"id": "mine"}]}'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with server(head + body) as url:
        assert first_model(url) == "mine"
    port = free_port()
    program = (
        "import http.server as h, sys\n"
        "class Healthy(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "h.HTTPServer(('127.0.0.1', int(sys.argv[1])), Healthy).serve_forever()\n"
    )
    with serving([sys.executable, "-c", program, str(port)], port) as served:
        assert served.url.endswith(str(port))


def test_goodput_counts_tokens_rather_than_pieces() -> None:
    """Ten tokens in two pieces, half a second apart: 0.06 s a token."""
    record = Record(0.0, token_times=[0.1, 0.6], num_tokens=10)
    assert record.meets(SLO(1, 0.06))
    assert not record.meets(SLO(1, 0.05))
    assert not Record(0.0, token_times=[0.1, 0.6]).meets(SLO(1, 0.4))


def test_percentiles_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 50, 101):
        values = rng.exponential(size=size).tolist()
        for share in (0.5, 0.9, 0.99, 1.0):
            assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))
    records = [
        Record(at, token_times=(at + np.cumsum(rng.exponential(0.1, 5))).tolist())
        for at in np.cumsum(rng.exponential(0.2, 40)).tolist()
    ]
    found = summary(records, SLO(0.1, 0.1))
    gaps = np.concatenate([np.diff(r.token_times) for r in records])
    first = np.array([r.token_times[0] - r.arrived for r in records])
    for name, values in (("inter_token_s", gaps), ("ttft_s", first)):
        for share in ("p50", "p90", "p99"):
            assert found[name][share] == pytest.approx(np.percentile(values, int(share[1:])))
        assert found[name]["mean"] == pytest.approx(values.mean())
    duration = max(r.token_times[-1] for r in records) - records[0].arrived
    means = np.array([np.diff(r.token_times).mean() for r in records])
    good = ((first <= 0.1) & (means <= 0.1)).sum()
    assert found["goodput_requests_s"] == pytest.approx(good / duration)
    assert found["output_tok_s"] == pytest.approx(200 / duration)


LINE = '{"at": 0, "prompt_tokens": 9, "output_tokens": 2}'


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "[1, 2]",
        "5",
        '{"at": 0, "prompt_tokens": 3}',
        '{"at": -1, "prompt_tokens": 3, "output_tokens": 3}',
        '{"at": NaN, "prompt_tokens": 3, "output_tokens": 3}',
        '{"at": 0, "prompt_tokens": 3, "output_tokens": 0}',
        '{"at": 0, "prompt_tokens": null, "output_tokens": 3}',
    ],
)
def test_a_line_that_is_no_request_is_named(text: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{LINE}\n\n{text}\n")
    with pytest.raises(ConfigError, match="line 3"):
        read_trace(str(trace), 0)


def test_traces_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("empty", "bytes", "nowhere", "."):
        with pytest.raises(ConfigError, match="trace"):
            read_trace(str(tmp_path / name), 0)


def test_a_traces_words_are_the_seeds(tmp_path: Path) -> None:
    """Or a second run would find the server's prompt cache full of the first one's."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(LINE)
    first, again, other = (read_trace(str(trace), seed)[0].prompt_ids for seed in (0, 0, 1))
    assert first == again != other


def test_ctrl_c_keeps_what_was_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(self: Target, arrival: Arrival, number: int) -> Record:
        if number < 2:
            return Record(0.0, token_times=[0.5], num_tokens=1)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(3600)
        raise AssertionError("interrupted before")

    monkeypatch.setattr(Target, "ask", ask)
    trace, out = tmp_path / "trace.jsonl", tmp_path / "load.json"
    trace.write_text("\n".join(LINE.replace('"at": 0', f'"at": {at}') for at in (0, 0, 0.05, 3600)))
    arguments = ["--url", "http://127.0.0.1:9", "--model", "m", "--trace", str(trace), "--quiet"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            run_program(lambda: main([*arguments, "--out", str(out)]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    found = json.loads(out.read_text())
    assert (found["interrupted"], found["requests"], found["failed"]) == (True, 2, 0)
    assert "interrupted: 2 of 4" in capsys.readouterr().err
