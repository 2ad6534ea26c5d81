"""The peers that are compared with: how each is run offline and as a server.

A peer is asked for two things: the speed of one offline case, by running its own benchmark in a
process of its own, and a command that serves the model on a port. What is not installed is not
asked for. Peers are named on the command line, `[NAME=]...` first; see each `parse`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tinyserve.bench.common import model_section
from tinyserve.bench.offline_cases import Case
from tinyserve.kernels.threads import default_threads

SCRIPT = Path("benchmarks/peer_offline.py")  # from the root of a checkout


class Peer(Protocol):
    """Another engine on the same weights."""

    @property
    def name(self) -> str: ...

    def offline(self, case: Case) -> float | None:
        """Tokens per second of a case; None where it has no such benchmark."""
        ...

    def serve(self, port: int, seats: int, context: int) -> list[str] | None:
        """The command that serves the model; None where it has no server."""
        ...


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp, or ik_llama.cpp, whose programs have the same names and options."""

    name: str
    folder: Path
    model: Path
    threads: int
    options: tuple[str, ...] = ()  # given to each of its programs, such as ik_llama.cpp's -rtr

    @classmethod
    def parse(cls, text: str, threads: int) -> LlamaCpp:
        """`[NAME=]FOLDER:FILE.gguf[ OPTION...]`. Raises ValueError."""
        head, dash, options = text.partition(" -")
        name, _, place = head.rpartition("=")
        folder, _, model = place.rpartition(":")
        if not folder:
            raise ValueError(f"{text!r} is not [NAME=]FOLDER:FILE.gguf")
        label = name or f"llama.cpp {Path(model).stem}"
        return cls(label, Path(folder), Path(model), threads, tuple(shlex.split(dash + options)))

    def offline(self, case: Case) -> float:
        if not case.streams:
            found = json.loads(
                self._run("llama-bench", "-r", "1", "-p", case.prompt, "-n", "0", "-o", "json")
            )
            return float(found[0]["avg_ts"])
        context = (case.prompt + case.new) * case.streams + 256
        printed = self._run(  # the table is on one of the two streams, by version
            *("llama-batched-bench", "-c", context, "-b", "2048", "-ub", "512"),
            *("-npp", case.prompt, "-ntg", case.new, "-npl", case.streams),
            errors=subprocess.STDOUT,
        )
        rows = [line for line in printed.splitlines() if re.match(r"\|\s*\d", line)]
        return float(rows[-1].split("|")[8])  # S_TG: decoded tokens per second

    def serve(self, port: int, seats: int, context: int) -> list[str] | None:
        server = str(self.folder / "llama-server")
        if not Path(server).exists():
            return None
        told = subprocess.run([server, "--help"], capture_output=True, text=True).stdout
        unified = ["-kvu"] if "-kvu" in told else []  # seats share the cache, which is kind to it
        return [
            *(server, "-m", str(self.model), "--port", str(port), *unified),
            *("-np", str(seats), "-c", str(seats * context), *self.options),
            *("-t", str(self.threads), "-tb", str(self.threads)),
        ]

    def _run(self, program: str, *options: object, errors: int = subprocess.PIPE) -> str:
        command = [str(self.folder / program), "-m", str(self.model), "-t", str(self.threads)]
        command += [*map(str, options), *self.options]
        return _printed_by(command, errors)


@dataclass(frozen=True)
class PythonPeer:
    """An engine with a Python API, run by `benchmarks/peer_offline.py` in its own environment."""

    name: str
    python: Path
    engine: str  # peer_offline.py's name for it
    model: Path
    threads: int

    @classmethod
    def parse(cls, text: str, threads: int) -> PythonPeer:
        """`[NAME=]ENGINE=PYTHON:MODEL`. Raises ValueError."""
        head, _, place = text.rpartition("=")
        name, _, engine = head.rpartition("=")
        python, _, model = place.rpartition(":")
        if not (engine and python):
            raise ValueError(f"{text!r} is not [NAME=]ENGINE=PYTHON:MODEL")
        return cls(name or engine, Path(python), engine, Path(model), threads)

    def offline(self, case: Case) -> float | None:
        command = [
            *(str(self.python), str(SCRIPT), self.engine, str(self.model)),
            *("--streams", case.streams, "--prompt", case.prompt, "--new", case.new),
            *("--threads", self.threads),
        ]
        printed = _printed_by([str(part) for part in command])
        return float(json.loads(printed.splitlines()[-1])["tokens_per_second"])

    def serve(self, port: int, seats: int, context: int) -> list[str] | None:
        return None


@dataclass(frozen=True)
class ServedPeer:
    """Any server with OpenAI's API and `/health`, by the command that starts it."""

    name: str
    template: str  # holds {port}, {seats} and {context}

    @classmethod
    def parse(cls, text: str) -> ServedPeer:
        """`NAME=COMMAND`. Raises ValueError."""
        name, _, template = text.partition("=")
        if "{port}" not in template:
            raise ValueError(f"{text!r} is not NAME=COMMAND with {{port}} in it")
        return cls(name, template)

    def offline(self, case: Case) -> float | None:
        return None

    def serve(self, port: int, seats: int, context: int) -> list[str] | None:
        return shlex.split(self.template.format(port=port, seats=seats, context=context))


def _printed_by(command: list[str], errors: int = subprocess.PIPE) -> str:
    """The output of a program. Raises RuntimeError with its last words where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{Path(command[0]).name} failed:\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return done.stdout


@dataclass(frozen=True)
class Tinyserve:
    """This engine, served by its own command. Offline it is measured in the process itself."""

    model: str
    quantization: str | None
    threads: int
    name: str = "tinyserve"

    @classmethod
    def of(cls, args: argparse.Namespace) -> Tinyserve:
        """This engine, with the model that the options name."""
        section = model_section(args)
        threads = section["threads"] or default_threads()[0]
        return cls(section["name"], section["quantization"], threads)

    def offline(self, case: Case) -> float | None:
        return None

    def serve(self, port: int, seats: int, context: int) -> list[str]:
        command = [
            *(sys.executable, "-m", "tinyserve", "serve", "--model", self.model),
            *("--port", str(port), "--max-num-seqs", str(seats), "--max-model-len", str(context)),
            *("--threads", str(self.threads), "--log-level", "warning"),
        ]
        return command + (["--quantization", self.quantization] if self.quantization else [])
