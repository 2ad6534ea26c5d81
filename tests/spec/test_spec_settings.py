"""How speculation is asked for: YAML keys, variables, flags, and one JSON object for all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinyserve.cli.options import build_parser, configuration
from tinyserve.config import SpecConfig, TinyServeConfig
from tinyserve.engine.drawing import draw_by_rejection, draw_coupled
from tinyserve.engine.speculation import make_draw, make_proposer
from tinyserve.errors import ConfigError
from tinyserve.spec.ngram import NgramProposer
from tinyserve.spec.suffix import SuffixProposer


def parse(*argv: str) -> SpecConfig:
    return configuration(build_parser().parse_args(["serve", *argv])).spec


def test_off_unless_asked_for() -> None:
    assert not TinyServeConfig().spec.enabled
    assert not parse().enabled
    assert not parse("--num-speculative-tokens", "3").enabled


@pytest.mark.parametrize(
    "argv",
    [
        ("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 7}'),
        ("--speculative-method", "suffix", "--num-speculative-tokens", "7"),
        ("--speculative-config", '{"method": "suffix"}', "--num-speculative-tokens", "7"),
    ],
)
def test_flags_and_json_say_the_same(argv: tuple[str, ...]) -> None:
    assert parse(*argv) == SpecConfig(enabled=True, method="suffix", num_speculative_tokens=7)


def test_a_draft_model_implies_its_method() -> None:
    """`model` is vLLM's name for it."""
    want = SpecConfig(enabled=True, method="draft_model", draft_model="small")
    assert parse("--draft-model", "small") == want
    assert parse("--speculative-config", '{"model": "small"}') == want
    assert TinyServeConfig().with_settings({"draft_model": "small"}).spec == want
    assert TinyServeConfig().with_settings({"speculative_config": {"model": "small"}}).spec == want


def test_enabled_false_keeps_a_method_off() -> None:
    values: dict[str, Any] = {"spec": {"enabled": False, "method": "suffix"}}
    assert not TinyServeConfig.from_dict(values).spec.enabled


def test_a_stronger_source_turns_it_on(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("spec: {enabled: false, method: ngram, num_speculative_tokens: 2}\n")
    env = {"TINYSERVE_SPEC_SPECULATIVE_CONFIG": '{"method": "suffix"}'}
    spec = TinyServeConfig.resolve(file=path, env=env).spec
    assert spec == SpecConfig(enabled=True, method="suffix", num_speculative_tokens=2)
    again = TinyServeConfig.resolve(file=path, env=env, overrides={"spec.enabled": False}).spec
    assert not again.enabled


def test_settings_survive_being_written_down() -> None:
    config = TinyServeConfig().with_settings({"method": "suffix", "prompt_lookup_max": 9})
    assert TinyServeConfig.from_dict(config.to_dict()) == config


def test_contradictions_are_refused() -> None:
    for values in (
        {"enabled": True, "method": "draft_model"},
        {"enabled": True, "method": "suffix", "draft_model": "small"},
        {"prompt_lookup_min": 5, "prompt_lookup_max": 3},
        {"num_speculative_tokens": 0},
        {"verification": "hope"},
    ):
        with pytest.raises(ConfigError, match="spec"):
            TinyServeConfig.from_dict({"spec": values})


@pytest.mark.parametrize(("method", "kind"), [("ngram", NgramProposer), ("suffix", SuffixProposer)])
def test_the_method_names_the_proposer(method: str, kind: type) -> None:
    proposer = make_proposer(SpecConfig(enabled=True, method=method, num_speculative_tokens=7))
    assert type(proposer) is kind
    assert proposer.max_drafts == 7


@pytest.mark.parametrize(
    ("spec", "draw"),
    [
        (SpecConfig(), draw_coupled),
        (SpecConfig(verification="rejection"), draw_coupled),  # there are no drafts to reject
        (SpecConfig(enabled=True), draw_coupled),
        (SpecConfig(enabled=True, verification="rejection"), draw_by_rejection),
    ],
)
def test_verification_names_the_draw(spec: SpecConfig, draw: object) -> None:
    assert make_draw(spec) is draw
