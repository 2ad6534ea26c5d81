"""The casebook on speculation: a draft model that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tinyserve import LLM, SamplingParams
from tinyserve.errors import ConfigError
from tinyserve.models.export import write_checkpoint
from tinyserve.models.synthetic import synthetic_checkpoint

SMALL = {"num_blocks": 64, "threads": 1, "max_model_len": 256}


def test_a_draft_of_another_vocabulary_is_refused_at_the_start(tmp_path: Path) -> None:
    """SPEC-09: both sizes are named."""
    draft = write_checkpoint(synthetic_checkpoint(), tmp_path / "draft", dtype="f32")
    path = draft / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    first, last = list(vocab)[-2:]
    vocab[first], vocab[last] = vocab[last], vocab[first]
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"another vocabulary.*512 against 512"):
        LLM("synthetic", draft_model=str(draft), **SMALL)


@pytest.mark.parametrize("rows", [500, 512, 640])
def test_a_draft_may_differ_in_its_padding(tmp_path: Path, rows: int) -> None:
    """SPEC-09: fewer or more rows of the embedding than tokens; the answer is the target's."""
    source = synthetic_checkpoint(7, vocab_size=rows)
    draft = write_checkpoint(source, tmp_path / "draft", dtype="f32")
    write_checkpoint(synthetic_checkpoint(), tmp_path / "target", dtype="f32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (draft / name).write_text((tmp_path / "target" / name).read_text())
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    outputs = [
        llm.generate(["the river"], params)[0].outputs[0].token_ids
        for llm in (
            LLM("synthetic", **SMALL),
            LLM("synthetic", draft_model=str(draft), adaptive=False, **SMALL),
        )
    ]
    assert outputs[0] == outputs[1]


def test_a_draft_may_have_rows_for_tokens_that_the_target_has_none_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC-09, LOAD-08: tokens beyond the target's embedding are not drafted. numpy would notice
    that the target has to read a row which it does not have.
    """
    monkeypatch.setenv("TINYSERVE_BACKEND", "numpy")
    target = write_checkpoint(synthetic_checkpoint(), tmp_path / "target", dtype="f32")
    data = json.loads((target / "tokenizer.json").read_text())
    for token_id in range(512, 640):
        added = {"id": token_id, "content": f"<|{token_id}|>", "special": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        data["added_tokens"].append({**added, **flags})
    (target / "tokenizer.json").write_text(json.dumps(data))
    source = synthetic_checkpoint(7, vocab_size=640)
    draft = write_checkpoint(source, tmp_path / "draft", dtype="f32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (draft / name).write_text((target / name).read_text())
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    with LLM(str(target), draft_model=str(draft), adaptive=False, **SMALL) as llm:
        assert len(llm.generate(["the river"], params)[0].token_ids) == 30
        assert llm.engine.core.stats().num_draft_tokens > 0
