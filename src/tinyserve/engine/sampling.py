"""Sampling: what a client may ask for (`SamplingParams`), and what one logits row needs
(`SampleRow`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.errors import RequestError
from tinyserve.kernels.ops import SampledToken as SampledToken  # a row's result

GREEDY_EPSILON = 1e-5  # temperatures below this are greedy
MAX_N = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to draw tokens and when to stop. Names and ranges follow OpenAI's API and vLLM's
    extensions.

    Order of effect: masks and bias, penalties, temperature, min_p, top_k, top_p. Raises
    RequestError naming the field.
    """

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # -1: none
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16  # None: up to the context limit
    ignore_eos: bool = False
    logprobs: int | None = None  # k: of the token and the k likeliest, from the raw log-softmax
    prompt_logprobs: int | None = None
    n: int = 1
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    # A constraint on the text: {"json": schema}, {"json_object": True}, {"regex": ...},
    # {"choice": [...]} or {"grammar": ...}.
    structured_outputs: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _normalise(self)
        _check_ranges(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    def check_vocab(self, vocab_size: int) -> None:
        """Raise RequestError where a token id lies outside the model's logits."""
        named: list[tuple[str, Sequence[int]]] = [
            ("logit_bias", list(self.logit_bias)),
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids or ()),
        ]
        for name, ids in named:
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise RequestError(
                        f"{name}: token id {token_id} is outside the vocabulary "
                        f"(0..{vocab_size - 1})",
                        param=name,
                    )


@dataclass(slots=True)
class SampleRow:
    """Everything that decides one draw, besides the logits: plain values, independent of batch and
    step.

    A sequence that just goes on hands in the same record again: by then `row` and `position` have
    moved and `output_ids` have grown, the rest is as it was. Rows that are only read (`target`,
    `wants_state`) need no seed and no outputs.
    """

    row: int  # index among the step's logits rows
    params: SamplingParams
    seed: int = 0
    choice: int = 0
    # The drawn token's, counted from the prompt's first. It keys the random number, with `seed` and
    # `choice`.
    position: int = 0
    prompt_ids: Sequence[int] = ()
    output_ids: Sequence[int] = ()  # generated before it
    drafted_ids: Sequence[int] = ()  # drafts after those, taken to be right
    banned_ids: tuple[int, ...] = ()  # EOS under min_tokens, the last token of a bad word
    mask: NDArray[np.uint32] | None = None  # bit i of word i // 32 allows token i (llguidance's)
    target: int | None = None  # score this token instead of drawing one
    num_logprobs: int | None = None  # None: report none
    wants_state: bool = False  # draw nothing: read the hidden state after the last norm
    draft: int | None = None  # the token proposed for this position
    draft_probs: NDArray[np.float32] | None = None  # [vocab], its distribution; None: certain
    wants_probs: bool = False  # report the distribution that the token is drawn from
    prepared: Any = field(default=None, init=False)  # kept here by the runner


def _normalise(p: SamplingParams) -> None:
    """Accept the spellings clients use: a lone stop string, lists for tuples, -1 for "off", string
    ids in logit_bias, numbers of numpy's types.
    """

    def put(name: str, value: Any) -> None:
        object.__setattr__(p, name, value)

    for name, value in vars(p).items():
        if isinstance(value, np.generic):
            put(name, value.item())
    put("stop", (p.stop,) if isinstance(p.stop, str) else _listed(p, "stop"))
    put("stop_token_ids", _listed(p, "stop_token_ids"))
    put("bad_words", _listed(p, "bad_words"))
    if p.allowed_token_ids is not None:
        put("allowed_token_ids", _listed(p, "allowed_token_ids"))
    if p.top_k == -1:
        put("top_k", 0)
    if p.seed == -1:
        put("seed", None)
    try:
        put("logit_bias", {_token_id(k): float(v) for k, v in (p.logit_bias or {}).items()})
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise RequestError("logit_bias maps token ids to numbers", param="logit_bias") from None


def _listed(p: SamplingParams, name: str) -> tuple[Any, ...]:
    """A list's entries; a text is none, though Python would take it for one of its letters."""
    value = getattr(p, name)
    if value is None:
        return ()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        _fail(name, repr(value), "a list")
    return tuple(item.item() if isinstance(item, np.generic) else item for item in value)


def _token_id(key: int | str) -> int:
    """An id as JSON can name it; what else Python reads as a number ("1_0", " 5") is none."""
    number = int(key)
    if str(number) != str(key):
        raise ValueError(key)
    return number


def _check_ranges(p: SamplingParams) -> None:
    for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(p, name), bool):  # "false" would be true
            _fail(name, repr(getattr(p, name)), "true or false")
    _number(p, "temperature", 0.0, 100.0)
    _number(p, "top_p", 0.0, 1.0)
    _number(p, "min_p", 0.0, 1.0)
    _number(p, "presence_penalty", -2.0, 2.0)
    _number(p, "frequency_penalty", -2.0, 2.0)
    _number(p, "repetition_penalty", 1e-3, 100.0)
    _integer(p, "top_k", 0, 2**31 - 1)
    _integer(p, "min_tokens", 0, 2**31 - 1)
    _integer(p, "max_tokens", 0, 2**31 - 1, optional=True)
    _integer(p, "n", 1, MAX_N)
    _integer(p, "logprobs", 0, MAX_LOGPROBS, optional=True)
    _integer(p, "prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
    _integer(p, "seed", -(2**63), 2**64 - 1, optional=True)
    for token_id, bias in p.logit_bias.items():
        if not -100.0 <= bias <= 100.0:
            _fail("logit_bias", f"{bias} for token {token_id}", "between -100 and 100")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise RequestError(
            f"min_tokens ({p.min_tokens}) exceeds max_tokens ({p.max_tokens})", param="min_tokens"
        )
    if len(p.stop) > MAX_STOP_STRINGS:
        _fail("stop", f"{len(p.stop)} strings", f"at most {MAX_STOP_STRINGS}")
    for name in ("stop", "bad_words"):
        for text in getattr(p, name):
            if not isinstance(text, str) or not text:
                _fail(name, repr(text), "non-empty strings")
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token_id in getattr(p, name) or ():
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                _fail(name, repr(token_id), "integers")
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        _fail("allowed_token_ids", "an empty list", "at least one id")


def _number(p: SamplingParams, name: str, low: float, high: float) -> None:
    value = getattr(p, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        _fail(name, repr(value), "a number")
    if not low <= value <= high:
        _fail(name, repr(value), f"between {low:g} and {high:g}")


def _integer(p: SamplingParams, name: str, low: int, high: int, optional: bool = False) -> None:
    value = getattr(p, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(name, repr(value), "an integer")
    if not low <= value <= high:
        _fail(name, repr(value), f"between {low} and {high}")


def _fail(name: str, got: str, want: str) -> None:
    raise RequestError(f"{name} must be {want}, got {got}", param=name)
