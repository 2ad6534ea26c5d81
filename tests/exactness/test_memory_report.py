"""`memory_report()` against the resident memory of a process of its own, before and after work."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json
from tinyserve import LLM, SamplingParams
from tinyserve.engine.memory import resident_memory

llm = LLM("synthetic", num_blocks=30000, max_num_seqs=8)

def look():
    report = llm.engine.core.memory_report()
    return {
        "items": {name: item["touched"] for name, item in report.items()},
        "reserved": {name: item["reserved"] for name, item in report.items()},
        "touched": sum(item["touched"] for item in report.values()),
        "resident": resident_memory(),
    }

looks = [look()]
length = llm.config.scheduler.max_model_len
for seed in range(16):
    prompts = [[(seed + i * s) % 200 for i in range(length - 40)] for s in range(3, 11)]
    llm.generate(prompts, SamplingParams(max_tokens=30, temperature=0), progress=False)
looks.append(look())
print(json.dumps(looks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_touched_bytes_are_the_resident_memory() -> None:
    """Within ten per cent, at rest and after filling megabytes of KV blocks."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=110, check=True
    )
    before, after = json.loads(run.stdout)
    assert (
        before["items"]["kv_cache"] == before["reserved"]["kv_cache"] / 30000
    )  # the check's block
    assert after["items"]["kv_cache"] > 8e6
    for look in (before, after):
        assert look["touched"] == pytest.approx(look["resident"], rel=0.10)
        for name, touched in look["items"].items():
            assert 0 <= touched <= look["reserved"][name], name
