"""The settings of the engine: the model, its KV-cache, the scheduler, speculation.

Each is declared once. A section is checked at construction and never edited afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tinyserve.errors import ConfigError
from tinyserve.settings import check, did_you_mean, setting

_DTYPE_ALIASES = {
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
}
DEFAULT_MAX_MODEL_LEN = 4096
SAMPLING_DEFAULT_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "max_tokens",
)


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how it is held in memory."""

    SECTION: ClassVar[str] = "model"

    name: str = setting(
        "default", "model folder, .gguf file, hub id, or 'default'", flags="--model"
    )
    dtype: str = setting(
        "auto",
        "type of float weights; auto keeps the checkpoint's",
        choices=("auto", "f32", "bf16", "f16"),
        aliases=_DTYPE_ALIASES,
    )
    quantization: str | None = setting(
        None, "quantize float weights while loading", choices=("int8", "int4")
    )
    bf16_products: str = setting(
        "auto",
        "how bf16 weights are multiplied: fma, by f32 activations; bf16x2, by activations in two "
        "bf16 parts (16 bits), which is for matrix units (AMX) and slow elsewhere; auto is bf16x2 "
        "where there is a matrix unit. The two round differently",
        choices=("auto", "fma", "bf16x2"),
    )
    kv_cache_dtype: str = setting(
        "auto",
        "type of cached keys and values; auto is f32 with f32 weights and f16 otherwise",
        choices=("auto", "f32", "f16", "bf16", "int8"),
        aliases=_DTYPE_ALIASES,
    )
    threads: int | None = setting(
        None, "compute threads; auto respects affinity and cgroup limits", low=1, high=1024
    )
    generation_config: str = setting(
        "auto",
        "sampling defaults of the model (generation_config.json) for fields a request leaves out, "
        "and its max_new_tokens for conversations",
        choices=("auto", "none"),
        aliases={"vllm": "none"},  # vLLM's own name for its neutral defaults
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None, "sampling defaults that replace the model's, e.g. '{\"temperature\": 0.5}'"
    )
    pooling: str = setting(
        "auto",
        "how embeddings are made of hidden states: of the last token, or the mean of all; auto is "
        "what the model's files say, else mean",
        choices=("auto", "last", "mean"),
    )
    chat_template: str | None = setting(
        None, "chat template instead of the model's: a file, or the Jinja text itself"
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = setting(
        None,
        "variables of the chat template, under those of a request, "
        "e.g. '{\"enable_thinking\": false}'",
    )
    tool_call_parser: str = setting(
        "auto",
        "how the model writes tool calls; auto reads it off the chat template, none leaves them "
        "in the text",
        choices=("auto", "hermes", "llama3_json", "mistral", "qwen3_coder", "pythonic", "none"),
    )
    reasoning_parser: str = setting(
        "none",
        "how the model writes its thinking, to be split from the answer; auto reads it off the "
        "chat template, none leaves it in the text",
        choices=("none", "auto", "qwen3", "deepseek_r1"),
    )

    def __post_init__(self) -> None:
        check(self)
        for name in self.default_chat_template_kwargs or ():
            if name in ("messages", "tools", "documents", "add_generation_prompt"):
                raise ConfigError(
                    f"model.default_chat_template_kwargs may not set {name}, which requests do"
                )
        for name in self.override_generation_config or ():
            if name not in SAMPLING_DEFAULT_KEYS:
                raise ConfigError(
                    f"model.override_generation_config: unknown sampling field {name!r}"
                    + did_you_mean(name, SAMPLING_DEFAULT_KEYS)
                )


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV-cache."""

    SECTION: ClassVar[str] = "cache"

    block_size: int = setting(
        16, "tokens per KV block, a power of two", low=1, high=256, unit="tokens"
    )
    num_blocks: int | None = setting(
        2048,
        "KV blocks; auto sizes them from kv_cache_memory or from the memory that is free",
        flags="--num-blocks --num-gpu-blocks-override",
        low=1,
        high=2**31 - 1,
        unit="blocks",
    )
    kv_cache_memory: int | None = setting(
        None, "memory for the KV blocks, e.g. 2GiB, instead of num_blocks", kind="size", low=1
    )
    num_swap_blocks: int = setting(
        1024,
        "host blocks that hold the KV of preempted sequences; 0 recomputes instead",
        low=0,
        high=2**31 - 1,
        unit="blocks",
    )
    enable_prefix_caching: bool = setting(True, "reuse the KV of prompt prefixes seen before")

    def __post_init__(self) -> None:
        check(self)
        if self.block_size & (self.block_size - 1):
            raise ConfigError(f"cache.block_size must be a power of two, got {self.block_size}")
        if self.kv_cache_memory is not None and self.num_blocks == 2048:
            object.__setattr__(self, "num_blocks", None)  # the default gives way
        if self.kv_cache_memory is not None and self.num_blocks is not None:
            raise ConfigError(
                "cache.num_blocks and cache.kv_cache_memory both size the KV-cache; set one of them"
            )

    @classmethod
    def from_memory_budget(
        cls, model: Any, *, kv_cache_gb: float, max_model_len: int | None = None, **fields: Any
    ) -> CacheConfig:
        """A cache of as many blocks as fit into `kv_cache_gb` GiB; see `cache_from_budget`."""
        from tinyserve.kv_budget import cache_from_budget

        return cache_from_budget(
            model, kv_cache_gb=kv_cache_gb, max_model_len=max_model_len, **fields
        )


@dataclass(frozen=True)
class SchedulerConfig:
    """What one engine step may hold."""

    SECTION: ClassVar[str] = "scheduler"

    max_num_seqs: int = setting(
        16, "sequences computed in one step", low=1, high=4096, unit="sequences"
    )
    max_num_batched_tokens: int = setting(
        512, "tokens computed in one step", low=1, high=1 << 20, unit="tokens"
    )
    enable_chunked_prefill: bool = setting(
        True,
        "spread long prompts over several steps; off runs a prompt whole, even over the budget",
    )
    chunked_prefill_size: int = setting(
        96,  # with the decodes beside it one block of rows: weights are read once (csrc/gemm.h)
        "prompt tokens, of all prompts together, in a step that decodes too: fewer make streams "
        "smoother, more bring first tokens sooner",
        low=1,
        high=1 << 20,
        unit="tokens",
    )
    max_model_len: int | None = setting(
        DEFAULT_MAX_MODEL_LEN,
        "longest prompt plus output; the default shrinks to a smaller model's context, "
        "auto is the model's",
        low=2,
        high=1 << 24,
        unit="tokens",
    )
    policy: str = setting(
        "continuous",
        "order of admission",
        flags="--scheduling-policy",
        choices=("continuous", "static", "priority", "fair"),
        aliases={"fcfs": "continuous"},
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class SpecConfig:
    """Speculative decoding. Where settings come from outside, naming a method turns it on, unless
    the same source says `enabled: false`.
    """

    SECTION: ClassVar[str] = "spec"

    enabled: bool = setting(False, "speculative decoding", flags="--enable-speculation")
    method: str = setting(
        "ngram",
        "how drafts are proposed",
        flags="--speculative-method",
        choices=("ngram", "suffix", "draft_model"),
        aliases={"draft": "draft_model"},
    )
    draft_model: str | None = setting(
        None,
        "model that drafts: folder, .gguf file or hub id, with the tokenizer of the served one",
        flags="--draft-model --speculative-model",
    )
    num_speculative_tokens: int = setting(
        4, "most drafts for a sequence in one step", low=1, high=32, unit="tokens"
    )
    verification: str = setting(
        "coupled",
        "coupled: the same bits as without drafts; rejection: the same distribution",
        flags="--speculative-verification",
        choices=("coupled", "rejection"),
    )
    adaptive: bool = setting(
        True,
        "draft only where it pays, by measured times and acceptance",
        flags="--speculative-adaptive",
    )
    prompt_lookup_max: int = setting(
        4, "longest run of tokens that ngram looks up", low=1, high=64, unit="tokens"
    )
    prompt_lookup_min: int = setting(
        2, "shortest run of tokens that ngram looks up", low=1, high=64, unit="tokens"
    )
    max_past_tokens: int = setting(
        32768,
        "past output that suffix drafts from; 0 keeps none",
        flags="--speculative-max-past-tokens",
        low=0,
        high=1 << 24,
        unit="tokens",
    )
    speculative_config: Mapping[str, Any] | None = setting(
        None, 'settings of this section in one, e.g. \'{"method": "suffix"}\''
    )

    def __post_init__(self) -> None:
        check(self)
        if self.speculative_config is not None:
            raise ConfigError("spec.speculative_config is for sources outside the program")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"spec.prompt_lookup_min ({self.prompt_lookup_min}) exceeds "
                f"spec.prompt_lookup_max ({self.prompt_lookup_max})"
            )
        if self.enabled and self.method == "draft_model" and self.draft_model is None:
            raise ConfigError(
                "spec.method draft_model needs spec.draft_model, the model that drafts"
            )
        if self.enabled and self.method != "draft_model" and self.draft_model is not None:
            raise ConfigError(
                f"spec.draft_model {self.draft_model!r} is used by spec.method draft_model only, "
                f"but the method is {self.method}"
            )
