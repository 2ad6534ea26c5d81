"""A draft model that knows nothing of its target: random weights with the target's vocabulary.

The worst that can be configured by mistake: its drafts cost time and are never right.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.export import write_checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


def write_stranger(target: str, seed: int, folder: Path) -> str:
    """Write such a model for `target` into `folder`; returns its name for `spec.draft_model`."""
    known = load_checkpoint(target)
    vocab_size, longest = known.config.vocab_size, known.config.max_position_embeddings
    drawn = synthetic_checkpoint(
        seed, vocab_size=vocab_size, max_position_embeddings=longest, **SHAPE
    )
    stranger = replace(
        drawn, tokenizer_spec=known.tokenizer_spec, eos_token_ids=known.eos_token_ids
    )
    write_checkpoint(stranger, folder)
    return str(folder)
