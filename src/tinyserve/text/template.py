"""`ChatTemplate`: a conversation as one prompt text, by the model's own Jinja template.

It owns what happens when a template refuses a conversation: every failure is a RequestError that
carries the template's words. What a message may look like is `text/normalise.py`'s. It knows no
tokens; a rendered prompt holds all special tokens it needs, so it is encoded with
`add_special_tokens=False`.

Following Hugging Face's chat templates: https://huggingface.co/docs/transformers/chat_templating
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyserve.errors import ConfigError, RequestError, reason_of
from tinyserve.files import read_text
from tinyserve.text.normalise import normalise_messages
from tinyserve.text.template_forms import (
    forms,
    template_wants_short_ids,
    with_parts,
    with_short_ids,
)
from tinyserve.text.tool_prompt import (
    template_knows_calls,
    template_knows_tools,
    with_calls_written_out,
    with_tools,
)

if TYPE_CHECKING:
    import jinja2

_RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
)
# Put after a message that is to be continued, to find its end in the prompt. The space tells
# whether the template trims messages.
_MARKER = "\u2045continue here\u2046 "

# Any template that reads a content's parts matches this; whether it does so is found by a trial
# with the probe.
_NAMES_PARTS = re.compile(r"""['"]text['"]|\.text\b""")
_PROBE = "\u2045is this shown?\u2046"

_MISSING = (
    "this model has no chat template; start the server with --chat-template FILE (or the "
    "template itself), or use /v1/completions"
)


class ChatTemplate:
    """Renders messages. `named` templates serve special uses: "tool_use" when tools are given.

    `special_tokens` ("bos_token" and so on) are variables that the template may use. Templates are
    compiled when first used, so a broken or missing one does not prevent other uses of the model.
    """

    def __init__(
        self,
        source: str | None,
        *,
        named: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._source = source if source and source.strip() else None  # a blank file says nothing
        self._named = dict(named or {})
        self._special_tokens = dict(special_tokens or {})
        self._compiled: dict[str, jinja2.Template] = {}
        self._wants_parts: dict[str, bool] = {}  # per template source

    @property
    def all_sources(self) -> str:
        """The text of all templates, to be searched for what they know."""
        return "\n".join(filter(None, (self._source, *self._named.values())))

    def replaced(self, source: str) -> ChatTemplate:
        """Another template for the same model."""
        return ChatTemplate(source, special_tokens=self._special_tokens)

    def source_for(self, *, has_tools: bool) -> str:
        """The template's text. Raises RequestError where there is none."""
        source = self._named.get("tool_use", self._source) if has_tools else self._source
        if source is None:
            raise RequestError(
                f"this model has only the chat templates {sorted(self._named)}, none by default"
                if self._named
                else _MISSING,
                param="messages",
            )
        return source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages` (OpenAI's form; see `normalise_messages`).

        `add_generation_prompt` opens the assistant's turn; by default it does unless
        `continue_final_message`, which ends the prompt inside the last message instead.
        `template_kwargs` are further variables (`chat_template_kwargs` of a request). Where the
        template knows no `tools`, they are described in the system message (`text/tool_prompt.py`).
        Where it refuses the conversation, other forms are tried (`text/template_forms.py`).
        Raises RequestError for a bad message, a contradiction, and whatever the template raises.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        _check_template_kwargs(template_kwargs or {})
        source = self.source_for(has_tools=bool(tools))
        if documents and "documents" not in source:
            raise RequestError(
                "this model's chat template shows no documents; put them into a message",
                param="documents",
            )
        chat = normalise_messages(messages)
        if not (template_knows_calls(source) and template_knows_tools(source)):
            chat = with_calls_written_out(chat)  # in the form that the prompt taught
        elif template_wants_short_ids(source):
            chat = with_short_ids(chat)
        if continue_final_message:
            chat[-1]["content"] += _MARKER
        variables = {
            **self._special_tokens,
            **(template_kwargs or {}),
            "documents": list(documents) if documents else None,
            "add_generation_prompt": not continue_final_message
            if add_generation_prompt is None
            else add_generation_prompt,
        }
        if tools and not template_knows_tools(source):
            prompt = self._run_teaching(source, variables, chat, tools)
        else:
            prompt = self._run_fitting(source, variables, chat, tools)
        return _cut_at_marker(prompt, chat[-1]["content"]) if continue_final_message else prompt

    def _run_teaching(
        self,
        source: str,
        variables: Mapping[str, Any],
        chat: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """Describe the tools in the system message, or where the template refuses one of ours, in
        the user's.
        """
        try:
            return self._run_fitting(source, variables, with_tools(chat, tools))
        except RequestError:
            if chat[0]["role"] == "system":
                raise
        return self._run_fitting(source, variables, with_tools(chat, tools, in_user=True))

    def _run_fitting(
        self,
        source: str,
        variables: Mapping[str, Any],
        chat: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render the conversation in the first form that the template takes. Raises RequestError
        with what it says of the conversation as it is.
        """
        first_error: RequestError | None = None
        wants_parts = self._reads_parts_alone(source)
        for messages, shown in forms(chat, tools):
            if wants_parts:
                messages = with_parts(messages)
            try:
                return self._run(source, {**variables, "messages": messages, "tools": shown})
            except RequestError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error

    def _reads_parts_alone(self, source: str) -> bool:
        """Whether the template shows some messages only where contents are lists of parts, as those
        of models that also see images do. It passes over texts without a word.
        """
        wants = self._wants_parts.get(source)
        if wants is None:
            user = {"role": "user", "content": _PROBE}
            probes = ([{**user, "role": "system"}, user], [user])
            wants = _NAMES_PARTS.search(source) is not None and any(
                self._num_shown(source, probe) < self._num_shown(source, with_parts(probe))
                for probe in probes
            )
            self._wants_parts[source] = wants
        return wants

    def _num_shown(self, source: str, probe: Sequence[Mapping[str, Any]]) -> int:
        variables = {"messages": probe, "tools": None, "documents": None}
        try:
            return self._run(
                source, {**self._special_tokens, **variables, "add_generation_prompt": True}
            ).count(_PROBE)
        except RequestError:
            return 0

    def _run(self, source: str, variables: Mapping[str, Any]) -> str:
        from tinyserve.text import sandbox  # imports jinja2, which start-up does not need

        try:
            template = self._compiled.get(source)
            if template is None:
                template = sandbox.SandboxedTemplates().from_string(source)
                self._compiled[source] = template
            return sandbox.render(template, variables)
        except sandbox.TemplateFailed as error:
            raise RequestError(str(error), param="messages") from error
        except Exception as error:  # a template can raise anything that Python can
            reason = str(error) or type(error).__name__
            raise RequestError(f"the chat template failed: {reason}", param="messages") from error


def read_chat_template(value: str) -> str:
    """The template that the option --chat-template names: a file's path, or the template itself.

    Raises ConfigError for what is neither, and for a template that no conversation could use.
    """
    source = _file_or_text(value)
    from tinyserve.text import sandbox  # imports jinja2, which start-up does not need

    try:
        sandbox.SandboxedTemplates().from_string(source)
    except Exception as error:  # jinja2's, or a limit of Python's parser
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        raise ConfigError(f"model.chat_template: {error}{where}") from error
    return source


def _file_or_text(value: str) -> str:
    looks_inline = "{" in value or "\n" in value
    try:
        if not looks_inline or Path(value).is_file():
            return read_text(Path(value))
    except (OSError, ValueError) as error:
        if not looks_inline:
            raise ConfigError(
                f"model.chat_template: cannot read the file {value!r}: {reason_of(error)}"
            ) from error
    return value


def _check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """No variable may take the place of the conversation itself."""
    clash = sorted(_RESERVED.intersection(kwargs))
    if clash:
        raise RequestError(
            f"chat_template_kwargs may not set {', '.join(clash)}", param="chat_template_kwargs"
        )


def _cut_at_marker(prompt: str, content: str) -> str:
    """The prompt up to the end of the message that is continued."""
    marker = _MARKER.rstrip()
    end = prompt.rfind(marker)
    if end < 0:
        raise RequestError(
            "continue_final_message: the chat template does not show the last message",
            param="continue_final_message",
        )
    if prompt.startswith(_MARKER, end):
        return prompt[:end]
    # The template has trimmed the marker's space, so it would also have trimmed the message's own.
    text = content[: -len(_MARKER)]
    return prompt[:end].removesuffix(text[len(text.rstrip()) :])
