"""`ModelConfig`: what the decoder needs to know about an architecture, not where it came from.

Read from `config.json` or from GGUF metadata; one decoder serves every family through these fields.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) and its context extensions.

    `kind` is none | linear | llama3 | yarn | dynamic; the other fields are read by the kinds that
    use them, under the names of Hugging Face's `rope_scaling`.
    """

    theta: float = 10000.0
    kind: str = "none"
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] | None = None  # each frequency's divisor (GGUF `rope_freqs`)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family (Llama, Qwen2, Qwen3, Mistral, SmolLM2)."""

    architecture: str  # Hugging Face's class name, e.g. "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()  # per layer: sliding window in tokens, None = full

    def window(self, layer: int) -> int | None:
        """The sliding window of `layer` in tokens (a token sees itself and window - 1 before)."""
        return self.windows[layer] if self.windows else None
