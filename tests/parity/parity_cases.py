"""Tiny models beside their references: built once per run, shared by every parity test."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from hf_reference import Reference
from hf_tiny_models import TinyModel, save
from numpy.typing import NDArray

from tinyserve.config import CacheConfig, ModelOptions, SchedulerConfig
from tinyserve.engine.runner import ModelRunner
from tinyserve.kernels.select import choose_backend, make_backend
from tinyserve.models.checkpoint import load_checkpoint

F32 = NDArray[np.float32]
TOLERANCE = 1e-4  # on logits whose standard deviation is 1 to 3
CACHE = CacheConfig(block_size=16, num_blocks=64, num_swap_blocks=0)
MAX_MODEL_LEN = 256
NEW_TOKENS = 24


def prompts(seed: int = 1) -> dict[int, list[int]]:
    """Ragged on purpose: one token, less than a block, beyond windows and original contexts."""
    draw = random.Random(seed)
    return {s: [draw.randrange(331) for _ in range(n)] for s, n in enumerate((1, 5, 48, 100))}


def create_runner(folder: Path, backend: str, max_model_len: int = MAX_MODEL_LEN) -> ModelRunner:
    """A runner with f32 weights and f32 KV."""
    return ModelRunner.create(
        load_checkpoint(str(folder)),
        ModelOptions(name=str(folder), dtype="f32", kv_cache_dtype="f32"),
        CACHE,
        SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=MAX_MODEL_LEN, max_model_len=max_model_len
        ),
        backend=make_backend(choose_backend(threads=2, wanted=backend)),
    )


@dataclass
class Case:
    """A saved tiny model and what transformers says about it."""

    model: TinyModel
    folder: Path

    @cached_property
    def reference(self) -> Reference:
        return Reference.from_folder(self.folder)

    @cached_property
    def logits(self) -> dict[int, F32]:
        """The reference's logits for `prompts()`, each computed alone and whole."""
        return {seq_id: self.reference.logits(ids) for seq_id, ids in prompts().items()}

    @cached_property
    def greedy(self) -> dict[int, list[int]]:
        """The reference's next NEW_TOKENS greedy tokens after each of `prompts()`."""
        return {s: self.reference.greedy(ids, NEW_TOKENS) for s, ids in prompts().items()}

    @cached_property
    def runners(self) -> dict[str, ModelRunner]:
        return {}

    def runner(self, backend: str) -> ModelRunner:
        """One runner per back end, kept: later tests meet the KV that earlier ones left behind."""
        if backend not in self.runners:
            self.runners[backend] = create_runner(self.folder, backend)
        return self.runners[backend]


class Cases:
    """Builds cases on first use under one folder of the run."""

    def __init__(self, root: Path) -> None:
        import torch

        torch.set_num_threads(1)  # in products this small, threads only wait for each other
        self.root = root
        self.built: dict[str, Case] = {}

    def __getitem__(self, model: TinyModel) -> Case:
        if model.name not in self.built:
            self.built[model.name] = Case(model, save(model, self.root / model.name))
        return self.built[model.name]
