"""`TinyServeConfig`: every setting of tinyserve, put together from where they are set.

A setting is declared once, in `config_engine.py` or `config_server.py`. Its declaration feeds the
YAML file (a section per class there), the environment (`TINYSERVE_<SECTION>_<KEY>`) and the command
line (`settings.Setting.flags`); precedence is command line, environment, file, default.
`TINYSERVE_API_KEY` stands for `server.api_key`. Configuration is checked at construction and never
edited afterwards: an automatic choice is resolved into a new value. Knows nothing of models,
servers, or back ends.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyserve.config_engine import (
    DEFAULT_MAX_MODEL_LEN,
    CacheConfig,
    ModelOptions,
    SchedulerConfig,
    SpecConfig,
)
from tinyserve.config_server import ServerConfig
from tinyserve.config_sources import (
    Layer,
    layer_from_dotted,
    layer_from_env,
    layer_from_mapping,
    layer_from_yaml,
)
from tinyserve.errors import ConfigError
from tinyserve.settings import Setting, checked, did_you_mean, settings_of

__all__ = [
    "DEFAULT_MAX_MODEL_LEN",
    "SECTIONS",
    "CacheConfig",
    "ModelOptions",
    "SchedulerConfig",
    "ServerConfig",
    "SpecConfig",
    "TinyServeConfig",
    "all_settings",
]


@dataclass(frozen=True)
class TinyServeConfig:
    """All sections of settings. `from_yaml`, `from_dict` and `resolve` read them from elsewhere."""

    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    spec: SpecConfig = field(default_factory=SpecConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TinyServeConfig:
        """The configuration in nested mappings such as {"cache": {"block_size": 32}}. Raises
        ConfigError.
        """
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
        name = "draft_model" if key == "model" else key  # vLLM's name
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
