"""The pytest plugin, used as its users do: in a test run of its own."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parent.parent.parent
HEAVY = {"numpy", "fastapi", "uvicorn", "pydantic", "tokenizers", "openai", "httpx"}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project whose test runs have this plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "tinyserve.pytest_plugin")
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return pytester


def example() -> str:
    """The example in README.md."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.+?)```", text, re.DOTALL)
    found = [block for block in blocks if "tinyserve_server" in block]
    assert len(found) == 1
    return found[0]


def test_the_example_of_the_readme(project: pytest.Pytester) -> None:
    assert len(example().strip().splitlines()) <= 5
    project.makepyfile(example())
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_one_server_for_the_session_with_all_that_a_test_needs(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_a="""
            import json, os, urllib.request

            def test_addresses(tinyserve_server):
                assert tinyserve_server.base_url == tinyserve_server.url + "/v1"
                with urllib.request.urlopen(tinyserve_server.base_url + "/models") as answer:
                    models = [model["id"] for model in json.load(answer)["data"]]
                assert models == [tinyserve_server.model]
                assert tinyserve_server.log_path.is_file()
                os.environ["SEEN"] = tinyserve_server.url
        """,
        test_b="""
            import os

            def test_the_same_one(tinyserve_server):
                assert os.environ["SEEN"] == tinyserve_server.url

            def test_answers_are_repeatable(tinyserve_server):
                client = tinyserve_server.openai(max_retries=0)
                body = dict(model="tinyserve", prompt="Once", max_tokens=12, seed=3, n=2)
                answers = [client.completions.create(**body) for _ in range(2)]
                client.close()
                first, second = [[choice.text for choice in a.choices] for a in answers]
                assert first == second
                assert first[0] != first[1]
        """,
    )
    result = project.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)


def test_settings_come_from_the_ini_file_and_the_shell_does_not_matter(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSERVE_API_KEY", "secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setenv("TINYSERVE_SCHEDULER_MAX_MODEL_LEN", "9")
    project.makeini(
        "[pytest]\ntinyserve_model = synthetic\n"
        "tinyserve_args = --served-model-name mine --max-model-len 64\n"
    )
    project.makepyfile(
        """
        def test_it(tinyserve_server):
            client = tinyserve_server.openai()
            model = client.models.list().data[0]
            assert (model.id, model.max_model_len) == ("mine", 64)
            assert tinyserve_server.model == "mine"
            client.close()
        """
    )
    project.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_server_that_does_not_start_shows_its_log(project: pytest.Pytester) -> None:
    project.makepyfile("def test_it(tinyserve_server): pass")
    result = project.runpytest_subprocess("--tinyserve-model", "no/such/folder")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*tinyserve ended with exit code*", "*its log*", "*no/such/folder*"]
    )


def test_a_server_that_takes_too_long_is_ended(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ntinyserve_timeout = 0\n")
    project.makepyfile("def test_it(tinyserve_server): pass")
    result = project.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*tinyserve did not start in 0 s*"])


def test_the_server_is_gone_when_the_session_ends(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pathlib

        def test_it(tinyserve_server):
            pathlib.Path("url").write_text(tinyserve_server.url)
            assert False, "also after a failure"
        """
    )
    project.runpytest_subprocess().assert_outcomes(failed=1)
    url = (project.path / "url").read_text()
    code = "import sys, urllib.request as r; r.urlopen(sys.argv[1] + '/health', timeout=30)"
    asked = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True)
    assert "refused" in asked.stderr


def test_the_server_ends_with_a_test_run_that_is_killed(project: pytest.Pytester) -> None:
    """A run that is stopped from outside ends no fixture."""
    project.makepyfile(
        """
        import os, pathlib, signal

        def test_it(tinyserve_server):
            pathlib.Path("url").write_text(tinyserve_server.url)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    project.runpytest_subprocess()
    url = (project.path / "url").read_text()
    host, port = url.removeprefix("http://").split(":")
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))):
                return
        time.sleep(0.1)
    raise AssertionError("it still listens")


def test_who_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        f"""
        import sys

        def test_it():
            assert "tinyserve.pytest_plugin" in sys.modules
            loaded = {{name.partition(".")[0] for name in sys.modules}}
            assert not loaded & {HEAVY!r}
            assert not [name for name in sys.modules if name.startswith("tinyserve.server")]
        """
    )
    result = project.runpytest_subprocess("-s")
    result.assert_outcomes(passed=1)


def test_it_is_registered_and_describes_itself(project: pytest.Pytester) -> None:
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\ntinyserve = "tinyserve.pytest_plugin"' in text
    shown = project.runpytest_subprocess("--help").stdout.str()
    for name in ("--tinyserve-model", "tinyserve_model", "tinyserve_args", "tinyserve_timeout"):
        assert name in shown
