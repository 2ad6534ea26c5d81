"""Every exception tinyserve raises on purpose.

TinyServeError
├── ConfigError              a setting is unknown, out of range, or contradicts another
├── ModelLoadError           the model cannot be found, read, or run
├── RequestError             one request is at fault (HTTP 400 unless it says otherwise)
│   ├── ContextLengthError   the prompt and its output cannot fit the context
│   └── UnknownModelError    the request names a model that is not served (404)
├── QueueFullError           too many requests are waiting (429)
├── RequestTimeoutError      the request ran out of its time (408)
└── EngineDeadError          the engine thread has stopped (503)

User errors are never asserts; an assert in this code base marks a bug of ours.
"""

from __future__ import annotations


class TinyServeError(Exception):
    """Base of all deliberate errors."""


class ConfigError(TinyServeError):
    """A setting is unknown, out of range, or impossible beside another; names its key."""


class ModelLoadError(TinyServeError):
    """A model folder, file, tensor, or type is missing, damaged, or unsupported; the message says
    which.
    """


class RequestError(TinyServeError):
    """The request is at fault. `param` names the field, `code` is OpenAI's error code."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextLengthError(RequestError):
    """Prompt plus requested output exceed the context, or could never fit the KV-cache."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModelError(RequestError):
    """The request names a model this server does not serve."""

    status = 404

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model '{model}' does not exist.", param="model", code="model_not_found"
        )


class QueueFullError(TinyServeError):
    """The request queue is full. `retry_after` is the suggested wait in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestTimeoutError(TinyServeError):
    """The request exceeded its time limit and was released."""


class EngineDeadError(TinyServeError):
    """The engine thread has stopped; no request can be served until a restart."""


def reason_of(error: Exception) -> str:
    """What went wrong, without the number and the path that an OSError adds: for messages that
    name the path themselves.
    """
    return getattr(error, "strerror", None) or str(error)
