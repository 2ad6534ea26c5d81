"""The load generator against a real server over a fake model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import live

from tinyserve.bench.http_stream import post
from tinyserve.bench.loadgen import main


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_every_request_is_answered_in_full(endpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    with live(make_engine()) as server:
        main(
            [
                *("--url", server.base_url, "--endpoint", endpoint, "--rate", "200"),
                *("--num-requests", "12", "--prompt", "4-9", "--output", "3-8"),
                *("--quiet", "--out", str(out)),
            ]
        )
    found = json.loads(out.read_text())
    assert (found["requests"], found["failed"]) == (12, 0)
    assert 36 <= found["output_tokens"] <= 96


def test_a_trace_says_when_and_how_much(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"at": 0.05, "prompt_tokens": 5, "output_tokens": 4}, {"at": 0, "prompt_tokens": 6}]
    lines[1]["output_tokens"] = 7
    trace.write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / "load.json"
    with live(make_engine()) as server:
        main(["--url", server.base_url, "--trace", str(trace), "--quiet", "--out", str(out)])
    assert json.loads(out.read_text())["output_tokens"] == 11


def test_failures_are_told_and_fail_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live(make_engine()) as server, pytest.raises(SystemExit, match="1"):
        main(
            [
                *("--url", server.base_url, "--num-requests", "3", "--rate", "100"),
                *("--prompt", "600", "--quiet"),
            ]
        )
    shown = capsys.readouterr().out
    assert "x HTTP 400" in shown
    assert "maximum context length" in shown


def test_a_server_that_never_answers_is_given_up() -> None:
    async def wait_in_vain() -> None:
        accepted: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, w: accepted.append(w), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            await post(f"http://127.0.0.1:{port}/v1/completions", {}, {}, 0.05)
        finally:
            for writer in accepted:
                writer.close()
            server.close()
            await server.wait_closed()

    with pytest.raises(TimeoutError):
        asyncio.run(wait_in_vain())
