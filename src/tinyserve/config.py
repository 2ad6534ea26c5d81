"""Every setting of tinyserve, declared once, and the frozen values made from them.

One declaration feeds the YAML file (a section per class below), the environment
(`TINYSERVE_<SECTION>_<KEY>`) and the command line (`settings.Setting.flags`); precedence is
command line, environment, file, default. `TINYSERVE_API_KEY` stands for `server.api_key`.
Configuration is checked at construction and never edited afterwards: an automatic choice is
resolved into a new value. Knows nothing of models, servers, or back ends.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tinyserve.config_sources import (
    Layer,
    layer_from_dotted,
    layer_from_env,
    layer_from_mapping,
    layer_from_yaml,
)
from tinyserve.errors import ConfigError
from tinyserve.settings import (
    Setting,
    check,
    checked,
    did_you_mean,
    setting,
    settings_of,
)

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
        "how bf16 weights are multiplied: fma, by f32 activations; bf16x3, by activations in three "
        "bf16 parts that lose nothing, which is for matrix units (AMX) and slow elsewhere; auto is "
        "bf16x3 where there is a matrix unit. The two round differently",
        choices=("auto", "fma", "bf16x3"),
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
        "sampling defaults of the model (generation_config.json) for fields a request leaves out",
        choices=("auto", "none"),
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
        """As many blocks as fit into `kv_cache_gb` GiB; see `kv_budget.cache_from_budget`."""
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
        if self.enabled and (self.method == "draft_model") != (self.draft_model is not None):
            raise ConfigError(
                "spec.draft_model names the model of method draft_model; "
                f"the method is {self.method} and the model {self.draft_model!r}"
            )


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP server, and the limits that it puts on requests."""

    SECTION: ClassVar[str] = "server"

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    uds: str | None = setting(None, "path of a Unix socket to listen on instead of host and port")
    root_path: str = setting("", "path under which a proxy publishes the server, e.g. /llm")
    api_key: tuple[str, ...] = setting(
        (),
        "keys of which clients must present one, except on /health, /ping and the page itself",
        secret=True,
    )
    api_key_file: str | None = setting(None, "file with further keys, one a line; # is a comment")
    served_model_name: tuple[str, ...] = setting(
        (), "names of the model in the API; 'tinyserve' always works"
    )
    allowed_origins: tuple[str, ...] = setting((), "origins that browsers may call from (CORS)")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "names in the Host header that are served, '*' for all; where none is given: addresses "
        "and local names while listening on loopback without a key, else all",
    )
    ssl_certfile: str | None = setting(None, "certificate chain (PEM); makes the server speak TLS")
    ssl_keyfile: str | None = setting(None, "private key of the certificate (PEM)")
    ssl_ca_certs: str | None = setting(None, "authorities that client certificates must come from")
    ssl_cert_reqs: str = setting(
        "none",
        "whether clients must show a certificate",
        choices=("none", "optional", "required"),
        aliases={"0": "none", "1": "optional", "2": "required"},
    )
    max_queued_requests: int = setting(
        256,
        "requests that may wait; more are answered 429",
        flags="--max-queued-requests --max-num-queued-reqs",
        low=1,
        high=1 << 20,
    )
    max_queued_tokens: int | None = setting(
        1 << 20,
        "prompt tokens that may wait; more are answered 429. An empty queue takes any one request",
        flags="--max-queued-tokens --max-num-queued-tokens",
        low=1,
        high=1 << 40,
        unit="tokens",
    )
    request_timeout_s: float = setting(
        600.0, "longest life of a request, waiting included", low=0.001, high=1e7, unit="s"
    )
    shutdown_timeout_s: float = setting(
        10.0,
        "time that running requests get to finish when the server stops",
        flags="--shutdown-timeout",
        low=0,
        high=1e6,
        unit="s",
    )
    stream_stall_timeout_s: float = setting(
        30.0,
        "a reader that takes nothing of a waiting answer for so long is cut off",
        low=0.001,
        high=1e6,
        unit="s",
    )
    stream_buffer_size: int = setting(
        4 << 20,
        "output of one request that may wait for its reader; a reader further behind is cut off",
        kind="size",
        low=1024,
        unit="bytes",
    )
    trust_request_chat_template: bool = setting(
        False, "let requests bring a chat template of their own, which runs in a sandbox"
    )
    enable_auto_tool_choice: bool = setting(
        True, "let models choose to call tools (tool_choice auto)"
    )
    max_logprobs: int = setting(20, "most logprobs a request may ask for", low=0, high=20)
    max_body_size: int = setting(
        8 << 20, "largest request body, e.g. 8MiB", kind="size", low=1024, unit="bytes"
    )
    log_level: str = setting(
        "info",
        "how much is logged",
        choices=("debug", "info", "warning", "error"),
        aliases={"warn": "warning"},
    )
    log_format: str = setting(
        "text", "form of log lines; json writes an object a line", choices=("text", "json")
    )
    access_log: bool = setting(False, "log one line per HTTP request")
    log_requests: bool = setting(
        False,
        "log one line per request to the model when it ends: tokens, times, reason",
        flags="--enable-log-requests",
    )
    log_prompts: bool = setting(False, "show prompts in those lines")
    max_log_len: int | None = setting(
        None, "characters of a prompt that are logged; auto is all of them", low=0, high=1 << 30
    )
    disable_log_stats: bool = setting(
        False, "log no line of throughput and cache use every ten seconds while busy"
    )
    debug_trace: bool = setting(
        False,
        "GET /debug/trace: a timeline of the engine's steps for Perfetto",
        flags="--enable-debug-trace",
    )
    web_page: bool = setting(True, "serve the web page at /: a chat, and the engine at work")

    def __post_init__(self) -> None:
        check(self)
        for name in ("api_key", "served_model_name"):
            if any(not item for item in getattr(self, name)):
                raise ConfigError(f"server.{name} must not hold an empty string")
        if not self.host.strip():  # which would be every address of the machine
            raise ConfigError("server.host must not be empty; 0.0.0.0 listens on all addresses")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("server.ssl_keyfile needs server.ssl_certfile")
        if self.ssl_cert_reqs != "none" and self.ssl_ca_certs is None:
            raise ConfigError("server.ssl_cert_reqs needs server.ssl_ca_certs to check against")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError("server.root_path must begin with / and not end with it")


@dataclass(frozen=True)
class TinyServeConfig:
    """All sections. Made from outside by `from_yaml`, `from_dict` or `resolve`."""

    model: ModelOptions = ModelOptions()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    spec: SpecConfig = SpecConfig()
    server: ServerConfig = ServerConfig()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TinyServeConfig:
        """From nested mappings such as {"cache": {"block_size": 32}}. Raises ConfigError."""
        return _build(_expand_spec(layer_from_mapping(values, "configuration", SECTIONS)))

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> TinyServeConfig:
        """From a YAML file; sections and keys may be left out. Raises ConfigError."""
        return _build(_expand_spec(layer_from_yaml(path, SECTIONS)))

    @classmethod
    def resolve(
        cls,
        *,
        file: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> TinyServeConfig:
        """Merge, strongest first: `overrides` ("section.key" -> value), `env`, `file`, defaults.

        `env` None reads the process's environment. Raises ConfigError naming the key and where it
        was set.
        """
        layers = [layer_from_yaml(file, SECTIONS)] if file is not None else []
        layers.append(layer_from_env(os.environ if env is None else env, SECTIONS))
        layers.append(layer_from_dotted(overrides or {}, SECTIONS))
        merged: Layer = {}
        for layer in layers:
            _expand_spec(layer)
            _drop_overridden_cache_size(merged, layer)
            for section, entries in layer.items():
                merged.setdefault(section, {}).update(entries)
        return _build(merged)

    def replace(self, **sections: Any) -> TinyServeConfig:
        """A copy with whole sections replaced."""
        return dataclasses.replace(self, **sections)

    def with_settings(self, values: Mapping[str, Any]) -> TinyServeConfig:
        """A copy with single settings of the engine replaced, named without their section.

        Raises ConfigError naming the key.
        """
        sections = ("model", "cache", "scheduler", "spec")
        homes = {name: s for s in sections for name in settings_of(SECTIONS[s])}
        changed: Layer = {}
        for name, value in values.items():
            if name not in homes:
                raise ConfigError(f"unknown setting {name!r}" + did_you_mean(name, homes))
            changed.setdefault(homes[name], {})[name] = value
        _expand_spec(changed)
        if changed.get("cache", {}).get("kv_cache_memory") is not None:
            changed["cache"].setdefault("num_blocks", None)
        replaced = {s: dataclasses.replace(getattr(self, s), **v) for s, v in changed.items()}
        return self.replace(**replaced)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Nested plain values; API keys are left out."""
        values = {s: dict(vars(getattr(self, s))) for s in SECTIONS}
        values["server"].pop("api_key")
        return values


SECTIONS: dict[str, type] = {
    c.SECTION: c for c in (ModelOptions, CacheConfig, SchedulerConfig, SpecConfig, ServerConfig)
}


def all_settings() -> list[Setting]:
    """Every setting, section by section."""
    return [s for section in SECTIONS.values() for s in settings_of(section).values()]


def _drop_overridden_cache_size(below: Layer, above: Layer) -> None:
    """`num_blocks` and `kv_cache_memory` exclude each other: where a stronger source sets one, the
    other is removed from the weaker ones.
    """
    cache, new = below.get("cache", {}), above.get("cache", {})
    if new.get("kv_cache_memory") is not None and "num_blocks" not in new:
        cache.pop("num_blocks", None)
    if new.get("num_blocks") is not None and "kv_cache_memory" not in new:
        cache.pop("kv_cache_memory", None)


def _expand_spec(layer: Layer) -> Layer:
    """Complete one source's settings of speculation, in place: `speculative_config` is replaced by
    the settings it holds; a draft model implies its method, and a method implies `enabled`.

    Raises ConfigError where the source contradicts itself.
    """
    spec = layer.get("spec", {})
    known = settings_of(SpecConfig)
    held = checked(known["speculative_config"], spec.pop("speculative_config", None)) or {}
    for key, value in held.items():
        name = "draft_model" if key == "model" else key  # as vLLM calls it
        if name not in known or name == "speculative_config":
            raise ConfigError(
                f"spec.speculative_config: unknown setting {key!r}" + did_you_mean(key, known)
            )
        if spec.setdefault(name, value) != value:
            raise ConfigError(
                f"spec.{name} is set twice: {spec[name]!r}, and {value!r} in speculative_config"
            )
    if spec.get("draft_model") is not None:
        spec.setdefault("method", "draft_model")
    if held or "method" in spec:
        spec.setdefault("enabled", True)
    return layer


def _build(layer: Layer) -> TinyServeConfig:
    return TinyServeConfig(**{s: SECTIONS[s](**entries) for s, entries in layer.items()})
