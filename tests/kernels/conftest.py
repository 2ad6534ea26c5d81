"""Back ends for kernel tests; a loud word where the native one is absent."""

from __future__ import annotations

import pytest
from helpers.native import all_variants, report_absence, require_native

from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Backend
from tinyserve.kernels.reference import ReferenceBackend


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_absence(terminalreporter)


@pytest.fixture
def native() -> NativeBackend:
    """The best native kernels of this machine, on two threads."""
    require_native()
    return NativeBackend(2)


@pytest.fixture(params=all_variants() or ["native kernels"])
def variant(request: pytest.FixtureRequest) -> NativeBackend:
    """Each instruction set that runs here, on two threads."""
    require_native()
    return NativeBackend(2, request.param)


@pytest.fixture
def numpy_backend() -> ReferenceBackend:
    return ReferenceBackend()


@pytest.fixture(params=["numpy", "native"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """For what both back ends promise."""
    if request.param == "numpy":
        return ReferenceBackend()
    require_native()
    return NativeBackend(2)
