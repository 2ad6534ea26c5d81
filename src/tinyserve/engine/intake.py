"""`Intake`: from what a user hands in (texts, token ids, messages, fields) to an `EngineRequest`.

The offline API and the server share it, so that both refuse the same things with the same words.
What exceeds the model's limits is refused here, before anything waits. Holds no state between
requests.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyserve.engine.model_limits import ModelLimits
from tinyserve.engine.request import EngineRequest, Pooling
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import ContextLengthError, RequestError
from tinyserve.text.answer_format import AnswerFormat, MessageFormat
from tinyserve.text.grammar import Grammar, GrammarCompiler
from tinyserve.text.grammar_spec import spec_of_options
from tinyserve.text.output import TextOutput
from tinyserve.text.template import ChatTemplate
from tinyserve.text.tokenizer import Tokenizer

Prompt = str | list[int]
COMPLETION_MAX_TOKENS = 16  # OpenAI's default where a completion names none
_NO_TOKENS = SamplingParams(temperature=0, max_tokens=0)
_PLAIN = AnswerFormat(MessageFormat())


@dataclass(frozen=True)
class Intake:
    """Makes engine requests for one model."""

    tokenizer: Tokenizer
    limits: ModelLimits
    grammars: GrammarCompiler
    embedding_size: int
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # for fields left out
    pooling: Pooling = "last"  # for embeddings that name none
    # The operator's variables of the chat template.
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    # How the model writes its answers.
    message_format: MessageFormat = field(default_factory=MessageFormat)
    # For conversations that name no limit. None: as many as there is room for.
    chat_max_tokens: int | None = None

    def params(self, fields: Mapping[str, Any], **fallback: Any) -> SamplingParams:
        """Sampling parameters: `fields` as set, then the model's defaults, then `fallback`.

        Raises RequestError naming the field.
        """
        for name in fields:
            if name not in _PARAM_NAMES:
                raise RequestError(f"unknown sampling parameter {name!r}", param=name)
        return SamplingParams(**{**fallback, **self.sampling_defaults, **fields})

    def with_room(
        self, params: SamplingParams, fields: Mapping[str, Any], num_prompt: int
    ) -> SamplingParams:
        """The `params` made of `fields`, for a prompt of that many tokens. A `max_tokens` that the
        fields name is kept, and refused where it does not fit; any other is a default, and is cut
        to the room that the prompt leaves.
        """
        if "max_tokens" in fields:
            return params
        room = max(self.limits.room - num_prompt, params.min_tokens, 1)
        if params.max_tokens is None or params.max_tokens <= room:
            return params
        return dataclasses.replace(params, max_tokens=room)

    def encode(
        self,
        prompt: Prompt,
        *,
        add_special_tokens: bool = True,
        is_whole: bool = False,
        param: str = "prompt",
    ) -> list[int]:
        """The ids of one prompt, or of a text that `is_whole` (`Tokenizer.encode`), checked against
        the vocabulary. Raises RequestError.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(
                prompt, add_special_tokens=add_special_tokens, is_whole=is_whole
            )
        else:
            ids = list(prompt)
        self.limits.check_ids(ids, param)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
        add_special_tokens: bool = False,
    ) -> list[int]:
        """The ids of a conversation, as the model's chat template writes it. Raises RequestError.

        The template writes every special token itself, so none is added unless asked for, and then
        no second BOS.
        `template_kwargs` are laid over the operator's. `template` takes the place of the model's.
        """
        text = (template or self.tokenizer.chat_template).render(
            messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs={**self.template_kwargs, **(template_kwargs or {})},
        )
        return self.encode(text, add_special_tokens=add_special_tokens, param="messages")

    def request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        answer: AnswerFormat = _PLAIN,
        continues: bool = False,
        grammar: Grammar | None = None,
        **extra: Any,
    ) -> EngineRequest:
        """A checked EngineRequest; `extra` are further fields of it. Raises RequestError.

        `params.max_tokens` None becomes the room that is left. `answer`: the format in which the
        model's text will be read. `continues`: that text goes on from the prompt's, rather than
        begin a message. Without a `grammar` that of `params` is compiled here and now.
        """
        params.check_vocab(self.limits.vocab_size)
        max_tokens = self.limits.max_tokens(len(prompt_token_ids), params)
        params = dataclasses.replace(params, max_tokens=max_tokens)
        grammar = grammar or self._grammar(params)
        # A space at the beginning belongs to a text that goes on from another, or whose grammar
        # counts it. Otherwise it is only SentencePiece's mark of a first word.
        goes_on = continues and self.tokenizer.has_text(prompt_token_ids)
        keeps_space = goes_on or (grammar is not None and grammar.holds_start)
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=params,
            new_text=functools.partial(
                TextOutput,
                self.tokenizer,
                stops=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
                visible_ids=answer.visible_ids,
                keeps_space=keeps_space,
                new_thinking=answer.new_split,
            ),
            keeps_space=keeps_space,
            bad_words_ids=self._bad_words(params.bad_words),
            new_grammar=grammar.matcher if grammar is not None else None,
            **extra,
        )

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if params.structured_outputs is None:
            return None
        spec = spec_of_options(params.structured_outputs, "structured_outputs")
        return self.grammars.compile(spec) if spec is not None else None

    def embedding_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        *,
        pooling: str | None = None,
        **extra: Any,
    ) -> EngineRequest:
        """A checked EngineRequest that makes an embedding and no token. Raises RequestError."""
        if pooling not in (None, "last", "mean"):
            raise RequestError(
                f"pooling must be 'last' or 'mean', got {pooling!r}", param="pooling"
            )
        longest = self.limits.longest_prompt
        if len(prompt_token_ids) > longest:
            raise ContextLengthError(
                f"This model's maximum context length is {longest} tokens. However, your input "
                f"has {len(prompt_token_ids)}. Please shorten it, or set truncate_prompt_tokens.",
                param="input",
            )
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            params=_NO_TOKENS,
            pooling=pooling or self.pooling,  # type: ignore[arg-type]
            **extra,
        )

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word as the model may write it: at the start of a text, and after a
        space.

        What the logits have no place for (tokens added beyond the embedding) is never written.
        """
        size = self.limits.vocab_size
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                if ids and max(ids) < size:
                    sequences[ids] = None
        return tuple(sequences)


_PARAM_NAMES = frozenset(f.name for f in dataclasses.fields(SamplingParams))


def split_prompts(value: Any, *, param: str = "prompt") -> list[Prompt]:
    """A text, some texts, a list of token ids, or a list of such lists, as a list of prompts.

    Raises RequestError for anything else: nothing, an empty list, a mixture.
    """
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise RequestError(
            f"{param} must be a string, a list of strings, a list of token ids, or a list of such "
            "lists, and not empty",
            param=param,
        )
    items = list(value)
    if all(isinstance(item, str) for item in items):
        return items
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return [items]
    if all(isinstance(item, list | tuple) for item in items):
        return [list(item) for item in items]
    raise RequestError(
        f"{param} must hold only strings, only token ids (integers), or only lists of token ids",
        param=param,
    )
