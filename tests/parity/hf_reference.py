"""Hugging Face transformers in f32, eager attention: the reference for logits and tokens."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Reference:
    """One causal language model of transformers; every prompt is computed alone, in one piece."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()

    @classmethod
    def from_folder(cls, folder: Path | str) -> Reference:
        import torch
        import transformers

        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
        return cls(model)

    def logits(self, token_ids: list[int]) -> F32:
        """`[len(token_ids), vocab]`"""
        import torch

        with torch.no_grad(), quiet():
            output = self.model(torch.tensor([token_ids]), use_cache=False)
        array: F32 = output.logits[0].float().numpy()
        return array

    def greedy(self, token_ids: list[int], count: int) -> list[int]:
        """`count` most likely tokens one after the other, EOS or not."""
        import torch
        import transformers

        plain = transformers.GenerationConfig(
            do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0
        )
        self.model.generation_config = plain  # none of the model's own settings
        ids = torch.tensor([token_ids])
        with quiet():
            output = self.model.generate(ids, attention_mask=torch.ones_like(ids))
        chosen: list[int] = output[0, len(token_ids) :].tolist()
        assert len(chosen) == count
        return chosen


class quiet(warnings.catch_warnings):
    """The reference's own warnings are not ours to turn into errors."""

    def __enter__(self) -> Any:
        log = super().__enter__()
        warnings.simplefilter("ignore")
        return log
