"""Bits are the native back end's promise: without it tests of bits are skipped, loudly."""

from __future__ import annotations

import pytest
from helpers.native import report_absence, require_native


@pytest.fixture
def native_kernels() -> None:
    require_native()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_absence(terminalreporter)
