"""Models from the hub, through the real `huggingface_hub` client and a hub of our own on loopback.

The client reads its settings when it is imported, so each download runs in a process of its own.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from helpers.shards import cut_into_shards
from helpers.tiny_gguf import write_tiny_gguf

from tinyserve.models.export import write_checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint

REPO, COMMIT = "org/tiny-model", "0123456789abcdef0123456789abcdef01234567"
OTHER_FORMATS = ("pytorch_model.bin", "onnx/model.onnx", "original/consolidated.00.pth")


@dataclass
class Hub:
    """What the fake serves, and what it was asked for: "METHOD file"."""

    files: dict[str, bytes]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    status: int = 200  # anything else is the answer to every request
    truncated: str | None = None  # the connection breaks in the middle of this file

    def downloaded(self) -> set[str]:
        return {name.removeprefix("GET ") for name in self.asked if name.startswith("GET ")}


def handler_of(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            info = re.fullmatch(rf"/api/models/{REPO}(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", path)
            if hub.status != 200:
                self.refuse(hub.status, "Error", "the hub says no")
            elif info and info[2] in (None, "main", COMMIT):
                self.answer_json(listing(hub) if info[1] == "tree" else repository(hub))
            elif file and file[1] in ("main", COMMIT) and file[2] in hub.files:
                hub.asked.append(f"{self.command} {file[2]}")
                self.answer_file(file[2])
            elif info or (file and file[1] not in ("main", COMMIT)):
                self.refuse(404, "RevisionNotFound", "no such revision")
            elif file:
                self.refuse(404, "EntryNotFound", "no such file")
            else:
                self.refuse(404, "RepoNotFound", "no such repository")

        def answer_json(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end(body)

        def answer_file(self, name: str) -> None:
            body = hub.files[name]
            begin = 0
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if wanted:
                begin = int(wanted[1])
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            if name == hub.truncated and self.command == "GET":
                self.send_header("Content-Length", str(len(body) - begin))
                self.end_headers()
                self.wfile.write(body[begin : begin + (len(body) - begin) // 2])
                self.close_connection = True
                return
            self.end(body[begin:])

        def refuse(self, status: int, code: str, message: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
            self.end(b"")

        def end(self, body: bytes) -> None:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def repository(hub: Hub) -> dict[str, object]:
    siblings = [{"rfilename": name} for name in hub.files]
    return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "private": False}


def listing(hub: Hub) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
        for name, body in hub.files.items()
    ]


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model")
    cut_into_shards(write_checkpoint(synthetic_checkpoint(5), folder, dtype="f32"), 2)
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}
    assert sum(name.endswith(".safetensors") for name in files) == 2
    return {**files, **dict.fromkeys(OTHER_FORMATS, b"never read"), "README.md": b"# tiny"}


@pytest.fixture
def hub(model_files: dict[str, bytes]) -> Iterator[Hub]:
    made = Hub(dict(model_files))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler_of(made))
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join(60)


LOAD = """
import sys
from tinyserve.errors import ModelLoadError
from tinyserve.models.checkpoint import load_checkpoint
code = 0
for model in sys.argv[1:]:
    try:
        checkpoint = load_checkpoint(model)
    except ModelLoadError as error:
        print(f"refused: {error}", file=sys.stderr)
        code = 1
if code:
    sys.exit(code)
weight = checkpoint.tensors.weight("model.layers.1.mlp.down_proj.weight").dequantize()
has_tokenizer = checkpoint.tokenizer_spec() is not None
print(checkpoint.config.architecture, weight.sum(dtype="f8"), has_tokenizer)
"""


def load(
    hub: Hub, home: Path, *models: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Load a model in a process whose hub is ours."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    ours |= {"TINYSERVE_CACHE": str(home / "tinyserve"), "NO_PROXY": "*"}
    return subprocess.run(
        [sys.executable, "-c", LOAD, *(models or [REPO])],
        capture_output=True,
        text=True,
        timeout=90,
        env={**clean, **ours, **environment},
    )


def expected() -> str:
    source = synthetic_checkpoint(5)
    weight = source.tensors.weight("model.layers.1.mlp.down_proj.weight").dequantize()
    return f"LlamaForCausalLM {weight.sum(dtype='f8')} True\n"


def test_a_model_is_downloaded_once_and_then_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    first = load(hub, tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stdout == expected()
    assert "%|" not in first.stderr, "a bar in a pipe"
    downloaded = hub.downloaded()
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= downloaded
    assert sum(name.endswith(".safetensors") for name in downloaded) == 2
    assert not downloaded & {*OTHER_FORMATS, "README.md"}

    hub.asked.clear()
    again = load(hub, tmp_path)
    assert again.stdout == expected(), again.stderr
    assert hub.downloaded() == set()

    hub.status = 503  # the hub is down: what is cached still loads
    offline = load(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert offline.stdout == expected(), offline.stderr


def test_one_gguf_file_of_a_revision(hub: Hub, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", synthetic_checkpoint(5))
    hub.files["tiny.Q8_0.gguf"] = path.read_bytes()
    run = load(hub, tmp_path, f"{REPO}@{COMMIT}:tiny.Q8_0.gguf")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("LlamaForCausalLM ")
    assert hub.downloaded() == {"tiny.Q8_0.gguf"}


def test_what_is_not_there_is_one_clear_error(hub: Hub, tmp_path: Path) -> None:
    named = {
        "org/other-model": "org/other-model",
        f"{REPO}@no-such-branch": "revision no-such-branch",
        f"{REPO}:no-such-file.gguf": "no-such-file.gguf",
    }
    run = load(hub, tmp_path, *named)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    lines = run.stderr.splitlines()
    assert len(lines) == len(named)
    for line, name in zip(lines, named.values(), strict=True):
        assert line.startswith("refused: ")
        assert name in line


def test_a_repository_without_a_model_says_what_to_name(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"README.md": b"# files", "tiny.Q8_0.gguf": b"GGUF", "notes.json": b"{}"}
    run = load(hub, tmp_path)
    assert run.returncode == 1
    assert f"{REPO}:FILE.gguf" in run.stderr


def test_an_adapter_is_called_one(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    run = load(hub, tmp_path)
    assert run.returncode == 1
    assert "holds an adapter" in run.stderr
    assert "GGUF" not in run.stderr


def test_a_gated_model_names_the_hubs_reason(hub: Hub, tmp_path: Path) -> None:
    hub.status = 401
    run = load(hub, tmp_path)
    assert run.returncode == 1
    assert run.stderr.startswith("refused: ")
    assert "401" in run.stderr


def test_a_broken_download_leaves_nothing_that_would_load(hub: Hub, tmp_path: Path) -> None:
    name = next(name for name in hub.files if name.endswith(".safetensors"))
    hub.truncated = name
    run = load(hub, tmp_path)
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1].startswith("refused: ")
    hub.truncated = None
    run = load(hub, tmp_path)
    assert run.stdout == expected(), run.stderr
