"""Settings as people write them: whatever a file holds, the error names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyserve.config import TinyServeConfig
from tinyserve.errors import ConfigError


@pytest.mark.parametrize(
    "value", ["010", "00", "0x10", "0o10", "0b1", "1_0", "1:30", "1:30.5", "1e1", ".inf", "9" * 400]
)
def test_numbers_are_decimal_or_refused(tmp_path: Path, value: str) -> None:
    """By YAML 1.1, which most readers follow, 010 is 8 and 1:30 is 90."""
    path = tmp_path / "odd.yaml"
    path.write_text(f"scheduler: {{max_num_seqs: {value}}}")
    with pytest.raises(ConfigError, match=r"scheduler\.max_num_seqs must be an integer"):
        TinyServeConfig.resolve(file=path, env={})


def test_numbers_as_json_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "server: {request_timeout_s: 1e3, shutdown_timeout_s: 2, stream_stall_timeout_s: .5}\n"
        "model: {override_generation_config: {temperature: 5E-1, top_k: 0}}\n"
    )
    config = TinyServeConfig.resolve(file=path, env={})
    server = config.server
    assert (server.request_timeout_s, server.shutdown_timeout_s) == (1000, 2)
    assert server.stream_stall_timeout_s == 0.5
    assert config.model.override_generation_config == {"temperature": 0.5, "top_k": 0}


@pytest.mark.parametrize(
    "text",
    [
        "cache: {kv_cache_memory: " + "9" * 400 + "}",
        "cache: {kv_cache_memory: " + "9" * 400 + "GiB}",
        "server: {request_timeout_s: " + "9" * 400 + "}",
    ],
)
def test_numbers_beyond_all_bounds_name_their_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"kv_cache_memory|request_timeout_s"):
        TinyServeConfig.resolve(file=path, env={})


def test_a_key_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("server: {api_key: 271828}")
    with pytest.raises(ConfigError, match=r"server\.api_key must be a string.*got int") as caught:
        TinyServeConfig.resolve(file=path, env={})
    assert "271828" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "? [a]\n: b",
        "? {a: 1}\n: b",
        "model: {name: 2020-13-45}",
        "server: {port: !!int x}",
        "server: {port: !!float x}",
        "server: {port: !!timestamp x}",
        "model: " + "[" * 3000,
        "model: {name: !!binary 1}",
        "!!set {a, b}",
        "[]",
        "model: x",
        "\x00",
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"odd\.yaml|model\.name|server\.port"):
        TinyServeConfig.resolve(file=path, env={})
