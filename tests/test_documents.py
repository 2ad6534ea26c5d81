"""The documents say what is true: the files and commands that they name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tinyserve
from tinyserve.config import TinyServeConfig, all_settings

SOURCE = Path(tinyserve.__file__).parent
REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md")
SET_UP = "python3 -m venv .venv && . .venv/bin/activate && "


def text_of(document: str) -> str:
    return (REPOSITORY / document).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_are_named_exist(document: str) -> None:
    named = re.findall(r"`((?:[\w.]+/)*[\w]+\.(?:py|cpp|h|yaml|toml|txt))`", text_of(document))
    assert named
    roots = (REPOSITORY, SOURCE, SOURCE / "kernels")
    missing = [name for name in named if not any((root / name).is_file() for root in roots)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", text_of(document)):
        assert (REPOSITORY / target).exists(), target


def test_names_in_the_architecture_exist() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+|[A-Z]{4,}_\w+)`", text_of("ARCHITECTURE.md")))
    assert {"KVManager", "StepPlan", "NUMERICS_VERSION"} & named
    assert not {name for name in named if not re.search(rf"\b{name}\b", code)}


def test_the_two_commands_of_the_readme() -> None:
    commands = re.findall(r"```sh\n(.+?)\n```", text_of("README.md"), re.DOTALL)
    assert commands[0] == SET_UP + "pip install -e . && tinyserve serve"
    assert commands[1] == SET_UP + 'pip install -e ".[dev]" && pytest -m "not slow"'


def test_the_default_configuration_is_the_default() -> None:
    assert TinyServeConfig.from_yaml(REPOSITORY / "configs" / "default.yaml") == TinyServeConfig()


def test_settings_in_the_readme_exist() -> None:
    text = text_of("README.md")
    flags = {flag for declared in all_settings() for flag in declared.flags} | {"--config"}
    for program in (SOURCE / "bench").glob("*.py"):
        flags |= set(re.findall(r'"(--[a-z-]+)"', program.read_text(encoding="utf-8")))
    switches = (declared for declared in all_settings() if declared.kind == "bool")
    flags |= {flag.replace("--", "--no-", 1) for switch in switches for flag in switch.flags}
    plugin = (SOURCE / "pytest_plugin.py").read_text(encoding="utf-8")
    flags |= set(re.findall(r'"(--tinyserve-[a-z-]+)"', plugin))
    variables = {declared.env for declared in all_settings()}
    stand_apart = {"TINYSERVE_" + name for name in ("API_KEY", "CACHE", "BACKEND", "REAL_MODEL")}
    assert set(re.findall(r"(?<=[ `])--[a-z-]+\b", text)) <= flags | {"--help"}
    assert set(re.findall(r"\bTINYSERVE_[A-Z_]+", text)) <= variables | stand_apart
