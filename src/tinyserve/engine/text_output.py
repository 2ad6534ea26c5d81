"""`ChoiceText`: the text of one choice, in the shape in which the engine asks for it.

Adapts `text.output.TextOutput` to `request.TextOutput`. Lives on the engine thread, one per choice.
"""

from __future__ import annotations

from collections.abc import Callable

from tinyserve.engine.sampling import SamplingParams
from tinyserve.text.output import TextOutput
from tinyserve.text.tokenizer import Tokenizer


class ChoiceText:
    """Text that became certain, cut where a stop string says so."""

    __slots__ = ("_detokenizer", "_output", "_plain_texts", "stop_hit")

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        visible_ids: frozenset[int],
        keeps_space: bool,
    ) -> None:
        self._output = TextOutput(
            tokenizer,
            stops=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            visible_ids=visible_ids,
            keeps_space=keeps_space,
        )
        self._detokenizer = self._output.only_detokenizer
        self._plain_texts = self._detokenizer.plain_texts if self._detokenizer else None
        self.stop_hit: str | None = None

    def push(self, token_id: int, can_stop: bool) -> str:
        if self._plain_texts is not None:
            text = self._plain_texts.get(token_id)
            if text is not None:  # nearly every token of a text without stop strings
                return text
        if self._detokenizer is not None:
            text = self._detokenizer.push(token_id)
            self._plain_texts = self._detokenizer.plain_texts
            return text
        self.stop_hit = self._output.push(token_id, allow_stop=can_stop)
        return self._output.take()

    def flush(self) -> str:
        self._output.finish()
        return self._output.take()


def text_factory(
    tokenizer: Tokenizer,
    params: SamplingParams,
    visible_ids: frozenset[int] = frozenset(),
    *,
    keeps_space: bool = False,
) -> Callable[[], ChoiceText]:
    """A maker of one ChoiceText per choice, for `EngineRequest.text`.

    `visible_ids` are special tokens that are shown even where others are skipped; `keeps_space` as
    in `Tokenizer.detokenizer`.
    """
    return lambda: ChoiceText(tokenizer, params, visible_ids, keeps_space)
