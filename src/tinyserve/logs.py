"""Log lines: one format for everything, on stderr. Plain text, or a JSON object a line.

A record may carry named values (`extra={"fields": {...}}`): the text format shows them as
`name=value` after the message, the JSON format as keys of the object.
"""

from __future__ import annotations

import datetime
import io
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

NOISY = ("httpx", "httpcore", "asyncio")
OWN_KEYS = frozenset({"time", "level", "logger", "message", "exception"})


def configure_logging(level: str, format: str = "text") -> None:
    """`level`: debug | info | warning | error; `format`: text | json."""
    if format == "json" and isinstance(sys.stderr, io.TextIOWrapper):
        # JSON is UTF-8 whatever the locale (RFC 8259); a lone surrogate is written as an escape.
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=getattr(logging, level.upper()))
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))


def logs_json() -> bool:
    """Whether log lines are JSON."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, JSONFormatter) for handler in handlers)


class TextFormatter(logging.Formatter):
    """`12:30:59 INFO message name=value`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        shown = [f" {name}={_shown(value)}" for name, value in _fields(record).items()]
        return super().formatMessage(record) + "".join(shown)


class JSONFormatter(logging.Formatter):
    """One JSON object: time (ISO 8601, UTC), level, logger, message, the fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in _fields(record).items() if k not in OWN_KEYS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _shown(value: Any) -> str:
    """A value of one word as it is, any other in quotes, so that a line stays a line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return json.dumps(text)
