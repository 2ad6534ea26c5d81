"""Settings: one declaration, four sources, and errors that name the key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from tinyserve.config import (
    SECTIONS,
    CacheConfig,
    ModelOptions,
    SchedulerConfig,
    ServerConfig,
    SpecConfig,
    TinyServeConfig,
    all_settings,
)
from tinyserve.errors import ConfigError

ROOT = Path(__file__).parents[2]


def test_default_yaml_is_the_defaults() -> None:
    assert TinyServeConfig.from_yaml(ROOT / "configs" / "default.yaml") == TinyServeConfig()


def test_default_yaml_lists_every_key() -> None:
    sections = yaml.safe_load((ROOT / "configs" / "default.yaml").read_text())
    listed = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
    short_forms = {"spec.speculative_config"}  # several of the others in one
    assert listed == [s.key for s in all_settings() if s.key not in short_forms]


def test_default_yaml_has_the_keys_of_the_definition() -> None:
    config = TinyServeConfig()
    assert config.cache == CacheConfig(
        block_size=16, num_blocks=2048, num_swap_blocks=1024, enable_prefix_caching=True
    )
    assert config.scheduler == SchedulerConfig(
        max_num_seqs=16,
        max_num_batched_tokens=512,
        enable_chunked_prefill=True,
        chunked_prefill_size=96,
        max_model_len=4096,
    )
    assert config.spec == SpecConfig(enabled=False, method="ngram", num_speculative_tokens=4)
    assert config.model == ModelOptions(
        name="default", dtype="auto", quantization=None, kv_cache_dtype="auto", threads=None
    )
    assert config.server == ServerConfig(
        host="127.0.0.1", port=8000, max_queued_requests=256, request_timeout_s=600
    )


def test_sections_and_keys_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cache:\nscheduler: {max_num_seqs: 3}\n")
    config = TinyServeConfig.from_yaml(path)
    assert config == TinyServeConfig(scheduler=SchedulerConfig(max_num_seqs=3))
    path.write_text("")
    assert TinyServeConfig.from_yaml(path) == TinyServeConfig()


def test_line_ends_are_no_part_of_a_variable() -> None:
    env = {"TINYSERVE_SERVER_HOST": "::1\r", "TINYSERVE_MODEL_DTYPE": "f32\r\n"}
    config = TinyServeConfig.resolve(env={**env, "TINYSERVE_MODEL_NAME": "org/name\n"})
    assert (config.server.host, config.model.dtype) == ("::1", "f32")
    assert config.model.name == "org/name"


def test_names_of_files_may_be_paths(tmp_path: Path) -> None:
    values = {"model": {"name": tmp_path}, "server": {"uds": tmp_path / "socket"}}
    config = TinyServeConfig.from_dict(values)
    assert (config.model.name, config.server.uds) == (str(tmp_path), str(tmp_path / "socket"))


def test_yaml_may_merge_mappings(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("server: {<<: {port: 1, root_path: /x}, port: 2}\n")
    assert TinyServeConfig.from_yaml(path).server == ServerConfig(port=2, root_path="/x")


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TinyServeConfig().cache.block_size = 32  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"cache": {"blok_size": 16}}, "cache.blok_size (did you mean 'block_size'?)"),
        ({"cach": {}}, "'cach' in configuration (did you mean 'cache'?)"),
        ({"cache": 5}, "'cache' in configuration must be a mapping"),
        ({"cache": {"block_size": "16"}}, "cache.block_size must be an integer"),
        ({"cache": {"block_size": True}}, "got True"),
        ({"cache": {"block_size": 24}}, "cache.block_size must be a power of two"),
        ({"cache": {"block_size": 512}}, "from 1 to 256"),
        ({"cache": {"block_size": None}}, "got None"),
        ({"cache": {"num_blocks": 0}}, "cache.num_blocks"),
        ({"cache": {"enable_prefix_caching": "yes"}}, "true or false, got 'yes'"),
        ({"cache": {"kv_cache_memory": "lots"}}, "such as 512MiB"),
        ({"cache": {"kv_cache_memory": "1GiB", "num_blocks": 5}}, "cache.kv_cache_memory"),
        ({"scheduler": {"policy": "lifo"}}, "scheduler.policy must be one of continuous"),
        ({"scheduler": {"max_num_seqs": 0}}, "scheduler.max_num_seqs"),
        ({"model": {"dtype": "float8"}}, "model.dtype must be one of auto, f32"),
        ({"model": {"quantization": "int3"}}, "(did you mean 'int8'?)"),
        ({"model": {"threads": 0}}, "model.threads"),
        ({"model": {"override_generation_config": {"temprature": 1}}}, "'temprature' (did you"),
        ({"server": {"port": 70000}}, "server.port must be an integer from 0 to 65535"),
        ({"server": {"request_timeout_s": float("nan")}}, "server.request_timeout_s"),
        ({"server": {"api_key": [""]}}, "server.api_key"),
        ({"server": {"api_key": [5]}}, "server.api_key must be a string or a list of strings"),
        # What would never match a header is no setting to be passed over.
        ({"server": {"allowed_origins": ["http://localhost:5173/"]}}, "server.allowed_origins"),
        ({"server": {"allowed_origins": ["localhost:5173"]}}, "server.allowed_origins"),
        ({"server": {"allowed_origins": ["http://LocalHost"]}}, "server.allowed_origins"),
        ({"server": {"allowed_origins": ['["*"]']}}, "server.allowed_origins"),
        ({"server": {"allowed_hosts": ["llm.example:8000"]}}, "server.allowed_hosts"),
        ({"server": {"allowed_hosts": ["https://llm.example"]}}, "server.allowed_hosts"),
        ({"server": {"allowed_hosts": ["*.example"]}}, "server.allowed_hosts"),
        ({"spec": {"method": "draft_model"}}, "spec.draft_model"),
        ({"spec": {"enabled": True, "draft_model": "x", "method": "ngram"}}, "spec.draft_model"),
        ({"spec": {"prompt_lookup_min": 5}}, "spec.prompt_lookup_min"),
        ({"spec": {"speculative_config": {"methd": "ngram"}}}, "'methd' (did you mean 'method'?)"),
        ({"spec": {"speculative_config": 5}}, "spec.speculative_config must be a mapping"),
        (
            {"spec": {"method": "ngram", "speculative_config": {"method": "suffix"}}},
            "spec.method is set twice",
        ),
        ({"spec": {"method": "psychic"}}, "spec.method"),
        ({"port": 80}, "unknown section 'port' in configuration (did you mean 'server.port'?)"),
        ({"max-model-len": 80}, "(did you mean 'scheduler.max_model_len'?)"),
    ],
)
def test_errors_name_the_key(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TinyServeConfig.from_dict(values)
    assert named in str(caught.value)


@pytest.mark.parametrize("text", ["- 1", "a: [", "cache: {block_size: 1, block_size: 2}", "5"])
def test_bad_yaml_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml|twice"):
        TinyServeConfig.from_yaml(path)
    with pytest.raises(ConfigError, match="cannot read"):
        TinyServeConfig.from_yaml(tmp_path / "missing.yaml")


def test_precedence_command_line_environment_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("server: {port: 1, host: from-file}\nscheduler: {max_num_seqs: 1}\n")
    env = {"TINYSERVE_SERVER_PORT": "2", "TINYSERVE_SCHEDULER_MAX_NUM_SEQS": "2", "HOME": "/x"}
    config = TinyServeConfig.resolve(file=path, env=env, overrides={"server.port": 3})
    assert config.server.port == 3
    assert config.scheduler.max_num_seqs == 2
    assert config.server.host == "from-file"
    assert config.cache == CacheConfig()


def test_environment_reads_every_kind() -> None:
    env = {
        "TINYSERVE_CACHE_ENABLE_PREFIX_CACHING": "off",
        "TINYSERVE_CACHE_KV_CACHE_MEMORY": "1.5GiB",
        "TINYSERVE_MODEL_DTYPE": "bfloat16",
        "TINYSERVE_MODEL_THREADS": "auto",
        "TINYSERVE_MODEL_OVERRIDE_GENERATION_CONFIG": '{"temperature": 0.5}',
        "TINYSERVE_SERVER_REQUEST_TIMEOUT_S": "2.5",
        "TINYSERVE_SERVER_SERVED_MODEL_NAME": "one, two",
        "TINYSERVE_API_KEY": "k1,k2",
        "TINYSERVE_REAL_MODEL": "/some/model",
        "TINYSERVE_CACHE": "/some/folder",
        "TINYSERVE_BACKEND": "numpy",
    }
    config = TinyServeConfig.resolve(env=env)
    assert config.cache.enable_prefix_caching is False
    assert config.cache.kv_cache_memory == 3 << 29
    assert config.cache.num_blocks is None
    assert config.model.dtype == "bf16"
    assert config.model.threads is None
    assert config.model.override_generation_config == {"temperature": 0.5}
    assert config.server.request_timeout_s == 2.5
    assert config.server.served_model_name == ("one", "two")
    assert config.server.api_key == ("k1", "k2")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TINYSERVE_SERVER_PRT", "1"),
        ("TINYSERVE_SERVER_PORT", "eighty"),
        ("TINYSERVE_CACHE_ENABLE_PREFIX_CACHING", "maybe"),
        ("TINYSERVE_MODEL_OVERRIDE_GENERATION_CONFIG", "{"),
    ],
)
def test_environment_errors_name_the_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        TinyServeConfig.resolve(env={variable: value})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TINYSERVE_MODEL", "TINYSERVE_MODEL_NAME"),
        ("TINYSERVE_PORT", "TINYSERVE_SERVER_PORT"),
        ("TINYSERVE_LOG_LEVEL", "TINYSERVE_SERVER_LOG_LEVEL"),
    ],
)
def test_a_setting_without_its_section_is_not_passed_over(variable: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"{variable} .*did you mean '{meant}'"):
        TinyServeConfig.resolve(env={variable: "1"})


@pytest.mark.parametrize("name", ["TINYSERVE", "TINYSERVE_SERVER", "TINYSERVE_CACHE"])
def test_what_kubernetes_says_of_a_service_is_no_setting(name: str) -> None:
    """As vLLM's VLLM_PORT, which a service called vllm made a URL (vllm-project/vllm#34199)."""
    url = "tcp://10.0.0.1:8000"
    env = {
        f"{name}_SERVICE_HOST": "10.0.0.1",
        f"{name}_SERVICE_PORT": "8000",
        f"{name}_SERVICE_PORT_HTTP": "8000",
        f"{name}_PORT": url,
        f"{name}_PORT_8000_TCP": url,
        f"{name}_PORT_8000_TCP_PROTO": "tcp",
        f"{name}_PORT_8000_TCP_PORT": "8000",
        f"{name}_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert TinyServeConfig.resolve(env=env) == TinyServeConfig()


def test_a_stronger_source_may_size_the_cache_the_other_way(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("cache: {num_blocks: 7}\n")
    config = TinyServeConfig.resolve(
        file=path, env={}, overrides={"cache.kv_cache_memory": 1 << 30}
    )
    assert (config.cache.num_blocks, config.cache.kv_cache_memory) == (None, 1 << 30)
    path.write_text("cache: {kv_cache_memory: 1GiB}\n")
    config = TinyServeConfig.resolve(file=path, env={}, overrides={"cache.num_blocks": 7})
    assert (config.cache.num_blocks, config.cache.kv_cache_memory) == (7, None)


def test_every_setting_has_help_and_its_own_flag_and_variable() -> None:
    declared = all_settings()
    flags = [flag for setting in declared for flag in setting.flags]
    assert len(flags) == len(set(flags))
    assert len({setting.env for setting in declared}) == len(declared)
    assert all(setting.help for setting in declared)
    fields = {f"{s}.{f.name}" for s, c in SECTIONS.items() for f in dataclasses.fields(c)}
    assert {setting.key for setting in declared} == fields


def test_keys_are_not_shown() -> None:
    config = TinyServeConfig(server=ServerConfig(api_key=("secret",)))
    assert "secret" not in repr(config)
    assert "secret" not in str(config.to_dict())


def test_origins_and_hosts_of_every_kind() -> None:
    origins = ["*", "null", "http://localhost:5173", "app://obsidian.md", "chrome-extension://abc"]
    hosts = ["*", "LLM.example", "my_service", "10.0.0.1", "::1"]
    server = ServerConfig(allowed_origins=tuple(origins), allowed_hosts=tuple(hosts))
    assert server.allowed_origins == tuple(origins)
    assert server.allowed_hosts == tuple(hosts)


def test_an_ipv6_address_may_be_written_as_in_a_url() -> None:
    assert ServerConfig(host="[::1]").host == ServerConfig(host="::1").host == "::1"


def test_values_go_by_the_names_of_vllm_too() -> None:
    model = TinyServeConfig.from_dict(
        {"model": {"generation_config": "vllm", "dtype": "half"}}
    ).model
    assert (model.generation_config, model.dtype) == ("none", "f16")
