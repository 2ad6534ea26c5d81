"""The comparison with peers, over a stand-in for llama.cpp's programs and a server of our own."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from helpers.native import require_native

from tinyserve.bench import ceilings, peers
from tinyserve.bench.offline_cases import Case
from tinyserve.bench.peer_engines import LlamaCpp, PythonPeer
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
    command = peer.serve(8123, 16, 512)
    assert command is not None
    assert {"8123", str(16 * 512)} <= set(command)


def test_a_python_peer_without_a_server_is_not_served() -> None:
    peer = PythonPeer("vllm", Path("python"), "vllm", Path("model"), 2)
    assert peer.serve(1, 1, 1) is None
    served = PythonPeer(
        "vllm", Path("python"), "vllm", Path("m"), 2, "vllm serve {model} -p {port}"
    )
    assert served.serve(5, 1, 1) == ["vllm", "serve", "m", "-p", "5"]


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
    assert "--llama rival=DIR:model.gguf" in result["command"]
    assert "ratio to rival" in capsys.readouterr().out


def test_a_server_that_fails_to_start_says_what_it_printed() -> None:
    command = [sys.executable, "-c", "print('no such model'); raise SystemExit(1)"]
    with pytest.raises(RuntimeError, match="no such model"), serving(command, free_port()):
        pass
