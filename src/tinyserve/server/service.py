"""`Service`: what the routes do, without HTTP: turns a parsed request body into a `Prepared`, which
is a group of engine requests and a writer for its answer.

One per served model. Holds the names it answers to; no state of requests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

from tinyserve.engine.build import Engine
from tinyserve.engine.intake import COMPLETION_MAX_TOKENS, Prompt
from tinyserve.engine.sampling import SamplingParams
from tinyserve.errors import UnknownModelError
from tinyserve.server.chat import (
    MakeWriter,
    chat_context,
    chat_prompt,
    prompt_size,
)
from tinyserve.server.deltas import DeltaMaker, DeltaOptions, GroupPrompt
from tinyserve.server.errors import renamed
from tinyserve.server.limits import (
    check_chat,
    check_completion,
    check_limits,
    check_scores,
    checked_prompts,
)
from tinyserve.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from tinyserve.server.said_once import SaidOnce
from tinyserve.server.session import Group
from tinyserve.server.structured import compiled, size_of, spec_of
from tinyserve.server.truncation import truncated
from tinyserve.server.writer import Identity, Writer
from tinyserve.text.tokenizer import Tokenizer

T = TypeVar("T")

# Takes the request, the tokenizer, the answer's identity and the number of prompts.
MakeCompletionWriter = Callable[[CompletionRequest, Tokenizer, Identity, int], Writer]

ALIAS = "tinyserve"  # a name of the served model, whatever others it has
INLINE_CHARACTERS = 8192  # longer texts are tokenized off the event loop


@dataclass(frozen=True)
class Prepared:
    """A request that may go to the engine, and how its answer is to be written."""

    group: Group
    writer: Writer
    is_stream: bool


@dataclass
class Service:
    """Prepares requests for one engine."""

    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        named = self.engine.config.server.served_model_name
        self.names = tuple(dict.fromkeys(named)) or (self.engine.model_name,)
        self.said_once = SaidOnce()

    @property
    def room(self) -> int:
        """The longest prompt plus answer, in tokens."""
        return self.engine.intake.limits.room

    def model_object(self, name: str) -> dict[str, Any]:
        """A served model, in the words of OpenAI and vLLM, then of Anthropic."""
        created_at = datetime.fromtimestamp(self.created, timezone.utc)
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "tinyserve",
            "root": self.engine.model_name,
            "parent": None,
            "max_model_len": self.engine.intake.limits.max_model_len,
            "type": "model",
            "display_name": name,
            "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def resolve_model(self, name: str | None) -> str:
        """The served name that `name` stands for, the first if it is empty: clients that require a
        name have nothing better to send. Raises UnknownModelError.
        """
        if not name or name == ALIAS:
            return self.names[0]
        if name not in self.names:
            raise UnknownModelError(name)
        return name

    async def completion(
        self, body: CompletionRequest, client: str, make_writer: MakeCompletionWriter
    ) -> Prepared:
        """Check and tokenize a completion. Raises RequestError."""
        model = self._check_common(body, "logprobs", body.logprobs)
        check_completion(body)
        fields = body.sampling_fields()
        params = self.engine.intake.params(fields, max_tokens=COMPLETION_MAX_TOKENS)
        prompts = checked_prompts(body.prompt, params.n)
        special = body.add_special_tokens is not False
        encoded = await self._encode(prompts, special)
        kept = [self._kept(p, ids, body, params) for p, ids in zip(prompts, encoded, strict=True)]
        spec = await self.off_loop_if(size_of(body), spec_of, body)
        options = DeltaOptions(
            fields.get("logprobs"), body.scores_prompt, params.skip_special_tokens
        )
        identity = self._identity("cmpl-", model)
        writer = make_writer(body, self.engine.intake.tokenizer, identity, len(kept))
        group = self._group(
            identity.response_id,
            body,
            params,
            kept,
            options,
            client=client,
            continues=True,
            grammar=await compiled(self.engine.intake.grammars, spec),
        )
        return Prepared(group, writer, bool(body.stream))

    async def chat(
        self,
        body: ChatRequest,
        client: str,
        make_writer: MakeWriter,
        *,
        id_prefix: str = "chatcmpl-",
        prompt_ids: list[int] | None = None,
    ) -> Prepared:
        """Check, render and tokenize a conversation. Raises RequestError.

        Whatever the client's protocol, its conversation comes as a ChatRequest; `make_writer` has
        the answer written its own way, under an id that begins with `id_prefix`. `prompt_ids` is
        what `prompt_of` gave for `body`, where the caller has needed it already.
        """
        model = self._check_common(body, "top_logprobs", body.top_logprobs)
        check_chat(body)
        params = self._chat_params(body)
        ids = prompt_ids or await self.prompt_of(body)
        context = chat_context(self.engine, body, ids, self._identity(id_prefix, model), params)
        options = DeltaOptions(
            body.num_logprobs, False, params.skip_special_tokens, context.answer.visible_ids
        )
        spec = await self.off_loop_if(prompt_size(body), context.constraint)
        with renamed(_own_names(body)):
            group = self._group(
                context.identity.response_id,
                body,
                params,
                [(self._truncated(ids, body, params), context.answer.echo)],
                options,
                client=client,
                continues=bool(body.continue_final_message),
                answer=context.answer,
                grammar=await compiled(self.engine.intake.grammars, spec),
            )
        return Prepared(group, make_writer(context), bool(body.stream))

    async def truncated_prompt(self, body: ChatRequest) -> list[int]:
        """What the model would read of a conversation, cut where it asks for that. Raises
        RequestError.
        """
        self._check_common(body, "top_logprobs", body.top_logprobs)
        return self._truncated(await self.prompt_of(body), body, self._chat_params(body))

    async def prompt_of(self, body: ChatRequest) -> list[int]:
        """The prompt of a conversation, as token ids. Raises RequestError."""
        return await self.off_loop_if(prompt_size(body), chat_prompt, self.engine, body)

    def _chat_params(self, body: ChatRequest) -> SamplingParams:
        intake = self.engine.intake
        with renamed(_own_names(body)):
            return intake.params(body.sampling_fields(), max_tokens=intake.chat_max_tokens)

    def _check_common(self, body: GenerationRequest, param: str, num_logprobs: int | None) -> str:
        """The checks that completions and chats share; returns the served name of the model."""
        model = self.resolve_model(body.model)
        limit = self.engine.config.server.max_logprobs
        check_limits(body, {param: num_logprobs, "prompt_logprobs": body.prompt_logprobs}, limit)
        self.said_once.unknown_fields((body.model_extra or {}).keys())
        return model

    def _group(
        self,
        group_id: str,
        body: GenerationRequest,
        params: SamplingParams,
        prompts: Sequence[tuple[list[int], str]],
        options: DeltaOptions,
        **extra: Any,
    ) -> Group:
        """One engine request for each prompt.

        `group_id` is the answer's id, so that logs and traces name what the client has seen.
        `prompts`: the ids of each, and the text that echo shows first. `extra` is for
        `Intake.request`.
        """
        intake, fields = self.engine.intake, body.sampling_fields()
        grouped: list[GroupPrompt] = []
        for i, (ids, echo) in enumerate(prompts):
            request = intake.request(
                f"{group_id}-{i}",
                ids,
                intake.with_room(params, fields, len(ids)),
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
                speculative=body.speculative is not False,
                **extra,
            )
            grouped.append(GroupPrompt(request, i * params.n, echo))
        group = Group(group_id, DeltaMaker(intake.tokenizer, grouped, options))
        check_scores(body, group.requests, options)
        return group

    async def _encode(self, prompts: Sequence[Prompt], special: bool) -> list[list[int]]:
        def encode_all() -> list[list[int]]:
            intake = self.engine.intake
            return [intake.encode(p, add_special_tokens=special) for p in prompts]

        return await self.off_loop_if(sum(len(p) for p in prompts), encode_all)

    async def off_loop_if(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Run at once when small, else on a thread, so that the loop keeps serving others."""
        if size <= INLINE_CHARACTERS:
            return function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    def _kept(
        self, prompt: Prompt, ids: list[int], body: CompletionRequest, params: SamplingParams
    ) -> tuple[list[int], str]:
        """What is left of a prompt, as ids and as the text that echo shows."""
        kept = self._truncated(ids, body, params)
        if not body.echo:
            return kept, ""
        if isinstance(prompt, str) and len(kept) == len(ids):
            return kept, prompt
        decode = self.engine.intake.tokenizer.decode
        return kept, decode(kept, skip_special_tokens=params.skip_special_tokens)

    def _truncated(
        self, ids: list[int], body: GenerationRequest, params: SamplingParams
    ) -> list[int]:
        """The prompt, or what is kept of it; room is left for as long an answer as is asked for. A
        length that nobody asked for gives way: it takes no more than half of the room.
        """
        wanted = params.max_tokens if params.max_tokens is not None else params.min_tokens or 1
        if "max_tokens" not in body.sampling_fields():
            wanted = min(wanted, max(self.room // 2, params.min_tokens))
        return truncated(ids, body.truncate_prompt_tokens, self.room - wanted)

    def _identity(self, prefix: str, model: str) -> Identity:
        return Identity(
            f"{prefix}{secrets.token_hex(12)}", int(time.time()), model, self.engine.fingerprint
        )


def _own_names(body: ChatRequest) -> dict[str, str]:
    """The names of fields in the engine's errors -> what a chat request calls them."""
    names = {"prompt": "messages"}
    if body.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names
