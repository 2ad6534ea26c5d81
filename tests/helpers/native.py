"""Whether the native kernels are here, and a loud word at the end of the run where they are not."""

from __future__ import annotations

import platform

import pytest

from tinyserve.kernels import native

_skipped: set[str] = set()


def reason_absent() -> str | None:
    """Why there are no native kernels; None where there are."""
    try:
        native.variants()
    except OSError as error:
        return str(error)
    return None


def all_variants() -> list[str]:
    """Instruction sets that run here, best first; none without native kernels."""
    return [] if reason_absent() else native.variants()[0]


def exact_variants() -> list[str]:
    """Those that promise the same bits: all that fuse multiply and add."""
    always_fuses = platform.machine().lower() in ("aarch64", "arm64")
    return [name for name in all_variants() if name != "portable" or always_fuses]


def require_native() -> None:
    """Skip the test, and let the end of the run say so, where native kernels are absent."""
    reason = reason_absent()
    if reason is not None:
        _skipped.add(reason)
        pytest.skip(f"bits are promised by the native back end alone, and {reason}")


def report_absence(terminalreporter: pytest.TerminalReporter) -> None:
    """For `pytest_terminal_summary`."""
    for reason in _skipped:
        terminalreporter.section("the bits of the native kernels were NOT tested", red=True)
        terminalreporter.line(reason)
    _skipped.clear()
