"""What is logged: one format for all lines, a line per request on demand, throughput while busy."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok, wait_for

from tinyserve.engine.request import EngineStats
from tinyserve.logs import JSONFormatter, TextFormatter
from tinyserve.server.observe.log import ThroughputLog

PROMPT = "a secret that nobody should read"


def record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("tinyserve.x", logging.INFO, "file", 1, message, args, None)
    made.__dict__.update(extra)
    return made


def test_json_lines_hold_message_and_fields() -> None:
    fields = {"id": "r1", "tokens": 3, "message": "not this", "odd": {"é\n"}}
    line = JSONFormatter().format(record("hello %s", "wörld\n2", fields=fields))
    assert "\n" not in line
    value = json.loads(line)
    assert value.pop("time").endswith("+00:00")
    assert value == {
        "level": "info",
        "logger": "tinyserve.x",
        "message": "hello wörld\n2",
        "id": "r1",
        "tokens": 3,
        "odd": str({"é\n"}),
    }


def test_json_lines_hold_exceptions() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        info = sys.exc_info()
    value = json.loads(JSONFormatter().format(record("failed", exc_info=info)))
    assert value["exception"].splitlines()[-1] == "ValueError: broken"


def test_text_lines_show_fields_after_the_message() -> None:
    fields = {"id": "r1", "n": 3, "prompt": 'say "hi" =\n', "none": None, "empty": ""}
    line = TextFormatter().format(record("request ended", fields=fields))
    assert line.endswith(r'INFO request ended id=r1 n=3 prompt="say \"hi\" =\n" none=null empty=""')
    assert TextFormatter().format(record("plain %d", 7)).endswith("INFO plain 7")


# -- a line per request ------------------------------------------------------------------------


@contextlib.contextmanager
def logged(caplog: pytest.LogCaptureFixture, **server: Any) -> Iterator[Live]:
    with caplog.at_level("INFO"), live(make_engine(server=server)) as served:
        yield served


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.fields for r in caplog.records if r.name == "tinyserve.requests"]  # type: ignore[attr-defined]


def wait_for_lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    wait_for(lambda: len(lines(caplog)) >= count)
    return lines(caplog)


def test_requests_are_not_logged_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog) as served:
        served.complete(PROMPT, max_tokens=2)
        served.chat(PROMPT, max_tokens=2)
        served.client.get("/metrics")
    assert lines(caplog) == []
    assert PROMPT not in caplog.text


def test_one_line_for_a_request(caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog, log_requests=True) as served:
        body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "n": 2, "priority": 3}
        usage = served.client.post(
            "/v1/completions", json=body, headers={"x-client-id": "me"}
        ).json()["usage"]
        (line,) = wait_for_lines(caplog, 1)
    assert line["client"] == "id:me"
    assert line["finish_reason"] == "length,length"
    assert (line["prompt_tokens"], line["output_tokens"]) == (usage["prompt_tokens"], 8)
    assert (line["n"], line["priority"]) == (2, 3)
    assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["total_s"]
    assert line["tokens_per_s"] > 0
    assert "prompt" not in line
    assert PROMPT not in caplog.text


def test_the_line_names_the_answer_that_the_client_has_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with logged(caplog, log_requests=True) as served:
        user = {"role": "user", "content": "hello"}
        answers = [
            served.complete(max_tokens=1),
            served.chat(max_tokens=1),
            ok(served.post("/v1/responses", input="hello", max_output_tokens=1)),
            ok(served.post("/v1/messages", messages=[user], max_tokens=1)),
        ]
        found = wait_for_lines(caplog, 4)
    prefixes = ("cmpl-", "chatcmpl-", "resp_", "msg_")
    assert all(a["id"].startswith(p) for a, p in zip(answers, prefixes, strict=True))
    assert [line["id"] for line in found] == [f"{answer['id']}-0" for answer in answers]


def test_pfx_09_the_line_shows_how_much_of_the_prompt_was_cached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PFX-09: the hit length of each turn, so that users find where histories part."""
    turn = list(range(100, 140))
    with logged(caplog, log_requests=True) as served:
        served.complete(turn, max_tokens=1)
        served.complete([*turn, *range(200, 210)], max_tokens=1)
        served.complete([99, *turn[1:]], max_tokens=1)
        cached = [line["cached_tokens"] for line in wait_for_lines(caplog, 3)]
    assert cached == [0, 40, 0]


def test_those_who_leave_have_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    with logged(caplog, log_requests=True) as served:
        served.runner.gate.clear()
        served.open({"prompt": "x", "max_tokens": 100, "n": 2, "stream": True, "ignore_eos": True})
        wait_for(lambda: served.runner.steps == 1)
        served.hang_up()
        wait_for(lambda: served.bridge.num_open == 0)
        served.runner.gate.set()
        (line,) = wait_for_lines(caplog, 1)
    assert line["finish_reason"] == "abort,abort"


@pytest.mark.parametrize(("limit", "shown"), [(None, PROMPT), (8, PROMPT[:8]), (0, "")])
def test_prompts_are_shown_only_when_asked_and_as_far(
    caplog: pytest.LogCaptureFixture, limit: int | None, shown: str
) -> None:
    with logged(caplog, log_requests=True, log_prompts=True, max_log_len=limit) as served:
        served.complete(PROMPT, max_tokens=1, add_special_tokens=False)
        (line,) = wait_for_lines(caplog, 1)
    assert line["prompt"] == shown


# -- throughput --------------------------------------------------------------------------------


def stats(**changes: Any) -> EngineStats:
    names = [f.name for f in dataclasses.fields(EngineStats)]
    zero: dict[str, Any] = dict.fromkeys(names, 0)
    return EngineStats(
        **{**zero, "num_accepted_per_position": (), "num_total_blocks": 10, **changes}
    )


def test_throughput_is_logged_every_ten_seconds_while_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = ThroughputLog(0.0, stats())
    busy = stats(
        num_steps=50,
        num_prompt_tokens=1000,
        num_generation_tokens=200,
        num_running=3,
        num_waiting=1,
        num_free_blocks=5,
        num_cached_blocks=1,
        num_prefix_query_tokens=1000,
        num_prefix_hit_tokens=250,
        num_draft_tokens=40,
        num_accepted_tokens=10,
    )
    with caplog.at_level("INFO"):
        log.tick(9.9, busy, 0)
        assert caplog.messages == []
        log.tick(10.0, busy, 2)
    assert caplog.messages == [
        "prompt 100.0 tokens/s, generation 20.0 tokens/s, running 3, waiting 3, swapped 0, "
        "KV-cache in use 40.0%, prefix hits 25.0%, drafts accepted 25.0%"
    ]


def test_an_idle_server_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    log = ThroughputLog(0.0, stats())
    idle = stats(num_steps=7, num_generation_tokens=100)
    with caplog.at_level("INFO"):
        log.tick(10.0, idle, 0)  # it was busy since the last line
        for second in range(11, 100):
            log.tick(float(second), idle, 0)
    assert len(caplog.messages) == 1
    assert "generation 10.0 tokens/s" in caplog.messages[0]


def test_a_stuck_queue_is_not_idle(caplog: pytest.LogCaptureFixture) -> None:
    log = ThroughputLog(0.0, stats())
    with caplog.at_level("INFO"):
        log.tick(10.0, stats(), 1)
    assert len(caplog.messages) == 1


# -- the whole program -------------------------------------------------------------------------


def test_the_last_line_of_a_server_that_cannot_start_is_json_too() -> None:
    command = [sys.executable, "-m", "tinyserve", "serve", "/no/such/model", "--port", "0"]
    run = subprocess.run([*command, "--log-format", "json"], capture_output=True, timeout=60)
    assert run.returncode == 2
    last = json.loads(run.stderr.splitlines()[-1])
    assert last["level"] == "error"
    assert "'/no/such/model' was not found" in last["message"]


def test_json_lines_are_utf8_whatever_the_locale() -> None:
    """Of a stream in ASCII or Latin-1, Python writes \\xe9 for \u00e9, which is no JSON."""
    command = [sys.executable, "-m", "tinyserve", "serve", "/no/such/mod\u00e9l", "--port", "0"]
    run = subprocess.run(
        [*command, "--log-format", "json"],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert "mod\u00e9l" in json.loads(run.stderr.splitlines()[-1])["message"]


def test_every_line_of_a_server_is_json() -> None:
    """The web server's own lines too."""
    command = [sys.executable, "-m", "tinyserve", "serve", "--model", "synthetic", "--port", "0"]
    command += ["--log-format", "json", "--enable-log-requests", "--access-log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(process.stderr or ()), daemon=True)
    reader.start()
    try:
        wait_for(lambda: any("http://" in line for line in found), timeout=60)
        ready = next(line for line in found if "http://" in line)
        port = int(ready.partition("http://127.0.0.1:")[2].split("/")[0].split('"')[0])
        body = {"prompt": PROMPT, "max_tokens": 2}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body).status_code == 200
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert b"400" in connection.recv(1000)
        wait_for(lambda: any("request ended" in line for line in found))
    finally:
        process.terminate()
        process.wait(30)
        reader.join(60)
        process.stderr.close()
    values = [json.loads(line) for line in found]
    loggers = {value["logger"] for value in values}
    assert {"tinyserve.requests", "uvicorn.error", "uvicorn.access"} <= loggers
    assert not [value for value in values if PROMPT in json.dumps(value)]
