"""argparse, generated from the declarations of the settings.

A setting's value travels as text and is read by the same code as the environment's, so that
messages agree. Only options that were given appear in the namespace: precedence is decided in
`config.resolve`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import tinyserve
from tinyserve.config import SECTIONS, TinyServeConfig
from tinyserve.errors import ConfigError
from tinyserve.kv_budget import readable
from tinyserve.settings import Setting, checked, did_you_mean, parse_text, settings_of

ENGINE_SECTIONS = ("model", "cache", "scheduler", "spec")

# Sampling fields with a flag of their own: name -> type, help.
SAMPLING_FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_tokens": (int, "longest output, in tokens"),
    "min_tokens": (int, "shortest output, in tokens"),
    "temperature": (float, "0 is greedy"),
    "top_p": (float, "keep the likeliest tokens of this total probability"),
    "top_k": (int, "keep the k likeliest tokens; 0 is off"),
    "min_p": (float, "keep tokens of at least this share of the likeliest's probability"),
    "presence_penalty": (float, "against tokens that have been used at all"),
    "frequency_penalty": (float, "against tokens for each time they have been used"),
    "repetition_penalty": (float, "divides the logits of tokens seen before; 1 is off"),
    "seed": (int, "the same seed gives the same output"),
}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse `argv` (None: the process's own arguments). A mistake prints the usage of the command
    concerned and ends the program with exit code 2.
    """
    arguments, unknown = build_parser().parse_known_args(argv)
    if unknown:
        parser: argparse.ArgumentParser = arguments.parser
        flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
        # Other servers have flags of many names: only what looks like a slip gets a hint.
        hint = did_you_mean(unknown[0].partition("=")[0], flags, cutoff=0.75)
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)}{hint}; {parser.prog} --help lists all"
        )
    return arguments


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="tinyserve",
        description="A small, exact LLM inference server.",
        epilog=_EXAMPLES[""],
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"tinyserve {tinyserve.__version__}")
    parser.set_defaults(parser=parser)  # `parse_arguments` reports with it; a command sets its own
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    serve = _command(
        commands, "serve", "[MODEL] ", "serve a model over an OpenAI-compatible HTTP API"
    )
    serve.add_argument("model_argument", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    add_settings(serve, tuple(SECTIONS))

    generate = _command(commands, "generate", "[PROMPT] ", "complete a prompt")
    generate.add_argument(
        "prompt", nargs="?", help="the text to complete; read from stdin where it is left out"
    )
    add_sampling(generate)
    add_settings(generate, ENGINE_SECTIONS)

    chat = _command(commands, "chat", "[MODEL] ", "talk to a model in the terminal")
    chat.add_argument("model_argument", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_sampling(chat)
    add_settings(chat, ENGINE_SECTIONS)

    _command(commands, "doctor", "", "say what was built, what was chosen, and why")
    return parser


_METAVARS = {
    "int": "N",
    "float": "X",
    "size": "SIZE",
    "str": "TEXT",
    "strings": "TEXT",
    "mapping": "JSON",
}
_EXAMPLES = {
    "": """\
examples:
  tinyserve serve                        the default model on http://127.0.0.1:8000
  tinyserve serve Qwen/Qwen2.5-0.5B-Instruct --quantization int8
  tinyserve COMMAND --help               the options of a command""",
    "serve": """\
examples:
  tinyserve serve                                          the default model
  tinyserve serve Qwen/Qwen2.5-0.5B-Instruct               from the Hugging Face hub
  tinyserve serve ./model.Q4_K_M.gguf --max-num-seqs 32    a file, more at once
  tinyserve serve ./folder --host 0.0.0.0 --api-key KEY    for others, with a key
  tinyserve serve --config server.yaml --port 9000         flags win over the file
  TINYSERVE_SERVER_PORT=9000 tinyserve serve               each setting is a variable too""",
    "generate": """\
examples:
  tinyserve generate "Once upon a" --max-tokens 64 --temperature 0
  tinyserve generate < prompt.txt > completion.txt
  tinyserve generate "def add(a, b):" --model ./model.gguf --stop END""",
    "chat": """\
examples:
  tinyserve chat
  tinyserve chat Qwen/Qwen2.5-0.5B-Instruct --system 'Be brief.'""",
    "doctor": "",
}
_MODEL_HELP = "model folder, .gguf file, or hub id; the default model where it is left out"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples keep their lines; wide terminals are used."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def _command(commands: Any, name: str, usage: str, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        usage=f"tinyserve {name} {usage}[options]",
        epilog=_EXAMPLES[name],
        formatter_class=_Help,
    )
    parser.set_defaults(parser=parser)
    return parser


def add_settings(parser: argparse.ArgumentParser, sections: Sequence[str]) -> None:
    """`--config`, and one option for each setting of `sections`, in a group for each."""
    parser.add_argument("--config", metavar="FILE", help="a YAML file with settings")
    for section in sections:
        about = " ".join((SECTIONS[section].__doc__ or "").split()).partition(". ")[0]
        group = parser.add_argument_group(f"{section} settings", about.rstrip(".") + ".")
        for declared in settings_of(SECTIONS[section]).values():
            _add_setting(group, declared)


def _add_setting(group: Any, declared: Setting) -> None:
    shared: dict[str, Any] = {
        "dest": declared.key,
        "default": argparse.SUPPRESS,
        "help": _help_text(declared),
    }
    if declared.kind == "bool":
        group.add_argument(*declared.flags, action=argparse.BooleanOptionalAction, **shared)
        return
    metavar = (
        "{" + ",".join(declared.choices) + "}" if declared.choices else _METAVARS[declared.kind]
    )
    action = "append" if declared.kind == "strings" else "store"
    group.add_argument(*declared.flags, action=action, metavar=metavar, **shared)


def _help_text(declared: Setting) -> str:
    text = declared.help
    if declared.kind == "strings":
        text += "; may be repeated"
    default = _default_text(declared)
    if default:
        text += f" (default: {default})"
    return text.replace("%", "%%")


def _default_text(declared: Setting) -> str:
    """The default with its unit; empty where there is none to speak of."""
    default = declared.default
    if default is None:
        return "auto" if "auto " in declared.help else ""
    if declared.kind == "bool":
        return "on" if default else "off"
    if declared.kind == "size":
        return readable(default)
    if default == ():
        return ""
    number = f"{default:g}" if declared.kind == "float" else str(default)
    return f"{number} {declared.unit}" if declared.unit else number


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The sampling options of `generate` and `chat`."""
    group = parser.add_argument_group("sampling")
    for name, (kind, summary) in SAMPLING_FLAGS.items():
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, type=kind, default=argparse.SUPPRESS, metavar="N", help=summary)
    group.add_argument(
        "--stop",
        action="append",
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="end before this text; may be repeated",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=argparse.SUPPRESS,
        help="go on past the end-of-text token",
    )


def sampling_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that were given."""
    names = (*SAMPLING_FLAGS, "stop", "ignore_eos")
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def configuration(arguments: argparse.Namespace) -> TinyServeConfig:
    """The configuration that a command line asks for. Raises ConfigError."""
    overrides: dict[str, Any] = {}
    for section in SECTIONS.values():
        for declared in settings_of(section).values():
            if hasattr(arguments, declared.key):
                overrides[declared.key] = _read(declared, getattr(arguments, declared.key))
    named = getattr(arguments, "model_argument", None)
    if named is not None:
        if overrides.get("model.name", named) != named:
            raise ConfigError(
                f"two models are named: {named!r} and --model {overrides['model.name']!r}"
            )
        overrides["model.name"] = named
    return TinyServeConfig.resolve(file=arguments.config, overrides=overrides)


def _read(declared: Setting, value: Any) -> Any:
    """An option's value; an error says which flag it came from."""
    try:
        if isinstance(value, bool):
            return value
        if isinstance(value, list):
            lists = [parse_text(declared, text) for text in value]
            if not all(lists):  # --api-key "$KEY" without a KEY must not mean "no key"
                raise ConfigError(f"{declared.key} is given, but empty")
            return tuple(item for items in lists for item in items)
        names_file = declared.kind == "str" and declared.optional and not declared.choices
        if names_file and not value.strip():  # --api-key-file "$FILE" without a FILE, likewise
            raise ConfigError(f"{declared.key} is given, but empty")
        return checked(declared, parse_text(declared, value))
    except ConfigError as error:
        raise ConfigError(f"{error} (from {declared.flags[0]})") from None
