"""The casebook on conversations: what is echoed, what is truncated, how faults are named."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.fake_service import make_engine
from helpers.live_server import Live, live, ok
from helpers.tiny_gguf import DROP, write_tiny_gguf

from tinyserve import LLM, SamplingParams, TinyServeConfig
from tinyserve.engine.build import build_engine
from tinyserve.models.synthetic import synthetic_checkpoint

CHAT, PATH = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(make_engine()) as running:
        running.runner.says(" 42")
        yield running


@pytest.mark.parametrize(
    "content",
    [
        "It is",
        [{"type": "text", "text": "It is"}],
        [{"type": "output_text", "text": "It is"}],
        [{"type": "text", "text": "It"}, {"type": "text", "text": "is"}],
        ["It is"],
    ],
)
def test_whatever_its_form_what_is_continued_is_echoed(served: Live, content: Any) -> None:
    """CHAT-14: a list of parts was left out."""
    messages = [*HELLO, {"role": "assistant", "content": content}]
    body = {"messages": messages, "continue_final_message": True, "n": 2}
    old = "It\nis" if len(content) == 2 else "It is"
    for echo, expected in ((False, " 42"), (True, f"{old} 42")):
        choices = ok(served.post(CHAT, **body, echo=echo))["choices"]
        assert [choice["message"]["content"] for choice in choices] == [expected] * 2
        streamed = {0: "", 1: ""}
        for chunk in served.stream(CHAT, **body, echo=echo):
            (choice,) = chunk["choices"]
            streamed[choice["index"]] += choice["delta"].get("content", "")
        assert streamed == {0: expected, 1: expected}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": ["a", {"type": "image_url"}]}, "messages[1].content[1]"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "content": None}, "messages[1].content"),
        ({"role": "who", "content": "a"}, "messages[1].role"),
        ({"content": "a"}, "messages[1].role"),
    ],
)
def test_the_fault_in_a_message_is_named_by_its_path(
    served: Live, message: dict[str, Any], param: str
) -> None:
    """LIM-05"""
    refused = served.post(CHAT, messages=[*HELLO, message])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    served.chat(max_tokens=1)


def test_a_refusal_in_the_history_is_text(served: Live) -> None:
    """CHAT-10: a part that OpenAI's own answers hold."""
    refusal = [{"type": "refusal", "refusal": "no"}]
    counts = []
    for content in (refusal, "no"):
        messages = [*HELLO, {"role": "assistant", "content": content}, *HELLO]
        counts.append(ok(served.post("/tokenize", messages=messages))["tokens"])
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"refusal": "no"}, "no"),
        ({"reasoning_content": "hm", "refusal": None}, ""),  # cut off while it was thinking
        ({"reasoning": "hm"}, ""),
    ],
)
def test_an_answer_without_content_may_come_back(
    served: Live, said: dict[str, Any], text: str
) -> None:
    """CHAT-10: clients send back what OpenAI's and vLLM's servers have answered."""
    ids = []
    for turn in ({"content": None, **said}, {**said, "content": text}):
        messages = [*HELLO, {"role": "assistant", **turn}, *HELLO]
        ids.append(ok(served.post("/tokenize", messages=messages))["tokens"])
    assert ids[0] == ids[1]
    messages = [*HELLO, {"role": "user", "content": None, **said}]
    assert served.post(CHAT, messages=messages).status_code == 400


@pytest.mark.parametrize("max_tokens", [0, 1, 20, 511])
def test_truncation_to_the_room(served: Live, max_tokens: int) -> None:
    """LIM-12: -1 keeps the end of the prompt that leaves room for the answer; nothing else does."""
    prompt = list(range(3, 503)) * 3
    body = {"max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    answer = served.complete(prompt, truncate_prompt_tokens=-1, **body)
    kept = answer["choices"][0]["prompt_token_ids"]
    assert len(kept) == 512 - max_tokens
    assert kept == prompt[-len(kept) :]
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert served.post(PATH, prompt=prompt, **body).status_code == 400
    assert served.complete([5], truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("value", [0, -2, 1.5, "1", True])
def test_truncation_that_makes_no_sense(served: Live, value: Any) -> None:
    """LIM-12"""
    for path, body in ((PATH, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        refused = served.post(path, **body, truncate_prompt_tokens=value)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "truncate_prompt_tokens"


SPACED = 400  # a token that begins with a space


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of a model whose words begin with a space, the first of a text excepted."""
    words = ["\u2581", *(f"\u2581w{i}" for i in range(260, 512))]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    said = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.scores": [-float(i) for i in range(512)],
        "tokenizer.ggml.merges": DROP,
        "tokenizer.ggml.add_bos_token": True,
    }
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    write_tiny_gguf(path, synthetic_checkpoint(), metadata=said)
    config = {"model": {"name": str(path), "threads": 1}, "cache": {"num_blocks": 64}}
    with live(build_engine(TinyServeConfig.from_dict(config))) as served:
        yield served


@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_on_from_a_text_keeps_its_first_space(sentencepiece: Live, stream: bool) -> None:
    """LOG-06: prompt and answer make one text, whether the server joins them or the client."""
    body = {"max_tokens": 2, "allowed_token_ids": [SPACED], "logprobs": 0}
    two = f" w{SPACED} w{SPACED}"

    def complete(**more: Any) -> tuple[str, list[str], list[int]]:
        if stream:
            chunks = sentencepiece.stream(PATH, **body, **more)
        else:
            chunks = [ok(sentencepiece.post(PATH, **body, **more))]
        pieces = [chunk["choices"][0] for chunk in chunks]
        scores = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
        return (
            "".join(piece["text"] for piece in pieces),
            [token for score in scores for token in score["tokens"]],
            [offset for score in scores for offset in score["text_offset"]],
        )

    text, tokens, offsets = complete(prompt="so")
    assert text == "".join(tokens) == two
    assert offsets == [0, 5]
    text, tokens, offsets = complete(prompt="so", echo=True)
    assert text == f"so{two}"
    assert offsets[-2:] == [2, 7]
    text, tokens, offsets = complete(prompt=[1])  # nothing that shows comes before it
    assert text == two[1:]
    assert offsets == [0, 4]


@pytest.mark.parametrize("going_on", [False, True])
def test_a_message_begins_without_a_space_unless_it_goes_on(
    sentencepiece: Live, going_on: bool
) -> None:
    messages = [{"role": "user", "content": "so"}]
    if going_on:
        messages.append({"role": "assistant", "content": "and"})
    params = {"max_tokens": 2, "allowed_token_ids": [SPACED]}
    text = f" w{SPACED} w{SPACED}"
    expected = text if going_on else text[1:]
    body = {"messages": messages, "continue_final_message": going_on, **params}
    answer = ok(sentencepiece.post(CHAT, **body))
    assert answer["choices"][0]["message"]["content"] == expected

    llm = LLM.from_engine(build_engine(sentencepiece.engine.config))
    settings = SamplingParams(**params)
    (output,) = llm.chat(messages, settings, continue_final_message=going_on)
    assert output.text == expected
    assert llm.generate("so", settings)[0].text == text


@pytest.mark.parametrize("stream", [False, True])
def test_scored_tokens_join_up_where_a_text_begins_without_a_space(
    sentencepiece: Live, stream: bool
) -> None:
    """LOG-04, LOG-06: what the first token loses in the text is not in its logprobs either."""

    def choices(path: str, **body: Any) -> list[dict[str, Any]]:
        body |= {"max_tokens": 2, "allowed_token_ids": [SPACED], "ignore_eos": True}
        if stream:
            return [chunk["choices"][0] for chunk in sentencepiece.stream(path, **body)]
        return [ok(sentencepiece.post(path, **body))["choices"][0]]

    text = f"w{SPACED} w{SPACED}"
    messages = [{"role": "user", "content": "so"}]
    pieces = choices(CHAT, messages=messages, logprobs=True, top_logprobs=3)
    entries = [e for piece in pieces if piece["logprobs"] for e in piece["logprobs"]["content"]]
    assert "".join(entry["token"] for entry in entries) == text
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == text.encode()
    first, second = (
        [top["token"] for top in entry["top_logprobs"] if "w" in top["token"]] for entry in entries
    )
    assert not any(token.startswith(" ") for token in first)
    assert all(token.startswith(" ") for token in second)
    pieces = choices(PATH, prompt=[1], logprobs=0)
    tokens = [t for p in pieces if p["logprobs"] for t in p["logprobs"]["tokens"]]
    assert "".join(tokens) == text


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", ["so", f"w{SPACED} so", f"so</s>w{SPACED}", "</s>so</s></s>so"])
def test_echoed_tokens_stand_where_the_text_has_them(
    sentencepiece: Live, text: str, skip: bool
) -> None:
    """LOG-06: a BOS that is added is not in the text, whether or not special tokens are shown, and
    neither is the mark of a word that comes first after a special token.
    """
    body = {"echo": True, "logprobs": 0, "max_tokens": 2, "allowed_token_ids": [SPACED]}
    answer = ok(sentencepiece.post(PATH, prompt=text, skip_special_tokens=skip, **body))
    choice = answer["choices"][0]
    (bos, *tokens), offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert bos == "<s>"
    assert "".join(tokens) == choice["text"] == f"{text} w{SPACED} w{SPACED}"
    assert offsets == [0, *(len("".join(tokens[:i])) for i in range(len(tokens)))]
    ids = [1, *sentencepiece.engine.intake.tokenizer.encode(text, add_special_tokens=False)]
    choice = ok(sentencepiece.post(PATH, prompt=ids, skip_special_tokens=skip, **body))["choices"][
        0
    ]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    if skip:
        tokens = ["" if token in ("<s>", "</s>") else token for token in tokens]
    assert "".join(tokens) == choice["text"]
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]


def test_a_bos_on_request_where_the_template_writes_none(sentencepiece: Live) -> None:
    """CHAT-03, SAM-13: vLLM's field has its effect in every place that knows the prompt."""
    body = {"messages": [{"role": "user", "content": "so"}]}
    for path in (f"{CHAT}/render", "/tokenize"):
        plain = ok(sentencepiece.post(path, **body, add_special_tokens=False))["tokens"]
        assert ok(sentencepiece.post(path, **body))["tokens"] == plain
        full = ok(sentencepiece.post(path, **body, add_special_tokens=True))["tokens"]
        assert full == [1, *plain]
        answer = ok(sentencepiece.post(CHAT, **body, max_tokens=1, add_special_tokens=True))
        assert answer["usage"]["prompt_tokens"] == len(full)


def test_a_constraint_counts_the_space_that_an_answer_begins_with(sentencepiece: Live) -> None:
    """What the client reads is what its grammar has allowed, a message's first space too."""
    expected = f" w{SPACED} w{SPACED}"
    constraint = {"structured_outputs": {"regex": expected}}
    messages = [{"role": "user", "content": "so"}]
    answer = ok(sentencepiece.post(CHAT, messages=messages, **constraint))
    assert answer["choices"][0]["message"]["content"] == expected

    answer = ok(sentencepiece.post(PATH, prompt=[1], logprobs=0, max_tokens=99, **constraint))
    choice = answer["choices"][0]
    assert choice["text"] == expected
    ends = itertools.accumulate(len(token) for token in choice["logprobs"]["tokens"])
    assert choice["logprobs"]["text_offset"] == [0, *ends][:-1]

    llm = LLM.from_engine(build_engine(sentencepiece.engine.config))
    (output,) = llm.chat(messages, SamplingParams(**constraint))
    assert output.text == expected
