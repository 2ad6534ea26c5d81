"""Where settings come from: a YAML file, the environment, nested or dotted mappings.

Each source becomes a layer: only what it says explicitly, by section and key, so that layers can be
laid over one another. Which sections there are is told by the caller; this file knows no setting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyserve.errors import ConfigError, reason_of
from tinyserve.settings import checked, did_you_mean, parse_text, settings_of

Layer = dict[str, dict[str, Any]]  # section -> key -> value
Sections = Mapping[str, type]  # name -> its dataclass

# Short forms that stand apart from TINYSERVE_<SECTION>_<KEY>: variable -> (section, key).
SPECIAL_VARIABLES = {"TINYSERVE_API_KEY": ("server", "api_key")}

# Kubernetes describes each service to every container. For one called tinyserve-server it sets
# TINYSERVE_SERVER_SERVICE_HOST=10.0.0.1, TINYSERVE_SERVER_PORT=tcp://10.0.0.1:8000, ...
_SERVICE_LINK = re.compile(r".*(_SERVICE_(HOST|PORT(_\w+)?)|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://.*")


def layer_from_yaml(path: str | os.PathLike[str], sections: Sections) -> Layer:
    """The explicit settings of a YAML file. Duplicate keys are errors, not last-one-wins. Raises
    ConfigError.
    """
    import yaml

    from tinyserve.settings_yaml import load_strict

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the configuration file {os.fspath(path)!r}: {reason_of(error)}"
        ) from None
    try:
        values = load_strict(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None
    return layer_from_mapping({} if values is None else values, os.fspath(path), sections)


def layer_from_env(env: Mapping[str, str], sections: Sections) -> Layer:
    """The settings named by `TINYSERVE_<SECTION>_<KEY>` and by the special variables.

    Variables that Kubernetes sets for services with such names are skipped. Raises ConfigError.
    """
    known = {s.env: s for section in sections.values() for s in settings_of(section).values()}
    for variable, (section, key) in SPECIAL_VARIABLES.items():
        known[variable] = settings_of(sections[section])[key]
    prefixes = tuple(f"TINYSERVE_{section.upper()}_" for section in sections)
    # Obvious guesses that leave out the section: refused, for ignoring them would be silent.
    meant = {f"TINYSERVE_{s.name}".upper(): s.env for s in known.values()}
    meant["TINYSERVE_MODEL"] = "TINYSERVE_MODEL_NAME"
    layer: Layer = {}
    for variable, text in sorted(env.items()):
        if _SERVICE_URL.match(text) or _SERVICE_LINK.fullmatch(variable):
            continue
        declared = known.get(variable)
        if declared is not None:
            try:
                # Values from files with Windows' line ends, and secrets, may end in a line break.
                value = checked(declared, parse_text(declared, text.rstrip("\r\n")))
            except ConfigError as error:
                raise ConfigError(f"{error} (from {variable})") from None
            layer.setdefault(declared.section, {})[declared.name] = value
        elif variable.startswith(prefixes) or variable in meant:
            raise ConfigError(
                f"unknown setting {variable} in the environment"
                + did_you_mean(meant.get(variable, variable), known)
            )
    return layer


def layer_from_mapping(values: Any, where: str, sections: Sections) -> Layer:
    """The settings of nested mappings; `where` names them in errors. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a mapping of sections, got {type(values).__name__}")
    homes = {name: home for home, kind in sections.items() for name in settings_of(kind)}
    layer: Layer = {}
    for section, entries in values.items():
        if section not in sections:
            name = str(section).replace("-", "_")  # other servers' files have no sections
            hint = f" (did you mean '{homes[name]}.{name}'?)" if name in homes else ""
            raise ConfigError(
                f"unknown section {section!r} in {where}"
                + (hint or did_you_mean(str(section), sections))
            )
        if entries is None:
            continue  # "cache:" with nothing under it
        if not isinstance(entries, Mapping):
            raise ConfigError(
                f"section {section!r} in {where} must be a mapping, got {type(entries).__name__}"
            )
        for name in entries:
            _require_known(sections[section], str(name))
        layer[section] = dict(entries)
    return layer


def layer_from_dotted(values: Mapping[str, Any], sections: Sections) -> Layer:
    """The settings of {"section.key": value}. Raises ConfigError."""
    layer: Layer = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        if section not in sections:
            raise ConfigError(f"unknown section {section!r}" + did_you_mean(section, sections))
        _require_known(sections[section], name)
        layer.setdefault(section, {})[name] = value
    return layer


def _require_known(section: type, name: str) -> None:
    known = settings_of(section)
    if name not in known:
        prefix = next(iter(known.values())).section
        raise ConfigError(f"unknown setting {prefix}.{name}" + did_you_mean(name, known))
