"""What a model's name means, and the errors for names that mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from helpers.tiny_gguf import write_tiny_gguf

from tinyserve.errors import ModelLoadError
from tinyserve.models import default_model
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.export import write_checkpoint
from tinyserve.models.hub import HubId, parse_hub_id
from tinyserve.models.synthetic import synthetic_checkpoint


def test_a_gguf_file_and_a_folder_with_one(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint())
    by_file, by_folder = load_checkpoint(str(path)), load_checkpoint(str(tmp_path))
    assert by_file.config == by_folder.config
    assert by_file.fingerprint == by_folder.fingerprint
    assert by_file.name == str(path)
    write_tiny_gguf(tmp_path / "other.gguf", synthetic_checkpoint())
    with pytest.raises(ModelLoadError, match=r"several GGUF files.*model\.gguf, other\.gguf"):
        load_checkpoint(str(tmp_path))


def test_a_config_beside_a_gguf_file_is_no_reason_to_refuse_it(tmp_path: Path) -> None:
    """Repositories of GGUF files often carry one; files that macOS hides count for nothing."""
    write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint())
    (tmp_path / "._model.gguf").write_bytes(b"\0\5\x16\7")
    (tmp_path / "config.json").write_text("{}")
    assert load_checkpoint(str(tmp_path)).config.num_layers == 2
    folder = write_checkpoint(synthetic_checkpoint(preset="tiny"), tmp_path / "both", dtype="f32")
    (folder / "model.gguf").write_bytes(b"anything")
    assert load_checkpoint(str(folder)).config.num_layers == 2  # of the safetensors


def test_a_gguf_file_needs_no_suffix_of_its_own(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "blob", synthetic_checkpoint())
    assert load_checkpoint(str(path)).config.num_layers == 2


def test_the_default_model_by_either_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint())
    monkeypatch.setattr(default_model, "default_model_path", lambda progress: path)
    assert load_checkpoint("default").name == load_checkpoint("").name == default_model.NAME


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-model", "was not found.*no folder or file .*no-such-model.*org/name"),
        ("org/name:Q4_K_M", r"was not found.*org/name:FILE\.gguf"),
        ("https://huggingface.co/org/name", r"was not found.*hub.*org/name@revision"),
        ("./no/such/folder", "was not found"),
        ("some/folder/file.gguf", "was not found"),
        ("model.gguf", "was not found"),
        ("~nobody-of-that-name/model", "was not found"),
        ("~/model.gguf", r"no folder or file /home of mine/model\.gguf"),
        ("x" * 5000, "was not found"),
        ("a\0b", "was not found"),
    ],
)
def test_names_that_mean_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home of mine")
    with pytest.raises(ModelLoadError, match=said):
        load_checkpoint(name)


def test_a_name_is_told_where_the_working_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ModelLoadError, match=r"model 'model\.gguf' was not found"):
        load_checkpoint("model.gguf")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """What an interrupted download leaves in the hub's cache."""
    write_checkpoint(synthetic_checkpoint(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.unlink()
    path.symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(ModelLoadError, match=r"cannot read .*/model\.safetensors: No such file"):
        load_checkpoint(str(tmp_path))


@pytest.mark.parametrize("has_base", [False, True])
def test_an_adapter_is_never_left_out_in_silence(tmp_path: Path, has_base: bool) -> None:
    """LORA-01: transformers applies it, whether the base model lies beside it or elsewhere."""
    if has_base:
        write_checkpoint(synthetic_checkpoint(), tmp_path, dtype="f32")
        load_checkpoint(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelLoadError, match=r"adapter.*merge it"):
        load_checkpoint(str(tmp_path))


def test_an_empty_folder_and_a_bare_tensor_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"neither a config\.json nor a \.gguf"):
        load_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match="name its folder"):
        load_checkpoint(str(tmp_path / "model.safetensors"))
    (tmp_path / "notes.txt").write_text("hello world")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        load_checkpoint(str(tmp_path / "notes.txt"))


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint())

    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelLoadError, match=r"cannot read .*model\.gguf.*Permission denied"):
        load_checkpoint(str(path))


def test_a_folder_that_may_not_be_looked_into_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModelLoadError, match=r"cannot read /somebody/model.*Permission denied"):
        load_checkpoint("/somebody/model")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", HubId("Qwen/Qwen2.5-0.5B-Instruct")),
        ("org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/name@refs/pr/1", HubId("org/name", "refs/pr/1")),
        ("org/name:sub/file.gguf", HubId("org/name", None, "sub/file.gguf")),
        ("org/name@main:file.gguf", HubId("org/name", "main", "file.gguf")),
        ("org/name:file.bin", None),
        ("name", None),
        ("a/b/c", None),
        ("./a", None),
        ("../a", None),
        ("/a/b", None),
        ("a/b.gguf", None),
        ("", None),
    ],
)
def test_hub_ids(model: str, expected: HubId | None) -> None:
    assert parse_hub_id(model) == expected


def test_a_hub_id_is_downloaded_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(synthetic_checkpoint(), tmp_path / "snapshot")
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.update(repo=repo, **options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    loaded = load_checkpoint("org/name@v2")
    assert loaded.name == "org/name@v2"
    assert (asked["repo"], asked["revision"]) == ("org/name", "v2")
    assert "*.safetensors" in asked["allow_patterns"]
    assert not any(pattern.endswith(".bin") for pattern in asked["allow_patterns"])
    for file in ("model.safetensors", "config.json"):
        (folder / file).unlink()
        with pytest.raises(ModelLoadError, match=r"org/name:FILE\.gguf"):
            load_checkpoint("org/name")


def test_one_gguf_file_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "q.gguf", synthetic_checkpoint())
    asked: list[Any] = []

    def hf_hub_download(repo: str, file: str, *, revision: str | None) -> str:
        asked.extend((repo, file, revision))
        return str(path)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    assert load_checkpoint("org/name:q.gguf").config.num_layers == 2
    assert asked == ["org/name", "q.gguf", None]


def test_a_split_gguf_of_a_repository_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_gguf(tmp_path / "q.gguf", synthetic_checkpoint(), split_max_tensors=12)
    asked: list[str] = []

    def hf_hub_download(repo: str, file: str, *, revision: str | None) -> str:
        asked.append(file)
        return str(tmp_path / Path(file).name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    model = "org/name:sub/q-00001-of-00002.gguf"
    assert load_checkpoint(model).config.num_layers == 2
    assert asked == ["sub/q-00001-of-00002.gguf", "sub/q-00002-of-00002.gguf"]


def test_a_repository_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline (as every test is), with an empty cache: the real client's own error."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"no folder 'org/absent'.*gave no model org/absent: "):
        load_checkpoint("org/absent")


def test_opening_a_model_needs_no_heavy_import(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", synthetic_checkpoint())
    program = (
        "import sys\n"
        "import numpy\n"  # of which some versions bring in subprocess
        "before = set(sys.modules)\n"
        "from tinyserve.models import default_model\n"
        "from tinyserve.models.checkpoint import load_checkpoint\n"
        "default_model.find_default_model()\n"
        f"load_checkpoint({str(path)!r})\n"
        "heavy = {'gguf', 'tokenizers', 'huggingface_hub', 'rich', 'torch', 'transformers',\n"
        "         'subprocess', 'zipfile', 'importlib.metadata'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
