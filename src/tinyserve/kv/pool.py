"""`KVPool`: the physical memory of the KV-cache, and of the host arena that preempted sequences are
swapped to.

Two contiguous slabs hold keys and values, a block's layers side by side, so that copying or
swapping a block is one memory copy per slab. Memory is reserved at once and touched as blocks are
first used; fresh slots are zero, hence finite. Knows nothing of sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.kernels.formats import F32
from tinyserve.kernels.ops import KVLayout
from tinyserve.kernels.packing import aligned_bytes

_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "int8": np.int8}


class _Slabs:
    """K and V of `num_blocks` blocks in `layout`'s order, and int8's scales."""

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        self.k = self._slab(layout, num_blocks, (layout.head_dim, layout.block_size))
        self.v = self._slab(layout, num_blocks, (layout.block_size, layout.padded_head_dim))
        self.k_scale = self.v_scale = None
        if layout.dtype == "int8":
            self.k_scale = self._slab(layout, num_blocks, (layout.block_size,), np.float32)
            self.v_scale = self._slab(layout, num_blocks, (layout.block_size,), np.float32)

    @staticmethod
    def _slab(
        layout: KVLayout, num_blocks: int, inner: tuple[int, ...], dtype: Any = None
    ) -> NDArray[Any]:
        dtype = _DTYPES[layout.dtype] if dtype is None else dtype
        shape = (num_blocks, layout.num_layers, layout.num_kv_heads, *inner)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        slab: NDArray[Any] = aligned_bytes(size, huge=False).view(dtype).reshape(shape)
        return slab

    def arrays(self) -> list[NDArray[Any]]:
        return [a for a in (self.k, self.v, self.k_scale, self.v_scale) if a is not None]


class KVPool:
    """Device blocks and host slots of one model. Satisfies `kernels.ops.KVSlabs`."""

    def __init__(self, layout: KVLayout, num_swap_blocks: int) -> None:
        self.layout = layout
        self.num_swap_blocks = num_swap_blocks
        self._device = _Slabs(layout, layout.num_blocks)
        self._host = _Slabs(layout, num_swap_blocks)
        self._touched_blocks: set[int] = set()
        self._touched_slots: set[int] = set()

    @property
    def k(self) -> NDArray[Any]:
        return self._device.k

    @property
    def v(self) -> NDArray[Any]:
        return self._device.v

    @property
    def k_scale(self) -> F32 | None:
        return self._device.k_scale

    @property
    def v_scale(self) -> F32 | None:
        return self._device.v_scale

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: keys, values and scales of all layers."""
        return sum(array.nbytes for array in self._device.arrays()) // self.layout.num_blocks

    def swap_out(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (block, host slot) pairs to the host arena."""
        for block, slot in pairs:
            self._touched_slots.add(slot)
            for device, host in zip(self._device.arrays(), self._host.arrays(), strict=True):
                host[slot] = device[block]

    def swap_in(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (host slot, block) pairs back."""
        for slot, block in pairs:
            for device, host in zip(self._device.arrays(), self._host.arrays(), strict=True):
                device[block] = host[slot]

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy (source block, destination block) pairs."""
        for source, destination in pairs:
            for device in self._device.arrays():
                device[destination] = device[source]

    def note_use(self, blocks: Iterable[int]) -> None:
        """Remember that these blocks have been written: their memory is now resident."""
        self._touched_blocks.update(blocks)

    def memory_report(self) -> dict[str, dict[str, int]]:
        """Reserved and touched bytes of the blocks and of the arena."""
        arena = self.num_swap_blocks * self.block_bytes
        return {
            "kv_cache": {
                "reserved": self.layout.num_blocks * self.block_bytes,
                "touched": len(self._touched_blocks) * self.block_bytes,
            },
            "swap_arena": {
                "reserved": arena,
                "touched": len(self._touched_slots) * self.block_bytes,
            },
        }
