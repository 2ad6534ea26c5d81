"""The comparison with peers, over a stand-in for llama.cpp's programs and a server of our own."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.native import require_native

from tinyserve.bench import ceilings, peers
from tinyserve.bench.common import command, without_folders
from tinyserve.bench.offline_cases import Case
from tinyserve.bench.peer_engines import LlamaCpp, PythonPeer, ServedPeer
from tinyserve.bench.peer_tables import served_ratios, served_table
from tinyserve.bench.served import free_port, serving

BATCHED = """| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
|----|----|---|------|--------|----------|--------|----------|-----|-------|
| 64 | 64 | 8 | 1024 | 1.000 | 100.00 | 2.000 | 250.50 | 3.0 | 300.0 |
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Programs that print what llama.cpp's would."""
    program(tmp_path / "llama-bench", json.dumps([{"avg_ts": 400.25}]))
    program(tmp_path / "llama-batched-bench", BATCHED)
    return tmp_path


def program(path: Path, printed: str) -> None:
    path.write_text(f"#!{sys.executable}\nprint({printed!r})\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_llama_cpp_figures_are_read(folder: Path) -> None:
    peer = LlamaCpp("llama.cpp", folder, Path("model.gguf"), 2)
    assert peer.offline(Case(8, 64, 64)) == 250.5
    assert peer.offline(Case(0, 512, 1)) == 400.25
    assert peer.serve(8123, 16, 512) is None  # there is no server in the folder


@pytest.mark.parametrize("told", ["-kvu, --kv-unified", "no such option"])
def test_llama_server_is_given_what_it_knows(folder: Path, told: str) -> None:
    program(folder / "llama-server", told)
    command = LlamaCpp("llama.cpp", folder, Path("model.gguf"), 2).serve(8123, 16, 512)
    assert command is not None
    assert {"8123", str(16 * 512)} <= set(command)
    assert ("-kvu" in command) == ("-kvu" in told)


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    failing = tmp_path / "llama-bench"
    program(failing, "")
    failing.write_text(failing.read_text() + "raise SystemExit('no such model')\n")
    with pytest.raises(RuntimeError, match="no such model"):
        LlamaCpp("llama.cpp", tmp_path, Path("model.gguf"), 2).offline(Case(0, 512, 1))


def test_peers_are_named_on_the_command_line() -> None:
    llama = LlamaCpp.parse("ik Q4_0=/bin:/models/q4_0.gguf -rtr 1", 2)
    assert (llama.name, llama.folder, llama.model) == (
        "ik Q4_0",
        Path("/bin"),
        Path("/models/q4_0.gguf"),
    )
    assert llama.options == ("-rtr", "1")
    assert LlamaCpp.parse("/bin:q8_0.gguf", 2).name == "llama.cpp q8_0"
    python = PythonPeer.parse("OpenVINO int8=openvino=/ov/bin/python:/models/int8", 2)
    assert (python.name, python.engine, python.model) == (
        "OpenVINO int8",
        "openvino",
        Path("/models/int8"),
    )
    assert PythonPeer.parse("vllm=python:m", 2).name == "vllm"
    served = ServedPeer.parse("vllm=vllm serve m --port {port} --max-num-seqs {seats}")
    assert served.serve(5, 3, 64) == ["vllm", "serve", "m", "--port", "5", "--max-num-seqs", "3"]


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (lambda text: LlamaCpp.parse(text, 2), "model.gguf"),
        (lambda text: PythonPeer.parse(text, 2), "python:model"),
        (lambda text: PythonPeer.parse(text, 2), "vllm=model"),
        (ServedPeer.parse, "vllm=vllm serve m"),
    ],
)
def test_spellings_that_name_no_peer(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse(text)


def test_commands_are_shown_without_folders() -> None:
    parser = peers.options()
    args = parser.parse_args(
        [
            *("--llama", "x=/secret/bin:/secret/q4.gguf -rtr", "--model", "/secret/m.gguf"),
            *("--python-peer", "openvino=/secret/bin/python:/secret/int4"),
            *("--server", "s=/secret/bin/serve /secret/m --port {port}", "--streams", "1,8"),
        ]
    )
    shown = command(peers.MODULE, args, parser)
    assert "secret" not in shown
    assert "--llama 'x=bin:q4.gguf -rtr'" in shown
    assert "--python-peer openvino=python:int4" in shown
    assert "--streams 1,8" in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/a/b/m.gguf", "m.gguf"),
        ("~/b/folder/", "folder/"),
        ("../b/m.gguf", "m.gguf"),
        ("bin/m.gguf", "bin/m.gguf"),
        ("org/name", "org/name"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("torch=/a/bin/python", "torch=python"),
    ],
)
def test_folders_are_left_out(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_served_tables_by_hand() -> None:
    def found(speed: float, wait: float) -> dict[str, Any]:
        spread = {"p50": wait / 2, "p99": wait}
        return {
            "output_tok_s": speed,
            "failed": 0,
            **dict.fromkeys(("ttft_s", "inter_token_s", "e2e_s"), spread),
        }

    result = {"4/s": {"tinyserve": found(300.0, 0.5), "rival": found(100.0, 2.0)}}
    assert "| 4/s | rival | 100 | 1000 / 2000 |" in served_table(result)
    assert "| 4/s | rival | 3.00x | 25% | 25% | 25% |" in served_ratios(result)


def test_ratios_are_medians_of_pairs() -> None:
    assert peers.ratios({"tinyserve": [10.0, 40.0, 60.0], "x": [10.0, 20.0, 20.0]}) == {"x": 2.0}


def test_the_offline_comparison_from_end_to_end(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    require_native()
    monkeypatch.setattr(ceilings, "READ_BYTES", 1 << 20)
    out = tmp_path / "peers.json"
    peers.main(
        [
            *("--model", "synthetic", "--streams", "1"),
            *("--llama", f"rival={folder}:{tmp_path}/secret/model.gguf", "--new", "2"),
            *("--prompt", "4", "--prefill", "8", "--repeat", "1", "--out", str(out)),
        ]
    )
    result = json.loads(out.read_text())
    assert set(result["offline"]["medians"]) == {"decode 1", "prefill 8"}
    assert result["offline"]["medians"]["decode 1"]["rival"] == 250.5
    assert "secret" not in out.read_text()
    assert "| rival (ours over it) |" in capsys.readouterr().out
    shares = result["offline"]["shares"]
    assert set(shares) == {"decode 1", "prefill 8"}
    assert min(shares.values()) > 0


def test_a_server_that_fails_to_start_says_what_it_printed() -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(1)"]
    with pytest.raises(RuntimeError, match="no such model"), serving(command, free_port()):
        pass
