"""Choosing a back end, and saying why.

`TINYSERVE_BACKEND` forces one: `numpy`, `native`, or `native:VARIANT` (an instruction set that
`tinyserve doctor` lists).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinyserve.errors import ConfigError
from tinyserve.kernels.threads import default_threads

if TYPE_CHECKING:
    from tinyserve.kernels.ops import Backend

BACKEND_VARIABLE = "TINYSERVE_BACKEND"


@dataclass(frozen=True)
class BackendChoice:
    """What to compute with, and why."""

    name: str  # native | numpy
    variant: str  # the instruction set
    reason: str  # a sentence without its full stop, as `threads_reason`
    threads: int
    threads_reason: str

    def __str__(self) -> str:
        return self.name if self.name == self.variant else f"{self.name} ({self.variant})"


def choose_backend(threads: int | None = None, wanted: str | None = None) -> BackendChoice:
    """What to compute with. `wanted` (default: the environment's) overrides the automatic choice.

    Raises ConfigError where a forced back end is not there.
    """
    wanted = os.environ.get(BACKEND_VARIABLE, "") if wanted is None else wanted
    count, why = (threads, "as set") if threads is not None else default_threads()
    name, _, variant = wanted.partition(":")
    if name not in ("", "native", "numpy"):
        raise ConfigError(
            f"{BACKEND_VARIABLE}: unknown back end {wanted!r}; native, native:VARIANT or numpy"
        )
    if name == "numpy":
        return BackendChoice("numpy", "numpy", f"forced by {BACKEND_VARIABLE}", count, why)
    from tinyserve.kernels import abi

    try:
        runnable, _ = abi.variants()
    except OSError as error:
        if name == "native":
            raise ConfigError(f"{BACKEND_VARIABLE}={wanted}: {error}") from None
        return BackendChoice("numpy", "numpy", f"{error}; slow, but it works", count, why)
    if variant and variant not in runnable:
        raise ConfigError(f"{BACKEND_VARIABLE}={wanted}: there are {', '.join(runnable)} here")
    reason = (
        f"forced by {BACKEND_VARIABLE}"
        if variant
        else "the best of those built that this processor runs"
    )
    return BackendChoice("native", variant or runnable[0], reason, count, why)


def make_backend(choice: BackendChoice, bf16_products: str = "auto") -> Backend:
    """The back end of a choice; `bf16_products` as `model.bf16_products`."""
    if choice.name == "numpy":
        from tinyserve.kernels.reference import ReferenceBackend

        return ReferenceBackend(choice.threads)
    from tinyserve.kernels.native import NativeBackend

    bf16x2 = bf16_products == "bf16x2" or (bf16_products == "auto" and choice.variant == "amx")
    return NativeBackend(choice.threads, choice.variant, bf16x2=bf16x2)
