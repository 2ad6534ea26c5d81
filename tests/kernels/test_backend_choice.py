"""Choosing a back end: automatic, forced, impossible; always with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.native import all_variants, require_native

import tinyserve.kernels
from tinyserve.errors import ConfigError
from tinyserve.kernels import abi
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.select import BACKEND_VARIABLE, choose_backend, make_backend


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without the compiled library; returns the folder where it is looked for."""
    monkeypatch.setattr(tinyserve.kernels, "__path__", [str(tmp_path)])
    monkeypatch.setattr(abi, "_library", None)
    return tmp_path


def test_the_best_native_kernels_are_the_default() -> None:
    require_native()
    choice = choose_backend(3)
    assert (choice.name, choice.variant, choice.threads) == ("native", all_variants()[0], 3)
    assert choice.threads_reason == "as set"
    assert str(choice) == f"native ({all_variants()[0]})"
    backend = make_backend(choice)
    assert isinstance(backend, NativeBackend)
    assert (backend.variant, backend.threads, backend.exact) == (choice.variant, 3, True)


def test_numpy_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "numpy")
    choice = choose_backend()
    assert (choice.name, choice.variant, str(choice)) == ("numpy", "numpy", "numpy")
    assert BACKEND_VARIABLE in choice.reason
    assert not make_backend(choice).exact


@pytest.mark.parametrize("variant", all_variants())
def test_each_instruction_set_can_be_forced(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, f"native:{variant}")
    choice = choose_backend()
    assert (choice.name, choice.variant) == ("native", variant)
    assert BACKEND_VARIABLE in choice.reason


@pytest.mark.parametrize("variant", all_variants())
def test_bf16_goes_in_parts_where_there_is_a_matrix_unit_or_as_set(variant: str) -> None:
    choice = choose_backend(1, f"native:{variant}")
    found = {name: make_backend(choice, name) for name in ("auto", "fma", "bf16x2")}
    in_parts = {name: isinstance(b, NativeBackend) and b.bf16x2 for name, b in found.items()}
    assert in_parts == {"auto": variant == "amx", "fma": False, "bf16x2": True}


@pytest.mark.parametrize("wanted", ["cuda", "Numpy", "native:sse9", "avx2"])
def test_unknown_names_are_refused(wanted: str) -> None:
    if wanted.startswith("native"):
        require_native()
    with pytest.raises(ConfigError, match=BACKEND_VARIABLE):
        choose_backend(wanted=wanted)


def test_without_a_library_numpy_is_chosen_and_says_why(no_library: Path) -> None:
    choice = choose_backend()
    assert choice.name == "numpy"
    assert "not built" in choice.reason


@pytest.mark.parametrize("wanted", ["native", "native:avx2"])
def test_without_a_library_native_cannot_be_forced(no_library: Path, wanted: str) -> None:
    with pytest.raises(ConfigError, match="not built"):
        choose_backend(wanted=wanted)


def test_a_file_that_is_no_library(no_library: Path) -> None:
    (no_library / "_kernels.so").write_bytes(b"not a library")
    choice = choose_backend()
    assert choice.name == "numpy"
    assert "_kernels.so" in choice.reason


def test_unknown_instruction_sets_make_no_backend() -> None:
    require_native()
    with pytest.raises(ValueError, match="sse9"):
        NativeBackend(1, "sse9")
