"""What the benchmarks share: their options, the models they make on the spot, and how results are
written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError

import tinyserve
from tinyserve.bench.arguments import output_file
from tinyserve.errors import TinyServeError
from tinyserve.kernels.select import choose_backend
from tinyserve.kernels.threads import default_threads, processor_name

T = TypeVar("T")
Sections = dict[str, dict[str, Any]]  # a configuration's
# name -> (model, quantization): random weights in the shape of real models
SIZES: dict[str, tuple[str, str | None]] = {
    "tiny": ("synthetic", None),
    "small": ("synthetic:135m", "int4"),
    "0.5b": ("synthetic:qwen2.5-0.5b", "int4"),
    "1.5b": ("synthetic:qwen2.5-1.5b", "int4"),
}
# What stands before the last part of /a/path, ~/a/path or ../a/path; not the two slashes of a URL.
_FOLDERS = re.compile(r"(?<![\w/.])(?:\.{1,2}|~)?/(?!/)(?:[^\s:=/]+/)*(?=[^\s:=/])")
OUT_HELP = "write the result as JSON"
READER_LEFT = 141  # exit codes as of a shell: SIGPIPE
INTERRUPTED = 130  # Ctrl-C


def run_program(main: Callable[[], None]) -> None:
    """Run a benchmark's `main`. A user's mistake (no such model, no server at the URL) is one line
    on stderr and exit code 2, never a traceback; so is Ctrl-C, with its own code. A reader that
    has left (`| head`) is no mistake.
    """
    try:
        try:
            main()
        finally:
            sys.stdout.flush()  # not later, where nobody would notice a reader that has left
    except (TinyServeError, URLError) as error:
        print(f"tinyserve: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
        raise SystemExit(READER_LEFT) from None
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def until_interrupted(points: Iterable[T]) -> tuple[list[T], bool]:
    """All points, or those that were measured before Ctrl-C, and whether it came. Without any point
    there is no result: then KeyboardInterrupt is raised again.
    """
    found: list[T] = []
    try:
        for point in points:
            found.append(point)
    except KeyboardInterrupt:
        if not found:
            raise
        say("interrupted: what was measured by then is the result")
        return found, True
    return found, False


def end_if(was_interrupted: bool) -> None:
    """Leave with the exit code of Ctrl-C, once the result is written."""
    if was_interrupted:
        raise SystemExit(INTERRUPTED)


def program_parser(
    module: str, doc: str | None, *, out: tuple[Callable[[str], str], str] = (output_file, OUT_HELP)
) -> argparse.ArgumentParser:
    """A parser that shows the program's docstring, with --out, of which `out` is type and help."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tinyserve.bench.{module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=out[0], help=out[1])
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """The options that say which model is run, and how."""
    add = parser.add_argument
    add("--model", help="model to run (default: random weights, made on the spot; see --size)")
    add(
        "--size", choices=SIZES, default="small", help="random weights in the shape of a real model"
    )
    add("--quantization", help="int8 or int4 for float weights")
    add("--threads", type=int, help="compute threads (default: the processors it may run on)")
    add("--seed", type=int, default=0, help="of random weights and workloads (default: 0)")


def model_parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of a program that runs a model."""
    parser = program_parser(module, doc)
    add_model(parser)
    return parser


def model_section(args: argparse.Namespace) -> dict[str, Any]:
    """The `model` section of the configuration that the options ask for."""
    name, quantization = SIZES[args.size]
    if args.model is not None:
        name, quantization = args.model, None
    return {
        "name": name,
        "quantization": args.quantization or quantization,
        "threads": args.threads,
    }


def machine(variant: str | None = None) -> dict[str, Any]:
    """What ran it, in as far as it bears on speed. `variant`: the kernels, where the caller chose
    them (default: what an engine would choose).
    """
    return {
        "processor": processor_name(),
        "threads": default_threads()[0],
        "kernels": variant or choose_backend().variant,
        "python": platform.python_version(),
        "tinyserve": tinyserve.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


def shown_model(name: str) -> str:
    """A model's name, of a file or folder without where it lies."""
    return Path(name).name if Path(name).exists() else name


def command(module: str, args: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    """The command line that was given, without this machine's folders."""
    parts = [f"python -m tinyserve.bench.{module}"]
    for name, value in vars(args).items():
        if value is None or value == parser.get_default(name) or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        if value is True:
            parts.append(flag)
        elif isinstance(value, list) and isinstance(value[0], str):  # an option given several times
            parts += [f"{flag} {shlex.quote(without_folders(text))}" for text in value]
        elif isinstance(value, list):
            parts.append(f"{flag} {','.join(f'{item:g}' for item in value)}")
        else:
            parts.append(f"{flag} {without_folders(str(value))}")
    return " ".join(parts)


def without_folders(text: str) -> str:
    """`x=/a/bin:~/b/m.gguf` as `x=bin:m.gguf`; paths that begin in the present folder stay."""
    return _FOLDERS.sub("", text)


def write_json(path: str | None, result: Mapping[str, Any]) -> None:
    """Write a result, if there is a place for it."""
    if path:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(result, indent=1) + "\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; numbers with three digits that count."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def p50_p99(found: Mapping[str, float] | None) -> str:
    """ "p50 / p99" of seconds, in milliseconds; nothing of nothing."""
    return f"{1e3 * found['p50']:.0f} / {1e3 * found['p99']:.0f}" if found else ""


def merged(*sources: Sections) -> Sections:
    """Sections of a configuration, key by key; later ones win."""
    result: Sections = {}
    for source in sources:
        for section, values in source.items():
            result.setdefault(section, {}).update(values)
    return result


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)
