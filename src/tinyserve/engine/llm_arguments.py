"""What callers hand to an `LLM`, as plain values.

Offline there is no JSON in between: prompts come from generators, arrays and columns of tables, and
in the forms and under the names that vLLM's offline API gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinyserve.engine.intake import Intake, Prompt, split_prompts
from tinyserve.errors import RequestError

_PROMPT_FIELDS = ("prompt", "prompt_token_ids")
_TEMPLATE_OPTIONS = ("add_generation_prompt", "continue_final_message", "template_kwargs")


def prompts_of(value: Any, *, param: str) -> list[Prompt]:
    """What `split_prompts` takes, in any iterable, arrays included; or mappings with a `prompt` or
    its `prompt_token_ids`, by themselves or among others. Raises RequestError.
    """
    if isinstance(value, Mapping):
        return [_one_prompt(value, param)]
    value = plain(value)
    if not isinstance(value, list):
        return split_prompts(value, param=param)
    items = [item if isinstance(item, Mapping) else _ids(plain(item)) for item in value]
    if any(isinstance(item, Mapping) for item in items):
        return [_one_prompt(item, param) for item in items]
    return split_prompts(items, param=param)


def _one_prompt(value: Any, param: str) -> Prompt:
    """A prompt, or a mapping with one; where that has both forms, the ids are what counts."""
    found = value
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in _PROMPT_FIELDS]
        if unknown or not value:
            raise RequestError(
                f"{param}: a mapping has a prompt or prompt_token_ids, got {list(value)!r:.200}",
                param=param,
            )
        ids = value.get("prompt_token_ids")
        found = value.get("prompt") if ids is None else _ids(plain(ids))
        wanted: type = str if ids is None else list
        if not isinstance(found, wanted):
            kind = "a text" if ids is None else "a list of token ids"
            raise RequestError(f"{param}: {found!r:.80} is not {kind}", param=param)
    if split_prompts(found, param=param) != [found]:
        raise RequestError(f"{param}: {found!r:.80} is not one prompt", param=param)
    prompt: Prompt = found
    return prompt


def _ids(items: Any) -> Any:
    """Token ids, of whatever integer type."""
    if not isinstance(items, list) or all(type(item) is int for item in items):
        return items
    return [plain(item) for item in items]


def plain(value: Any) -> Any:
    """A list of what an iterable holds; of arrays, columns and numbers of numpy, pandas or torch,
    what they are in Python. Texts, bytes and mappings are as they were.
    """
    if isinstance(value, str | bytes | bytearray | Mapping | list):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterable) else value


def either(value: Any, other: Any, names: str) -> Any:
    """An argument that has two names. Raises RequestError if both were used."""
    if value is not None and other is not None:
        raise RequestError(f"{names}: they are the same, give one", param=names.split()[0])
    return other if value is None else value


def template_options(intake: Intake, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the chat template for `Intake.encode_chat`, from those that a method was given.

    Raises TypeError where the method has no such argument.
    """
    options = dict(given)
    kwargs = options.pop("chat_template_kwargs", None)
    source = options.pop("chat_template", None)
    for name in options:
        if name not in _TEMPLATE_OPTIONS:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
    kwargs = either(
        options.get("template_kwargs"), kwargs, "template_kwargs or chat_template_kwargs"
    )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise RequestError("template_kwargs must be a mapping", param="template_kwargs")
    if source is not None:
        if not isinstance(source, str):
            raise RequestError("chat_template must be a string", param="chat_template")
        options["template"] = intake.tokenizer.chat_template.replaced(source)
    return {**options, "template_kwargs": kwargs}
