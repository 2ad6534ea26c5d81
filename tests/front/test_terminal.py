"""What people see in a terminal: the start-up summary, progress, help, and the chat's defaults."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_service import make_engine

from tinyserve.cli import chat, main, summary
from tinyserve.cli.options import build_parser, configuration
from tinyserve.cli.serve import wants_table
from tinyserve.config import ModelOptions, TinyServeConfig, all_settings
from tinyserve.engine.build import Engine, build_engine
from tinyserve.kernels.select import BackendChoice
from tinyserve.models import progress as progress_module
from tinyserve.models.default_model import chat_sampling
from tinyserve.models.progress import shown
from tinyserve.models.synthetic import synthetic_checkpoint

CHOICE = BackendChoice("native", "avx2", "the best here", 3, "as set")
URL = "http://127.0.0.1:8000"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stderr as a terminal of 120 columns that knows colours. Not a fixture: pytest puts its own
    stderr back between the set-up of a test and its call.
    """
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def said(engine: Engine) -> None:
    """The summary, waited for."""
    is_table = wants_table(engine.config.server)
    summary.announce(engine, URL, CHOICE, is_table=is_table)
    for thread in threading.enumerate():
        if thread.name == "tinyserve-summary":
            thread.join(20)


def test_a_terminal_gets_a_table_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    engine = build_engine(TinyServeConfig.from_dict({"model": {"name": "synthetic"}}))
    said(engine)
    text = re.sub(r"\x1b\[[0-9;]*m", "", stderr.getvalue())
    assert "\x1b[" in stderr.getvalue()
    for part in (
        "LlamaForCausalLM",
        "parameters",
        "f32",
        "KV-cache",
        "native (avx2): the best here",
        "of it in use",
        "3: as set",
        f"{URL}/v1",
        f"{URL}/docs",
        "ready",
    ):
        assert part in text
    assert f"{URL}/\n" in re.sub(r" +\n", "\n", text)
    for note in engine.notes:
        assert note.split(":")[0] in text


@pytest.mark.parametrize("variable", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_means_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: tuple[str, str],
) -> None:
    stderr = terminal(monkeypatch)
    assert wants_table(TinyServeConfig().server)
    monkeypatch.setenv(*variable)
    assert not wants_table(TinyServeConfig().server)
    with caplog.at_level(logging.INFO, "tinyserve"):
        said(make_engine())
    assert "\x1b" not in stderr.getvalue()
    messages = [record.getMessage() for record in caplog.records]
    assert messages[-1] == f"ready: {URL}/v1"
    assert f"page: {URL}/" in messages


@pytest.mark.parametrize("server", [{"log_format": "json"}, {"log_level": "error"}])
def test_log_settings_hold_on_a_terminal_too(
    monkeypatch: pytest.MonkeyPatch, server: dict[str, str]
) -> None:
    terminal(monkeypatch)
    assert wants_table(TinyServeConfig().server)
    assert not wants_table(TinyServeConfig.from_dict({"server": server}).server)


def test_pipes_get_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not wants_table(TinyServeConfig().server)


def test_an_open_server_is_pointed_out() -> None:
    def addresses(**server: Any) -> dict[str, str]:
        return dict(summary.address_rows(make_engine(server=server), URL))

    assert "open" not in addresses()
    assert "--api-key" in addresses(host="0.0.0.0")["open"]
    assert "open" not in addresses(host="0.0.0.0", api_key="secret")
    assert "open" not in addresses(host="0.0.0.0", api_key_file="/no/matter")
    assert "open" not in addresses(host="0.0.0.0", uds="/no/matter")
    assert "open" not in addresses(host="127.0.0.2")
    certificates = {"ssl_certfile": "c", "ssl_ca_certs": "a"}
    assert "open" in addresses(host="0.0.0.0", **certificates)
    assert "open" not in addresses(host="0.0.0.0", ssl_cert_reqs="required", **certificates)
    assert "page" not in addresses(web_page=False)
    assert "secret" not in str(addresses(host="0.0.0.0", api_key="secret"))


def test_parameters_are_counted_once() -> None:
    model = make_engine().model
    assert model is not None
    source = synthetic_checkpoint().tensors
    norms = [n for n in source.names() if "norm" in n]
    matrices = [n for n in source.names() if n not in norms]
    count = sum(source.weight(n).dequantize().size for n in matrices)
    count += sum(source.vector(n).size for n in norms)
    assert summary.parameters(model) == f"{count / 1000:.3g} k"
    large = dataclasses.replace(model, num_layers=30, hidden_size=576, vocab_size=49152)
    assert summary.parameters(large).endswith(" M")


def test_bars_are_drawn_only_for_what_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = terminal(monkeypatch)
    with shown(None) as report:
        report("loading weights", 1, 2, unit="layers")
    assert stderr.getvalue() == ""
    monkeypatch.setattr(progress_module, "MOMENT_S", 0.0)
    with shown(None) as report:
        report("loading weights", 1, 2, unit="layers")
        report("downloading", 5_000_000, 0)
        report("downloading", 6_000_000, 93_000_000)
    text = stderr.getvalue()
    assert "loading weights" in text
    assert "1 of 2 layers" in text
    assert "6 of 93 MB" in text


def test_logs_and_pipes_get_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress_module, "MOMENT_S", 0.0)
    with shown(None) as report:
        report("downloading", 1, 2)
    assert pipe.getvalue() == ""


def help_of(*argv: str) -> str:
    """The help as one line: argparse wraps it."""
    environment = {**os.environ, "COLUMNS": "200"}
    run = subprocess.run(
        [sys.executable, "-m", "tinyserve", *argv, "--help"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert run.returncode == 0
    return " ".join(run.stdout.split())


def test_help_has_groups_units_defaults_and_examples() -> None:
    text = help_of("serve")
    for declared in all_settings():
        if isinstance(declared.default, bool):
            assert f"(default: {'on' if declared.default else 'off'})" in text
        elif isinstance(declared.default, int | float) and declared.unit not in (None, "bytes"):
            number = f"{declared.default:.10g}"
            assert f"(default: {number} {declared.unit})" in text, declared.key
    assert "(default: 8.0 MiB)" in text
    assert "cache settings: The paged KV-cache." in text
    assert "examples: tinyserve serve " in text


def test_examples_of_the_help_are_command_lines_that_parse() -> None:
    import shlex

    found = 0
    for name in ("serve", "generate", "chat"):
        run = subprocess.run(
            [sys.executable, "-m", "tinyserve", name, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        examples = run.stdout.partition("examples:\n")[2]
        for line in examples.splitlines():
            command = re.split(r" {2,}| < ", line.strip())[0].partition("tinyserve ")[2]
            arguments = build_parser().parse_args(shlex.split(command))
            assert arguments.command == name
            if arguments.config is None:
                configuration(arguments)
            found += 1
    assert found >= 8


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "serve a model" in captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import tinyserve

    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tinyserve {tinyserve.__version__}\n"


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, {"temperature": 0.2, "top_p": 0.9}),
        ({"name": "other"}, {}),
        ({"generation_config": "none"}, {}),
        ({"override_generation_config": {"temperature": 0.7}}, {"top_p": 0.9}),
    ],
)
def test_the_chat_samples_as_the_default_models_card_says(
    options: dict[str, Any], want: dict[str, float]
) -> None:
    assert chat_sampling(ModelOptions(**options)) == want


def test_the_chat_says_how_it_samples_and_flags_win(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinyserve.engine.llm import LLM

    used: list[Any] = []
    monkeypatch.setattr(chat, "talk", lambda llm, conversation, fields: used.append(fields))
    monkeypatch.setattr("tinyserve.engine.llm.LLM", lambda config: LLM.from_engine(make_engine()))
    assert main(["chat", "--temperature", "0.5"]) == 0
    assert used == [{"temperature": 0.5, "top_p": 0.9}]
    assert "temperature 0.5, top_p 0.9" in capsys.readouterr().err


def test_the_api_keeps_its_defaults(tmp_path: Path) -> None:
    engine = make_engine()
    assert engine.intake.params({}).temperature == 1.0
    assert engine.intake.params({}).top_p == 1.0
