"""`LLM`: the offline API. Texts or token ids in, texts out, on the caller's own thread.

Says what may be handed in, and turns it into engine requests; `engine/calls.py` runs them. Several
calls may be open at once: streams read in turns, or calls from several threads. After a
RequestError or a KeyboardInterrupt the next call works.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine, build_engine
from tinyserve.engine.calls import Stream, run
from tinyserve.engine.exclusive import interrupts_put_off
from tinyserve.engine.intake import COMPLETION_MAX_TOKENS, Intake, Prompt
from tinyserve.engine.llm_arguments import either, plain, prompts_of, template_options
from tinyserve.engine.outputs import Output
from tinyserve.engine.prompt_rows import unit
from tinyserve.engine.sampling import SamplingParams
from tinyserve.engine.shared_core import SharedCore
from tinyserve.engine.turn import Turn
from tinyserve.errors import ConfigError, RequestError
from tinyserve.text.tokenizer import Tokenizer
from tinyserve.text.tool_use import read_tool_use

Params = SamplingParams | Mapping[str, Any] | None
Prompts = (
    str | Mapping[str, Any] | Iterable[int] | Iterable[str | Mapping[str, Any] | Iterable[int]]
)
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model to call.

    `model` is a folder, a .gguf file, a hub id, or "default". `config` sets everything else;
    `overrides` are single settings by name (`max_model_len=512`, `block_size=32`), which win.
    """

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        config: TinyServeConfig | Mapping[str, Any] | None = None,
        **overrides: Any,
    ) -> None:
        self._start(build_engine(_configured(model, config, overrides)))

    @classmethod
    def from_engine(cls, engine: Engine) -> LLM:
        """An LLM over an engine that was built elsewhere (a fake model in tests)."""
        llm = cls.__new__(cls)
        llm._start(engine)
        return llm

    def _start(self, engine: Engine) -> None:
        self.engine = engine
        self._core = SharedCore(engine.core)
        self._ids = itertools.count()

    @property
    def config(self) -> TinyServeConfig:
        """The configuration with every automatic value resolved."""
        return self.engine.config

    def get_tokenizer(self) -> Tokenizer:
        """The model's own: `encode` a text, `decode` ids."""
        return self._intake.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` samples with where it is told nothing else."""
        return self._intake.params({}, max_tokens=COMPLETION_MAX_TOKENS)

    def generate(
        self,
        prompts: Prompts,
        params: Params | Iterable[Params] = None,
        *,
        progress: bool | None = None,
        sampling_params: Params | Iterable[Params] = None,
        use_tqdm: bool | None = None,
    ) -> list[Output]:
        """One Output per prompt, in order.

        Prompts are texts, lists of token ids, or mappings with a `prompt` or its
        `prompt_token_ids`, in any iterable. A bare list of ints is one prompt.

        `params`: SamplingParams, a mapping of its fields (the rest from the model's defaults), or
        a list with one per prompt; None is the model's defaults and 16 tokens, or fewer where there
        is no room. `progress` None shows a bar for batches on a terminal. vLLM's names for the two
        will do, too. Raises RequestError, and then nothing has run.
        """
        params = either(params, sampling_params, "params or sampling_params")
        progress = either(progress, use_tqdm, "progress or use_tqdm")
        texts = prompts_of(prompts, param="prompts")
        ids = [self._encode(text, param="prompts") for text in texts]
        lengths = [len(i) for i in ids]
        all_params = self._params_list(params, lengths, {"max_tokens": COMPLETION_MAX_TOKENS})
        requests = [
            self._intake.request(self._next_id(), i, p, continues=True)
            for i, p in zip(ids, all_params, strict=True)
        ]
        results = run(self._core, requests, progress)
        for text, result in zip(texts, results, strict=True):
            result.prompt = text if isinstance(text, str) else None
        return results

    def chat(
        self,
        messages: Messages | Iterable[Messages],
        params: Params | Iterable[Params] = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        progress: bool | None = None,
        sampling_params: Params | Iterable[Params] = None,
        use_tqdm: bool | None = None,
        **template: Any,
    ) -> list[Output]:
        """Answer a conversation, or each of several, by the model's chat template.

        `tools`, `tool_choice` and `response_format` as in OpenAI's API; calls are in each choice's
        `message`. `template`: add_generation_prompt, continue_final_message, template_kwargs, or a
        chat_template in place of the model's. The rest as in `generate`, but by default
        without a limit of tokens, or with the one that the model's generation_config.json names.
        Raises RequestError.
        """
        params = either(params, sampling_params, "params or sampling_params")
        progress = either(progress, use_tqdm, "progress or use_tqdm")
        template = template_options(self._intake, "chat", template)
        messages = plain(messages)
        if not isinstance(messages, list):
            raise RequestError("messages must be a list of messages", param="messages")
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        chats = [messages] if is_one else [plain(chat) for chat in messages]
        if not chats:
            raise RequestError("messages is empty", param="messages")
        use = read_tool_use(tools, tool_choice)
        turns = [Turn.after(self._intake, chat, use, response_format, **template) for chat in chats]
        lengths = [len(turn.prompt_ids) for turn in turns]
        limit = {"max_tokens": self._intake.chat_max_tokens}
        all_params = self._params_list(params, lengths, limit)
        pairs = zip(turns, all_params, strict=True)
        requests = [turn.request(self._next_id(), p) for turn, p in pairs]
        results = run(self._core, requests, progress)
        for turn, result in zip(turns, results, strict=True):
            for choice in result.outputs:
                choice.message = turn.answer.read(choice.text)
        return results

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling: str | None = None,
        normalize: bool = True,
        progress: bool | None = None,
        use_tqdm: bool | None = None,
    ) -> NDArray[np.float32]:
        """One embedding per prompt, as rows: [prompts, hidden].

        The last hidden states after the final norm, pooled: "last" takes the last token's, "mean"
        the mean over all tokens; None is what the configuration says (`model.pooling`). Of length 1
        unless `normalize` is false. Raises RequestError, and then nothing has run.
        """
        progress = either(progress, use_tqdm, "progress or use_tqdm")
        texts = prompts_of(prompts, param="prompts")
        requests = []
        for text in texts:
            ids = self._encode(text, param="prompts", is_whole=True)
            requests.append(self._intake.embedding_request(self._next_id(), ids, pooling=pooling))
        results = run(self._core, requests, progress)
        rows = [result.embedding for result in results if result.embedding is not None]
        return np.stack([unit(row) for row in rows] if normalize else rows)

    def stream(
        self, prompt: str | Mapping[str, Any] | Iterable[int], params: Params = None
    ) -> Stream:
        """What `generate` would return for one prompt, as it comes. Close it to stop early."""
        texts = prompts_of(prompt, param="prompt")
        if len(texts) != 1:
            raise RequestError("stream takes one prompt", param="prompt")
        ids = self._encode(texts[0], param="prompt")
        settled = self._params(params, len(ids), {"max_tokens": COMPLETION_MAX_TOKENS})
        request = self._intake.request(self._next_id(), ids, settled, continues=True)
        return Stream(self._core, request)

    def stream_chat(
        self,
        messages: Messages,
        params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> Stream:
        """What `chat` would return for one conversation, as it comes. Raises RequestError."""
        use = read_tool_use(tools, tool_choice)
        options = template_options(self._intake, "stream_chat", template)
        turn = Turn.after(self._intake, plain(messages), use, response_format, **options)
        limit = {"max_tokens": self._intake.chat_max_tokens}
        settled = self._params(params, len(turn.prompt_ids), limit)
        return Stream(self._core, turn.request(self._next_id(), settled), turn.answer)

    def close(self) -> None:
        """Abort whatever is still open, and tell who waits for it. The model is freed with the last
        reference to it.
        """
        self._core.end_all("its LLM was closed")

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _intake(self) -> Intake:
        return self.engine.intake

    def _encode(self, prompt: Prompt, *, param: str, is_whole: bool = False) -> list[int]:
        """A prompt's ids. The tokenizer's errors have no class of their own: what an interrupt
        raises must not be taken for one.
        """
        with interrupts_put_off():
            return self._intake.encode(prompt, is_whole=is_whole, param=param)

    def _params(
        self, params: Params, num_prompt: int, fallback: Mapping[str, Any]
    ) -> SamplingParams:
        """The sampling parameters of one prompt, which has `num_prompt` tokens."""
        if isinstance(params, SamplingParams):
            return params
        if params is not None and not isinstance(params, Mapping):
            raise RequestError(
                f"params must be SamplingParams or a mapping, got {type(params).__name__}",
                param="params",
            )
        fields = params or {}
        return self._intake.with_room(self._intake.params(fields, **fallback), fields, num_prompt)

    def _params_list(
        self,
        params: Params | Iterable[Params],
        lengths: Sequence[int],
        fallback: Mapping[str, Any],
    ) -> list[SamplingParams]:
        """The sampling parameters of prompts of these lengths."""
        if params is None or isinstance(params, SamplingParams | Mapping):
            return [self._params(params, length, fallback) for length in lengths]
        params = plain(params)
        if not isinstance(params, list) or len(params) != len(lengths):
            raise RequestError(
                f"params must be one SamplingParams, or a list of {len(lengths)} of them",
                param="params",
            )
        pairs = zip(params, lengths, strict=True)
        return [self._params(p, length, fallback) for p, length in pairs]

    def _next_id(self) -> str:
        return f"llm-{next(self._ids)}"


def _configured(
    model: str | PathLike[str] | None,
    config: TinyServeConfig | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
) -> TinyServeConfig:
    """`config` with `model` and single settings laid over it. Raises ConfigError."""
    if config is None:
        config = TinyServeConfig()
    elif isinstance(config, Mapping):
        config = TinyServeConfig.from_dict(config)
    if not isinstance(config, TinyServeConfig):
        raise ConfigError(
            f"config must be a TinyServeConfig or a mapping, got {type(config).__name__}"
        )
    if model is not None:
        overrides = {"name": model, **overrides}
    return config.with_settings(overrides)
