"""The script that runs an engine of another environment, over a stand-in for vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="as vLLM: Linux")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "peer_offline.py"
VLLM = """
import json, os, time

class SamplingParams:
    def __init__(self, **values):
        self.values = values

class LLM:
    def __init__(self, model, **options):
        self.log = {"model": model, "options": options, "calls": []}
        names = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_LOGGING_STREAM")
        self.log["environment"] = {name: os.environ[name] for name in names}

    def generate(self, prompts, params, use_tqdm):
        lengths = [len(prompt["prompt_token_ids"]) for prompt in prompts]
        self.log["calls"].append([lengths, params.values])
        with open(os.environ["SEEN"], "w") as file:
            json.dump(self.log, file)
        time.sleep(0.001 * params.values["max_tokens"])
"""


def ran(tmp_path: Path, *arguments: str, **environment: str) -> tuple[dict[str, Any], float]:
    """What the stand-in was asked for, and the speed that the script printed."""
    (tmp_path / "vllm.py").write_text(VLLM)
    seen = tmp_path / "seen.json"
    own = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**own, "PYTHONPATH": str(tmp_path), "SEEN": str(seen), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(seen.read_text()), json.loads(done.stdout)["tokens_per_second"]


@pytest.mark.parametrize(("engine", "dtype"), [("vllm", "float32"), ("vllm-bf16", "bfloat16")])
def test_vllm_is_given_its_cores_and_the_dtype(tmp_path: Path, engine: str, dtype: str) -> None:
    arguments = ("--streams", "2", "--prompt", "5", "--new", "20", "--threads", "1")
    seen, speed = ran(tmp_path, engine, "folder", *arguments)
    assert seen["model"] == "folder"
    assert seen["options"]["dtype"] == dtype
    assert seen["options"]["enable_prefix_caching"] is False
    first = str(min(os.sched_getaffinity(0)))
    assert seen["environment"] == {
        "VLLM_CPU_OMP_THREADS_BIND": first,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }
    assert [(lengths, values["max_tokens"]) for lengths, values in seen["calls"]] == [
        ([5, 5], new) for new in (2, 1, 20)
    ]
    assert all(values["ignore_eos"] for _, values in seen["calls"])
    assert speed > 0


def test_what_the_environment_says_of_vllm_stays(tmp_path: Path) -> None:
    arguments = ("--streams", "0", "--prompt", "7", "--new", "1")
    seen, _ = ran(tmp_path, "vllm", "folder", *arguments, VLLM_CPU_OMP_THREADS_BIND="nobind")
    assert seen["environment"]["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert [lengths for lengths, _ in seen["calls"]] == [[7], [7]]
