"""Settings as people write them: whatever a file holds, the error names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyserve.config import TinyServeConfig
from tinyserve.errors import ConfigError


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
