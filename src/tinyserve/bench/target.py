"""An OpenAI-compatible server under load: how it is asked, and what its answer says.

Whoever wrote it: some servers send no usage, no [DONE], several tokens in a piece, or errors in the
middle of a stream.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Any

from tinyserve.bench.http_stream import Answer, post
from tinyserve.bench.latency import Record
from tinyserve.bench.served import unproxied
from tinyserve.bench.workload import Arrival
from tinyserve.errors import ConfigError

_TEXT = """time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work number night
point home water room mother area money story fact month lot right study book eye job word"""
WORDS = _TEXT.split()
WRITTEN = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")  # by the model


class Target:
    """The server under load, and how it is asked."""

    def __init__(
        self,
        url: str,
        *,
        endpoint: str = "completions",
        model: str | None = None,
        api_key: str | None = None,
        temperature: float = 0.0,
        ignore_eos: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        path = "/v1/completions" if endpoint == "completions" else "/v1/chat/completions"
        self.base = url.rstrip("/").removesuffix("/v1")
        self._url = self.base + path
        self._is_chat = endpoint == "chat"
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._temperature = temperature
        self._ignore_eos = ignore_eos
        self._timeout_s = timeout_s

    @classmethod
    def of(cls, args: argparse.Namespace) -> Target:
        """The target of the options; the server is asked for its model's name if they have none."""
        return cls(
            args.url,
            endpoint=args.endpoint,
            model=args.model or first_model(args.url, args.api_key),
            api_key=args.api_key,
            temperature=args.temperature,
            ignore_eos=not args.respect_eos,
            timeout_s=args.timeout,
        )

    async def ask(self, arrival: Arrival, number: int) -> Record:
        """Send one request and wait for its end; failures are noted in the record."""
        record = Record(time.perf_counter(), len(arrival.prompt_ids), client=arrival.client)
        try:
            answer = await post(
                self._url, self._body(arrival, number), self._headers, self._timeout_s
            )
            _read(answer, record)
        except Exception as error:
            record.error = f"{type(error).__name__}: {error}"
        return record

    def _body(self, arrival: Arrival, number: int) -> dict[str, Any]:
        text = prompt_text(arrival.prompt_ids, number)
        said: dict[str, Any] = (
            {"messages": [{"role": "user", "content": text}]} if self._is_chat else {"prompt": text}
        )
        return {
            **said,
            **({"model": self._model} if self._model else {}),
            "max_tokens": arrival.max_tokens,
            "temperature": self._temperature,
            **({"ignore_eos": True} if self._ignore_eos else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def prompt_text(ids: Sequence[int], number: int) -> str:
    """About as many tokens of common words, after a number that no other prompt has."""
    return f"{number}: " + " ".join(WORDS[i % len(WORDS)] for i in ids[3:])


def _read(answer: Answer, record: Record) -> None:
    """Fill a record from the events of its stream."""
    if not answer.is_stream:
        record.error = _no_stream(answer)
        return
    is_done = False
    for when, data in answer.events:
        if data == b"[DONE]":
            is_done = True
            continue
        chunk = json.loads(data)
        if not isinstance(chunk, dict):
            continue
        if chunk.get("error") or chunk.get("object") == "error":
            record.error = json.dumps(chunk.get("error") or chunk)
            return
        for choice in chunk.get("choices") or ():
            if _has_output(choice):
                record.token_times.append(when)
            reason = choice.get("finish_reason")
            if reason in ("abort", "error"):
                record.error = f"the stream ended with finish_reason {reason}"
                return
            is_done = is_done or bool(reason)  # some servers send no [DONE]
        usage = chunk.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        record.num_tokens = usage.get("completion_tokens") or record.num_tokens
        record.prompt_tokens = usage.get("prompt_tokens") or record.prompt_tokens
        record.cached_tokens = details.get("cached_tokens") or record.cached_tokens
    if not is_done:
        record.error = "the stream ended early"
    elif not record.token_times:
        record.error = "the stream had no text"


def _no_stream(answer: Answer) -> str:
    """What came instead."""
    if not answer.status:
        return "the connection was closed without an answer"
    said = answer.body[:200].decode(errors="replace")
    if answer.status == 200:
        return f"not a stream but {answer.content_type.decode('latin-1') or 'no type'}: {said}"
    return f"HTTP {answer.status}: {said}"


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether a piece has anything that the model wrote."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in WRITTEN)


def first_model(url: str, api_key: str | None = None) -> str | None:
    """The first model that the server lists; None where it lists none. Raises ConfigError."""
    import http.client
    import urllib.request

    place = url.rstrip("/").removesuffix("/v1") + "/v1/models"
    request = urllib.request.Request(place)
    if api_key:
        request.add_header("Authorization", f"Bearer {api_key}")
    try:
        with unproxied(request, timeout=30) as response:  # no proxy, as for the load itself
            data = json.load(response).get("data")
        return str(data[0]["id"]) if data else None
    except (
        OSError,
        ValueError,
        http.client.HTTPException,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        why = _reason(error) if isinstance(error, OSError) else "no list of models"
        raise ConfigError(f"{place}: {why} (--model names one without asking)") from None


def _reason(error: OSError) -> str:
    """Why the server could not be reached; a status that it answered with stays whole."""
    is_answer = isinstance(error, urllib.error.HTTPError)
    return str(error) if is_answer else str(getattr(error, "reason", error))
