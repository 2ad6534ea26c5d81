"""Text to tokens and back, without a model: `/tokenize`, `/detokenize`, and prompts as rendered.

vLLM's shapes. The same paths exist below `/v1`, for clients that know one base address only.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from tinyserve.errors import RequestError
from tinyserve.server.answer import json_response
from tinyserve.server.body import as_chat_request, read_body
from tinyserve.server.endpoints import Endpoints
from tinyserve.server.extensions import FAST
from tinyserve.server.protocol import ChatRequest
from tinyserve.server.service import Service
from tinyserve.server.state import ServerState
from tinyserve.text.tokenizer import Tokenizer

_CHAT_FIELDS = (
    "messages",
    "add_special_tokens",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
)


class TokenizeRequest(BaseModel):
    """A `prompt`, or `messages` with what else decides their prompt."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[Any] | None = None
    reasoning_effort: str | None = None


class DetokenizeRequest(BaseModel):
    """Token ids, each in the vocabulary."""

    model_config = ConfigDict(defer_build=True, strict=True, extra="allow")

    model: str | None = None
    tokens: Annotated[list[int], FAST]


def add_routes(routes: Endpoints, state: ServerState) -> None:
    @routes.post("/v1/tokenize", body=TokenizeRequest)
    @routes.post("/tokenize", body=TokenizeRequest)
    async def tokenize(request: Request) -> Response:
        service, _ = state.ready()
        body = await read_body(request, TokenizeRequest)
        service.resolve_model(body.model)
        ids = await _ids(service, body)
        label = service.engine.intake.tokenizer.token_label
        strings = [label(i) for i in ids] if body.return_token_strs else None
        return json_response({**_counted(service, ids), "token_strs": strings})

    @routes.post("/v1/detokenize", body=DetokenizeRequest)
    @routes.post("/detokenize", body=DetokenizeRequest)
    async def detokenize(request: Request) -> Response:
        service, _ = state.ready()
        body = await read_body(request, DetokenizeRequest)
        service.resolve_model(body.model)
        _check_ids(body.tokens, service.engine.intake.limits.vocab_size)
        decode = service.engine.intake.tokenizer.decode
        text = await service.off_loop_if(
            len(body.tokens), lambda: decode(body.tokens, skip_special_tokens=False)
        )
        return json_response({"prompt": text})

    @routes.get("/tokenizer_info")
    async def tokenizer_info(request: Request) -> Response:
        """What evaluation harnesses ask for: the special tokens by name, and the chat template."""
        service, _ = state.ready()
        tokenizer = service.engine.intake.tokenizer
        said: dict[str, Any] = {
            "tokenizer_class": "tinyserve",
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": service.engine.intake.limits.max_model_len,
            "bos_token": None,
            "eos_token": None,
            "chat_template": _template(tokenizer),
        }
        return json_response(said | dict(tokenizer.special_tokens))

    @routes.post("/apply-template", body=ChatRequest)
    @routes.post("/v1/chat/completions/render", body=ChatRequest)
    async def render(request: Request) -> Response:
        """The prompt of a chat request, as the model would read it."""
        service, _ = state.ready()
        body = await read_body(request, ChatRequest)
        ids = await service.truncated_prompt(body)
        decode = service.engine.intake.tokenizer.decode
        text = await service.off_loop_if(len(ids), lambda: decode(ids, skip_special_tokens=False))
        return json_response({"prompt": text, **_counted(service, ids)})


def _template(tokenizer: Tokenizer) -> str | None:
    try:
        return tokenizer.chat_template.source_for(has_tools=False)
    except RequestError:
        return None


async def _ids(service: Service, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        text, special = body.prompt, body.add_special_tokens is not False
        encode = service.engine.intake.tokenizer.encode
        return await service.off_loop_if(
            len(text), lambda: encode(text, add_special_tokens=special)
        )
    chat = as_chat_request({name: getattr(body, name) for name in _CHAT_FIELDS})
    return await service.prompt_of(chat)


def _counted(service: Service, ids: list[int]) -> dict[str, Any]:
    max_model_len = service.engine.intake.limits.max_model_len
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids}


def _check_ids(ids: list[int], size: int) -> None:
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < size:
            where = f"tokens[{i}]"
            raise RequestError(
                f"{where}: token id {token_id} is outside the vocabulary (0..{size - 1})",
                param=where,
            )
