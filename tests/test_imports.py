"""The direction of imports: lower parts never know higher ones; heavy libraries stay at home.

The arrows are read from the source: an import in a function or under TYPE_CHECKING counts too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tinyserve

ROOT = Path(tinyserve.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Lowest first; parts of one line may know each other, but not both ways.
LINES = (
    (
        *("errors", "config", "config_engine", "config_server", "config_sources"),
        *("settings", "settings_yaml", "kv_budget"),
        *("files", "logs", "signals"),
    ),
    ("kernels", "text"),
    ("models", "kv"),
    ("spec",),
    ("engine",),
    ("server",),
    ("bench",),
    ("cli",),
    ("pytest_plugin",),
)
RANK = {part: rank for rank, line in enumerate(LINES) for part in line}

# `python -m tinyserve.server.app` is the command line by another name; imported only when run.
ENTRY_POINTS = {("server/app.py", "server", "cli")}

# library -> the files that may import it (a folder ends with a slash)
HOMES = {
    "fastapi": ("server/openapi/document.py",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "prometheus_client": ("server/",),
    "matplotlib": ("bench/",),
    "llguidance": (
        "text/grammar.py",
        "text/grammar_matcher.py",
        "text/grammar_source.py",
        "text/grammar_tokens.py",
    ),
    "triton": ("kernels/",),
    "pytest": ("pytest_plugin.py",),
    "openai": ("pytest_plugin.py",),
    "torch": (),
    "transformers": (),
    "ray": (),
}
# The scheduler, the KV bookkeeping and the proposers decide with ids and ints alone.
NO_ARRAYS = ("kv/", "engine/scheduler.py", "engine/policies.py", "engine/sequence.py", "spec/")
ARRAY_LIBRARIES = ("numpy", "torch", "tinyserve.kernels")
# The physical slabs themselves; probabilities over the vocabulary.
ARRAYS_ALLOWED = ("kv/pool.py", "spec/verify.py")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module that the file imports, anywhere in it, as an absolute name."""
    return frozenset(_imports_of(path))


def _imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_under(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def is_at(path: Path, homes: tuple[str, ...]) -> bool:
    return any(
        name_of(path) == home or (home.endswith("/") and name_of(path).startswith(home))
        for home in homes
    )


def internal_arrows() -> set[tuple[str, str, str]]:
    """(file, its part, the part it imports) over the whole package."""
    arrows = set()
    for path in FILES:
        for module in imports_of(path):
            pieces = module.split(".")
            if pieces[0] == "tinyserve" and len(pieces) > 1 and pieces[1] in RANK:
                arrows.add((name_of(path), part_of(path), pieces[1]))
    assert arrows >= ENTRY_POINTS, "an exception that is no longer needed"
    return arrows - ENTRY_POINTS


def test_every_part_has_a_rank() -> None:
    parts = {part_of(path) for path in FILES} - {"__init__", "__main__"}
    assert parts <= set(RANK), "say in LINES where the new part stands"


def test_lower_parts_never_import_higher_ones() -> None:
    upward = {
        f"{file} imports {target}"
        for file, part, target in internal_arrows()
        if part in RANK and RANK[target] > RANK[part]
    }
    assert not upward


def test_parts_of_one_line_do_not_import_each_other_both_ways() -> None:
    arrows = {(part, target) for _, part, target in internal_arrows() if part != target}
    mutual = {(a, b) for a, b in arrows if (b, a) in arrows and a in RANK and RANK[a] > 0}
    assert not mutual


def test_only_routes_know_a_dialect() -> None:
    """Service, session and bridge serve all APIs alike."""
    strays = {
        name_of(path)
        for path in FILES
        if not is_at(path, ("server/dialects/", "server/routes/"))
        and any(is_under(module, "tinyserve.server.dialects") for module in imports_of(path))
    }
    assert not strays


@pytest.mark.parametrize("library", HOMES)
def test_libraries_stay_at_home(library: str) -> None:
    strays = {
        name_of(path)
        for path in FILES
        if not is_at(path, HOMES[library])
        and any(is_under(module, library) for module in imports_of(path))
    }
    assert not strays


def test_bookkeeping_needs_no_array_library() -> None:
    users = {
        f"{name_of(path)} imports {module}"
        for path in FILES
        if is_at(path, NO_ARRAYS) and not is_at(path, ARRAYS_ALLOWED)
        for module in imports_of(path)
        if any(is_under(module, library) for library in ARRAY_LIBRARIES)
    }
    assert not users


WEB = {"fastapi", "starlette", "uvicorn"}
OPTIONAL = {"torch", "transformers", "ray", "matplotlib"}
NEEDED_LATER = {"numpy", "tokenizers", "gguf", "safetensors", "jinja2", "pydantic", "rich"}


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    return set(run.stdout.split())


def test_import_tinyserve_brings_in_nothing_heavy() -> None:
    added = modules_after("import tinyserve") - modules_after("")
    assert "tinyserve" in added
    assert not added & (WEB | OPTIONAL | NEEDED_LATER)


def test_offline_use_brings_in_no_web_framework_and_no_torch() -> None:
    added = modules_after("from tinyserve import LLM, SamplingParams, TinyServeConfig")
    assert "numpy" in added
    assert not added & (WEB | OPTIONAL)


def test_a_server_starts_without_what_only_some_requests_need() -> None:
    added = modules_after("import tinyserve.cli.serve, tinyserve.server.run")
    assert {"starlette", "uvicorn", "pydantic", "numpy"} <= added
    assert not added & (OPTIONAL | {"fastapi", "jinja2", "prometheus_client", "llguidance", "rich"})


def test_a_server_does_without_the_rest_of_uvicorns_extra() -> None:
    """Of `uvicorn[standard]` only the parser and the event loop are among the dependencies."""
    added = modules_after(
        "sys.modules.update(dict.fromkeys(('websockets', 'watchfiles', 'dotenv')))\n"
        "from tinyserve.config import ServerConfig\n"
        "from tinyserve.server.app import create_app\n"
        "from tinyserve.server.run import web_settings\n"
        "assert web_settings(create_app(), ServerConfig()).loaded\n"
        "import uvicorn.loops.auto"
    )
    assert "httptools" in added
