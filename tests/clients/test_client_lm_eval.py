"""lm-evaluation-harness over the completions API, on data made here.

Its scores must be the sums of our own logprobs: echo with logprobs, prompts as token ids, lists of
prompts; and `generate_until` must stop where it was told. Slow, and only where `lm-eval` is
installed (`pip install "lm-eval[api]"`, or TINYSERVE_LM_EVAL names its executable).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.live_server import Live, live

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import build_engine

LM_EVAL = os.environ.get("TINYSERVE_LM_EVAL") or shutil.which("lm-eval")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(LM_EVAL is None, reason="lm-eval is not installed"),
]

QUESTIONS = [
    {"question": "The sky is", "choices": [" blue", " a kind of bread"], "answer": 0},
    {"question": "Two and two are", "choices": [" seven", " four", " 4"], "answer": 1},
    {"question": "é 😀 unusual", "choices": [" text", " tëxt"], "answer": 0},
    {"question": "Fish live in", "choices": [" water", " trees"], "answer": 0},
]


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    """The synthetic model, really computed."""
    config = {"model": {"name": "synthetic"}, "scheduler": {"max_model_len": 512}}
    with live(build_engine(TinyServeConfig.from_dict(config))) as running:
        yield running


def write_tasks(folder: Path) -> None:
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    source = f"""
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
"""
    (folder / "choose.yaml").write_text(
        "task: tiny_choose\noutput_type: multiple_choice\n"
        + source
        + 'doc_to_choice: "{{choices}}"\ndoc_to_target: answer\n'
        + "metric_list: [{metric: acc}]\n"
    )
    (folder / "write.yaml").write_text(
        "task: tiny_write\noutput_type: generate_until\n"
        + source
        + 'doc_to_target: "{{choices[answer]}}"\n'
        + 'generation_kwargs: {until: ["e"], max_gen_toks: 12, temperature: 0}\n'
        + "metric_list: [{metric: exact_match}]\n"
    )


def run_harness(served: Live, folder: Path, batch_size: int) -> dict[str, list[dict[str, Any]]]:
    """The harness's samples by task."""
    write_tasks(folder)
    arguments = [
        f"base_url={served.base_url}/v1/completions",
        "model=tinyserve",
        "num_concurrent=2",
        "tokenized_requests=True",
    ]
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [
            *(str(LM_EVAL), "run", "--model", "local-completions"),
            *("--model_args", ",".join(arguments), "--include_path", str(folder)),
            *("--batch_size", str(batch_size)),
            *("--tasks", "tiny_choose,tiny_write", "--output_path", str(folder / "out")),
            "--log_samples",
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = {}
    for task in ("tiny_choose", "tiny_write"):
        (path,) = (folder / "out").rglob(f"samples_{task}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[task] = sorted(samples, key=lambda sample: int(sample["doc_id"]))
        assert len(found[task]) == len(QUESTIONS)
    return found


def score(served: Live, question: str, choice: str) -> float:
    """The logprob of `choice` after `question`, from the API's own numbers."""
    tokenizer = served.engine.intake.tokenizer
    whole = tokenizer.encode(question + choice, add_special_tokens=False)
    before = len(tokenizer.encode(question, add_special_tokens=False))
    answer = served.complete(whole, max_tokens=0, echo=True, logprobs=1)
    scores = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert len(scores) == len(whole)
    total: float = sum(scores[before:])
    return total


@pytest.mark.parametrize("batch_size", [1, 4])
def test_scores_and_texts_are_ours(served: Live, tmp_path: Path, batch_size: int) -> None:
    samples = run_harness(served, tmp_path, batch_size)
    for question, sample in zip(QUESTIONS, samples["tiny_choose"], strict=True):
        got = [float(response[0][0]) for response in sample["resps"]]
        want = [score(served, question["question"], c) for c in question["choices"]]
        assert got == pytest.approx(want, abs=1e-4)
    for question, sample in zip(QUESTIONS, samples["tiny_write"], strict=True):
        answer = served.complete(
            question["question"], max_tokens=12, temperature=0, stop=["e"], add_special_tokens=False
        )
        assert sample["resps"][0][0] == answer["choices"][0]["text"]
