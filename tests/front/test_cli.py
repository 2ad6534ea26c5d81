"""The command line: its options, its one-line errors, and the commands over a fake model."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.fake_service import make_engine, runner_of

from tinyserve import cli
from tinyserve.cli import chat, doctor, generate, main
from tinyserve.cli.options import build_parser, configuration, sampling_fields
from tinyserve.config import ServerConfig, TinyServeConfig, all_settings
from tinyserve.engine.llm import LLM
from tinyserve.errors import ConfigError, EngineDeadError
from tinyserve.server.listen import listening


def parse(*argv: str) -> TinyServeConfig:
    return configuration(build_parser().parse_args(argv))


def test_nothing_given_is_the_defaults() -> None:
    assert parse("serve") == TinyServeConfig()


def test_options_of_every_kind() -> None:
    config = parse(
        *("serve", "some/model", "--dtype", "bfloat16", "--no-enable-prefix-caching"),
        *("--kv-cache-memory", "1GiB", "--api-key", "a", "--api-key", "b,c"),
        *("--scheduling-policy", "fcfs", "--shutdown-timeout", "0", "--max-model-len", "auto"),
        *("--override-generation-config", '{"temperature": 0}'),
    )
    assert config.model.name == "some/model"
    assert config.model.dtype == "bf16"
    assert config.cache.enable_prefix_caching is False
    assert config.cache.kv_cache_memory == 1 << 30
    assert config.server.api_key == ("a", "b", "c")
    assert config.scheduler.policy == "continuous"
    assert config.scheduler.max_model_len is None
    assert config.server.shutdown_timeout_s == 0
    assert config.model.override_generation_config == {"temperature": 0}


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {name: from-file}\nserver: {port: 1}\n")
    config = parse("serve", "--config", str(path), "--port", "2")
    assert (config.model.name, config.server.port) == ("from-file", 2)
    assert parse("serve", "given", "--config", str(path)).model.name == "given"


def test_every_setting_has_an_option_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for declared in all_settings():
        assert declared.flags[0] in text
    for section in ("model", "cache", "scheduler", "spec", "server"):
        assert f"{section} settings:" in text


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["serve", "--port", "x"], "server.port must be an integer from 0 to 65535, got 'x'"),
        (["serve", "--config", "/nope.yaml"], "/nope.yaml"),
        (["serve", "a", "--model", "b"], "two models"),
        (["serve", "--speculative-method", "draft_model"], "spec.draft_model"),
        (["serve", "--speculative-config", "{"], "spec.speculative_config must be a mapping"),
        (["serve", "--block-size", "3"], "cache.block_size"),
        (["generate", "x", "--model", "/no/such/model"], "/no/such/model"),
        (["generate", "x", "--dtype", "f31"], "(from --dtype)"),
        (["chat", "/no/such/model"], "/no/such/model"),
        (["serve", "--api-key", ""], "server.api_key is given, but empty (from --api-key)"),
        (["serve", "--api-key", "a", "--api-key", " , "], "server.api_key is given, but empty"),
        (["serve", "--served-model-name", ""], "server.served_model_name is given, but empty"),
        (["serve", "--api-key-file", ""], "api_key_file is given, but empty (from --api-key-file)"),
        (["serve", "--ssl-certfile", " "], "server.ssl_certfile is given, but empty"),
        (["serve", "--uds", ""], "server.uds is given, but empty"),
        (["chat", "--chat-template", ""], "model.chat_template is given, but empty"),
        (
            ["serve", "--served-model-name", "caf\udce9"],
            "server.served_model_name must be a string",
        ),
        (["serve", "--api-key", "caf\udce9"], "server.api_key must be a string"),
        (["serve", "--host", ""], "server.host must not be empty"),
        (["serve", "--max-model-len", "1"], "an integer from 2 to 16777216"),
        (["serve", "--kv-cache-memory", "9" * 400], "cache.kv_cache_memory must be a size"),
        (["serve", "--kv-cache-memory", "9" * 400 + "GiB"], "cache.kv_cache_memory must be a size"),
        (["serve", "--speculative-config", "[" * 100_000], "must be a mapping"),
        (["serve", "--max-num-seqs", "9" * 5000], "scheduler.max_num_seqs must be an integer"),
        (
            ["generate", "x", "--model", "synthetic", "--chat-template", "a\n{{ x"],
            "chat_template: unexpected end of template",
        ),
        (
            ["serve", "--config", "/no/such/file"],
            "configuration file '/no/such/file': No such file or directory\n",
        ),
        (
            ["serve", "--speculative-method", "draft_model"],
            "spec.method draft_model needs spec.draft_model",
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tinyserve: ")
    assert named in captured.err
    assert captured.err.count("\n") == 1


def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (["serve", "--prot", "1"], "unrecognized arguments: --prot (did you mean '--port'?)"),
        (["serve", "--prot=1"], "(did you mean '--port'?)"),
        (["serve", "--enable-lora"], "arguments: --enable-lora; tinyserve serve --help lists all"),
        (["chat", "a", "b"], "tinyserve chat: error: unrecognized arguments: b;"),
        (["--prot"], "tinyserve: error: unrecognized arguments: --prot;"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_sampling_options() -> None:
    argv = ["generate", "x", "--temperature", "0", "--stop", "a", "--stop", "b", "--ignore-eos"]
    fields = sampling_fields(build_parser().parse_args(argv))
    assert fields == {"temperature": 0.0, "stop": ["a", "b"], "ignore_eos": True}


def llm_that_says(text: str) -> LLM:
    engine = make_engine()
    runner_of(engine).says(text)
    return LLM.from_engine(engine)


def test_generate_writes_the_completion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyserve.engine.llm.LLM", lambda config: llm_that_says("well then"))
    assert main(["generate", "hello"]) == 0
    assert capsys.readouterr().out == "well then\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert main(["generate", "--max-tokens", "2"]) == 0
    assert capsys.readouterr().out == "we\n"
    assert main(["generate", "hello", "--temperature", "-1"]) == 2
    assert "temperature" in capsys.readouterr().err
    assert generate.DEFAULT_MAX_TOKENS > 16


def test_terminals_and_files_that_cannot_take_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyserve.engine.llm.LLM", lambda config: llm_that_says("caf\u00e9"))
    with monkeypatch.context() as patched:
        ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        patched.setattr(sys, "stdout", ascii_only)
        assert main(["generate", "hello"]) == 0
        ascii_only.flush()
        assert ascii_only.buffer.getvalue() == b"caf?\n"
    if Path("/dev/full").exists():
        with monkeypatch.context() as patched, open("/dev/full", "wb", buffering=0) as full:
            patched.setattr(sys, "stdout", io.TextIOWrapper(full, write_through=True))
            assert main(["generate", "hello"]) == 1
            assert "No space left" in capsys.readouterr().err


def test_input_that_is_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stdin, said in (
        (None, "no prompt"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"), "the input is not utf-8"),
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["generate"]) == 2
        assert said in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["chat"]) == 2
    assert "nothing to read from" in capsys.readouterr().err


def talk(monkeypatch: pytest.MonkeyPatch, llm: LLM, *lines: Any, system: str | None = None) -> Any:
    """Feed lines (or exceptions) to the chat; the conversation afterwards."""
    answers = iter(lines)

    def read(prompt: str = "") -> str:
        line = next(answers, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr("builtins.input", read)
    conversation = chat.Conversation(system)
    chat.talk(llm, conversation, {"max_tokens": 200})
    return conversation


def test_chat_keeps_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_that_says("well")
    conversation = talk(monkeypatch, llm, "hello", "", "again", system="be brief")
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert capsys.readouterr().out == "well\nwell\n"


def test_chat_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    llm = llm_that_says("well")
    conversation = talk(monkeypatch, llm, "hello", "/reset", "/help", "/quit", "never read")
    assert conversation.messages == []
    assert "/reset" in capsys.readouterr().out


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = llm_that_says("a" * 100)
    runner = runner_of(llm.engine)
    run = runner.run

    def interrupted(plan: Any) -> Any:
        if runner.steps == 5:
            runner.steps += 1
            raise KeyboardInterrupt
        return run(plan)

    monkeypatch.setattr(runner, "run", interrupted)
    conversation = talk(monkeypatch, llm, "hello", KeyboardInterrupt(), "again")
    texts = [m["content"] for m in conversation.messages if m["role"] == "assistant"]
    assert texts == ["aaaaa", "a" * 100]
    assert "[stopped]" in capsys.readouterr().out


def test_a_message_that_is_too_long_is_forgotten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = talk(monkeypatch, llm_that_says("ok"), "x" * 2000, "short")
    assert [m["content"] for m in conversation.messages] == ["short", "ok"]
    assert "maximum context length" in capsys.readouterr().err


def test_doctor_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in (
        "python",
        "processor",
        "compiler",
        "kernels",
        "back end",
        "threads",
        "default model",
    ):
        assert name in text


def test_doctor_without_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinyserve.kernels import abi

    def missing() -> Any:
        raise OSError("the native kernels were not built")

    monkeypatch.setattr(abi, "variants", missing)
    found = dict(doctor.findings())
    assert "not built" in found["kernels"]
    assert "pip install -v" in found["kernels"]
    assert found["back end"].startswith("numpy")


def test_doctor_names_every_dependency() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    declared = project.partition("\ndependencies = [\n")[2].partition("\n]\n")[0]
    names = re.findall(r'"([\w-]+)', declared)
    assert "numpy" in names
    assert [shown.split()[0] for shown in dict(doctor.findings())["packages"].split(", ")] == names


def test_doctor_with_a_cache_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYSERVE_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert dict(doctor.findings())["cache folder"] == f"{tmp_path} (may not be written)"
    monkeypatch.setenv("TINYSERVE_CACHE", "~no such user/cache")
    assert "TINYSERVE_CACHE must name" in dict(doctor.findings())["cache folder"]


def run_server(*argv: str, redirected: str = "") -> tuple[subprocess.Popen[str], str]:
    """A server process on a free port, and its URL once it is ready; `redirected` as in a shell."""
    env = {**os.environ, "TINYSERVE_BACKEND": "numpy", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", *argv, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "ready: " in line:
            assert "back end: numpy" in lines[0]
            return process, line.split("ready: ")[1].strip()
    raise AssertionError("".join(lines))


@pytest.mark.parametrize(
    ("argv", "number", "redirected"),
    [
        (("tinyserve", "serve", "synthetic"), signal.SIGTERM, ""),
        (("tinyserve.server.app", "--model", "synthetic"), signal.SIGINT, ""),
        # libuv aborts the process where one of its own files gets a number below 3
        (("tinyserve", "serve", "synthetic"), signal.SIGTERM, "<&-"),
    ],
)
def test_serving_from_the_command_line_until_a_signal(
    argv: tuple[str, ...], number: int, redirected: str
) -> None:
    process, url = run_server(*argv, "--max-model-len", "64", redirected=redirected)
    try:
        answer = httpx.post(f"{url}/completions", json={"prompt": "so", "max_tokens": 2})
        assert answer.status_code == 200
        process.send_signal(number)
        assert process.wait(15) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_server_is_there_ends_it_at_once(number: int) -> None:
    """Also in a callback of an import, where an exception would be lost and a lock stay locked."""
    program = f"""
import os, signal, sys, weakref
from tinyserve.cli import main

class Module: pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "tinyserve.server.run":
            module = Module()
            lock = weakref.ref(module, lambda _: os.kill(os.getpid(), {int(number)}))
            del module
            sys.exit(9)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.exit(main(["serve", "synthetic", "--port", "0"]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (run.returncode, run.stderr.decode().count("Traceback")) == (0, 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- 2>&-"])
def test_any_standard_stream_may_be_closed(closed: str) -> None:
    command = f'exec "{sys.executable}" -m tinyserve generate x --model synthetic {closed}'
    env = {**os.environ, "TINYSERVE_BACKEND": "numpy"}
    run = subprocess.run(
        ["sh", "-c", f"{command} --max-tokens 2"], capture_output=True, env=env, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, b"")


def test_a_dead_engine_is_worth_another_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Supervisors are told not to try again after exit code 2 (deploy/tinyserve.service)."""

    def run(*_: object) -> int:
        raise EngineDeadError("the engine has stopped: why")

    monkeypatch.setattr(cli, "run_command", run)
    assert main(["serve"]) == 1
    assert capsys.readouterr().err == "tinyserve: the engine has stopped: why\n"


@pytest.mark.parametrize(
    "error",
    [MemoryError(), MemoryError("Unable to allocate 9 GiB"), OSError(errno.ENOMEM, "no memory")],
)
def test_memory_that_does_not_suffice_is_one_clear_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As under `ulimit -v`, or without overcommitment."""

    def run(*_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "run_command", run)
    assert main(["generate", "x"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("tinyserve: out of memory (")
    assert "--num-blocks" in said
    assert said.count("\n") == 1


def test_a_model_that_cannot_be_loaded_ends_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    argv = [sys.executable, "-m", "tinyserve", "serve", "/no/such/model", "--port", "0"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "tinyserve: model '/no/such/model' was not found" in run.stderr
    assert "Traceback" not in run.stderr
    assert time.monotonic() - started < 60


def test_a_port_is_taken_before_the_model_loads() -> None:
    """A second server started at the same time must not load its model first, and then fail."""
    with listening(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"server\.port.*{port}"),
            listening(ServerConfig(port=port)),
        ):
            pass
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass  # it waits in the queue of the socket until the server is there


V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))


@pytest.mark.parametrize(("found", "family"), [([V6, V4], socket.AF_INET), ([V6], V6[0])])
def test_a_name_may_be_of_either_kind_of_address(
    found: list[Any], family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with listening(ServerConfig(host="some.name", port=0)) as listener:
        assert listener.family == family


def test_a_taken_port_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = TinyServeConfig.from_dict({"server": {"port": port}})
        with (
            pytest.raises(ConfigError, match=rf"server\.port.*{port}: .* \(another program"),
            listening(config.server),
        ):
            pass
