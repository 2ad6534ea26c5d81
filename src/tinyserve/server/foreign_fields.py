"""Fields that a completion or chat request may hold and this server does not read.

Other servers and other APIs know them. Where one asks for something that would change the answer,
the request is refused, and the error says what it is called here; the rest is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyserve.errors import RequestError

# Fields of the OpenAI API and of other servers that change the answer and are not served here, each
# with the value that turns it off. A request with any other value is refused.
_UNSERVED: dict[str, Any] = {
    "use_beam_search": False, "num_beams": 1, "best_of": 1, "structural_tag": None,
    "typical_p": 1, "tfs_z": 1, "top_a": 0, "mirostat": 0, "dynatemp_range": 0,
    "dry_multiplier": 0, "xtc_probability": 0, "stop_regex": None, "prompt_embeds": None,
    "logits_processors": None, "custom_logit_processor": None, "lora_path": None,
    "lora": None, "lora_request": None, "adapters": None, "adapter_id": None,
    "top_n_sigma": -1, "t_max_predict_ms": -1, "documents": None, "thinking_token_budget": -1,
    "no_repeat_ngram_size": 0, "smoothing_factor": 0, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "penalty_alpha": 0, "mirostat_mode": 0, "guidance_scale": 1, "cfg_scale": 1,
    "negative_prompt": None, "audio": None, "web_search_options": None,
    "truncation_side": "left", "logprob_token_ids": None, "token_ids_logprob": None,
    "repetition_detection": None, "watermarking": None,
}  # fmt: skip

# Other names of fields that are served. A limit, a constraint or an instruction that is silently
# ignored is worse than one that is refused.
_CALLED_OTHERWISE = {
    "functions": "tools", "function_call": "tool_choice", "stop_sequences": "stop",
    "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens", "n_predict": "max_tokens", "num_predict": "max_tokens",
    "max_tokens_to_sample": "max_tokens", "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty", "num_return_sequences": "n", "n_probs": "logprobs",
    "stop_strings": "stop", "stopping_strings": "stop", "ban_eos_token": "ignore_eos",
    "text": "response_format", "output_format": "response_format", "format": "response_format",
    "response_schema": "response_format", "regex_pattern": "regex", "grammar_string": "grammar",
    "system": "a system message", "instructions": "a system message", "n_cmpl": "n",
    "no_stop_trim": "include_stop_str_in_output", "return_full_text": "echo",
    "top_n_tokens": "logprobs",
}  # fmt: skip
_OFF: dict[str, Any] = {
    "repeat_penalty": 1, "function_call": "none", "num_return_sequences": 1, "n_cmpl": 1,
}  # fmt: skip
# Of all these, the limits: 0 turns any other field off.
_LIMITS = frozenset(
    {
        "thinking_token_budget", "max_completion_tokens", "max_output_tokens", "max_new_tokens",
        "n_predict", "num_predict", "max_tokens_to_sample",
    }
)  # fmt: skip


def refuse_foreign(extra: Mapping[str, Any]) -> None:
    """Raise RequestError where a field asks for what this version cannot do."""
    for name, nothing in _UNSERVED.items():
        if _asks_for(extra, name, nothing):
            raise RequestError(f"{name} is not supported here", param=name)
    for name, ours in _CALLED_OTHERWISE.items():
        if _asks_for(extra, name, _OFF.get(name)):
            raise RequestError(f"{name} is not known here: send {ours} instead", param=name)
    for name, value in extra.items():
        if name.startswith("guided_") and value is not None:  # a constraint, or an option of one
            raise RequestError(f"{name} is not known to this server", param=name)
    modalities = extra.get("modalities")
    if modalities is not None and modalities != ["text"]:
        raise RequestError("modalities: only ['text'] is supported", param="modalities")


def _asks_for(extra: Mapping[str, Any], name: str, nothing: Any) -> bool:
    """Whether a field is there, and neither null nor turned off."""
    value = extra.get(name)
    return value != nothing and (bool(value) or (name in _LIMITS and type(value) is int))


# Ignored without a word in the log: they change no answer.
KNOWN_AND_HARMLESS = frozenset(
    {
        "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "verbosity", "prediction", "modalities",
        "functions", "function_call",
    }
)  # fmt: skip
