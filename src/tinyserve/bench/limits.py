"""The least time that a step could take: by what it must read and what it must multiply.

The matrices of a format are read once, or every row is multiplied by them at the format's peak
rate, whichever takes longer; formats and the head come one after the other. Keys and values are
read once. The arithmetic of attention, norms and sampling are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tinyserve.bench.ceilings import Ceilings
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.packing import FORMAT_NAMES
from tinyserve.kv_budget import block_bytes

READ = "read_gb_s"


def rate_of(kind: str) -> str:
    """The measured ceiling (`ceilings.Ceilings`) that bounds multiplying by weights of a format."""
    rates = {"u4": "u4s8_gmac_s", "int8": "int16_gmac_s", "bf16x2": "bf16x2_gmac_s"}
    return rates.get(kind, "f32_gmac_s")


@dataclass(frozen=True)
class Size:
    """Matrices of one format: their bytes, and the multiply-adds of one row."""

    num_bytes: int = 0
    multiplies: int = 0

    def least_seconds(self, kind: str, ceilings: Mapping[str, float], rows: int) -> float:
        reading = self.num_bytes / ceilings[READ]
        return max(reading, rows * self.multiplies / ceilings[rate_of(kind)]) / 1e9


@dataclass(frozen=True)
class Sizes:
    """A model: its layers' matrices and its head, by format, and a token's keys and values."""

    body: dict[str, Size]
    head: dict[str, Size]
    kv_token_bytes: int

    @classmethod
    def of(cls, runner: Any) -> Sizes:
        """The sizes of what a runner of the native back end has loaded."""
        decoder = runner.decoder
        layers = [m for x in decoder.layers for m in (x.qkv, x.o, x.gate_up, x.down)]
        kv_bytes = block_bytes(decoder.config, 1, runner.pool.layout.dtype)
        bf16 = arithmetic_of("bf16", runner.backend)
        return cls(_by_format(layers, bf16), _by_format([decoder.head], bf16), kv_bytes)

    def least_seconds(
        self, ceilings: Mapping[str, float], rows: int, logits: int, context: int = 0
    ) -> float:
        """The least time of a step of so many rows, the last `logits` of which are drawn.
        `context`: the keys of all its sequences together.
        """
        parts = [(self.body, rows), (self.head, logits)]
        matrices = sum(
            size.least_seconds(kind, ceilings, count)
            for part, count in parts
            for kind, size in part.items()
        )
        return matrices + context * self.kv_token_bytes / ceilings[READ] / 1e9


class Limit:
    """What the machine reaches at best, measured now and then between the cases, and the least time
    of a step by that. Needs the native back end; without it there is no limit.
    """

    def __init__(self, runner: Any) -> None:
        self._ceilings = self._sizes = None
        if isinstance(runner.backend, NativeBackend):
            self._ceilings = Ceilings(runner.backend.variant, runner.backend.threads)
            self._sizes = Sizes.of(runner)

    def measure(self) -> None:
        if self._ceilings is not None:
            self._ceilings.measure()

    def medians(self) -> dict[str, float] | None:
        return None if self._ceilings is None else self._ceilings.medians()

    def ms(self, rows: int, context: int) -> float | None:
        """The least time of a step of so many rows, all drawn, over so many keys."""
        if self._ceilings is None or self._sizes is None:
            return None
        return 1e3 * self._sizes.least_seconds(self._ceilings.medians(), rows, rows, context)


def arithmetic_of(kind: str, backend: Any) -> str:
    """What bounds weights of a format on this back end: the format, or bf16x2."""
    return "bf16x2" if kind == "bf16" and backend.bf16x2 else kind


def _by_format(matrices: Iterable[Any], bf16: str) -> dict[str, Size]:
    found: dict[str, Size] = {}
    for part in (part for matrix in matrices for part in matrix.parts):
        name = FORMAT_NAMES[part.format]
        kind = bf16 if name == "bf16" else name
        size = found.get(kind, Size())
        found[kind] = Size(size.num_bytes + part.nbytes, size.multiplies + part.n * part.k)
    return found
