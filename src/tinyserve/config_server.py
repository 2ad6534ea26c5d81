"""The settings of the HTTP server, each declared once."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import ClassVar

from tinyserve.errors import ConfigError
from tinyserve.settings import check, setting

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#*\sA-Z]+")  # as in the header of that name


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP server, and the limits that it puts on requests."""

    SECTION: ClassVar[str] = "server"

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one", low=0, high=65535)
    uds: str | None = setting(None, "path of a Unix socket to listen on instead of host and port")
    root_path: str = setting("", "path under which a proxy publishes the server, e.g. /llm")
    api_key: tuple[str, ...] = setting(
        (),
        "keys of which clients must present one, except on /health, /ping and the page itself",
        secret=True,
    )
    api_key_file: str | None = setting(None, "file with further keys, one a line; # is a comment")
    served_model_name: tuple[str, ...] = setting(
        (), "names of the model in the API; 'tinyserve' always works"
    )
    allowed_origins: tuple[str, ...] = setting((), "origins that browsers may call from (CORS)")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "names in the Host header that are served, '*' for all; where none is given: addresses "
        "and local names while listening on loopback without a key, else all",
    )
    ssl_certfile: str | None = setting(None, "certificate chain (PEM); makes the server speak TLS")
    ssl_keyfile: str | None = setting(None, "private key of the certificate (PEM)")
    ssl_ca_certs: str | None = setting(None, "authorities that client certificates must come from")
    ssl_cert_reqs: str = setting(
        "none",
        "whether clients must show a certificate",
        choices=("none", "optional", "required"),
        aliases={"0": "none", "1": "optional", "2": "required"},
    )
    max_queued_requests: int = setting(
        256,
        "requests that may wait; more are answered 429",
        flags="--max-queued-requests --max-num-queued-reqs",
        low=1,
        high=1 << 20,
    )
    max_queued_tokens: int | None = setting(
        1 << 20,
        "prompt tokens that may wait; more are answered 429. An empty queue takes any one request",
        flags="--max-queued-tokens --max-num-queued-tokens",
        low=1,
        high=1 << 40,
        unit="tokens",
    )
    request_timeout_s: float = setting(
        600.0, "longest life of a request, waiting included", low=0.001, high=1e7, unit="s"
    )
    shutdown_timeout_s: float = setting(
        10.0,
        "time that running requests get to finish when the server stops",
        flags="--shutdown-timeout",
        low=0,
        high=1e6,
        unit="s",
    )
    stream_stall_timeout_s: float = setting(
        30.0,
        "a reader that takes nothing of a waiting answer for so long is cut off",
        low=0.001,
        high=1e6,
        unit="s",
    )
    stream_buffer_size: int = setting(
        4 << 20,
        "output of one request that may wait for its reader; a reader further behind is cut off",
        kind="size",
        low=1024,
        unit="bytes",
    )
    trust_request_chat_template: bool = setting(
        False, "let requests bring a chat template of their own, which runs in a sandbox"
    )
    enable_auto_tool_choice: bool = setting(
        True, "let models choose to call tools (tool_choice auto)"
    )
    max_logprobs: int = setting(20, "most logprobs a request may ask for", low=0, high=20)
    max_body_size: int = setting(
        8 << 20, "largest request body, e.g. 8MiB", kind="size", low=1024, unit="bytes"
    )
    log_level: str = setting(
        "info",
        "how much is logged",
        choices=("debug", "info", "warning", "error"),
        aliases={"warn": "warning"},
    )
    log_format: str = setting(
        "text", "form of log lines; json writes an object a line", choices=("text", "json")
    )
    access_log: bool = setting(False, "log one line per HTTP request")
    log_requests: bool = setting(
        False,
        "log one line per request to the model when it ends: tokens, times, reason",
        flags="--enable-log-requests",
    )
    log_prompts: bool = setting(False, "show prompts in those lines")
    max_log_len: int | None = setting(
        None, "characters of a prompt that are logged; auto is all of them", low=0, high=1 << 30
    )
    disable_log_stats: bool = setting(
        False, "log no line of throughput and cache use every ten seconds while busy"
    )
    debug_trace: bool = setting(
        False,
        "GET /debug/trace: a timeline of the engine's steps for Perfetto",
        flags="--enable-debug-trace",
    )
    web_page: bool = setting(True, "serve the web page at /: a chat, and the engine at work")

    def __post_init__(self) -> None:
        check(self)
        for name in ("api_key", "served_model_name"):
            if any(not item for item in getattr(self, name)):
                raise ConfigError(f"server.{name} must not hold an empty string")
        object.__setattr__(self, "host", self.host.strip("[]"))  # URLs write IPv6 addresses so
        if not self.host.strip():  # "" would mean every address of the machine
            raise ConfigError("server.host must not be empty; 0.0.0.0 listens on all addresses")
        for item in self.allowed_origins:
            if item not in ("*", "null") and not _ORIGIN.fullmatch(item):
                raise ConfigError(
                    f"server.allowed_origins: {item!r} is no origin as browsers name it, such as "
                    "https://example.com:8443, in lower case and without a path; '*' is all"
                )
        for item in self.allowed_hosts:
            if item != "*" and not _is_host(item):
                raise ConfigError(
                    f"server.allowed_hosts: {item!r} is no name of a host alone, without scheme, "
                    "port or wildcards; '*' is all"
                )
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ConfigError(f"server.{name} needs server.ssl_certfile: without it, no TLS")
        if self.ssl_cert_reqs != "none" and self.ssl_ca_certs is None:
            raise ConfigError("server.ssl_cert_reqs needs server.ssl_ca_certs to check against")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError("server.root_path must begin with / and not end with it")


def _is_host(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return re.fullmatch(r"[^/:*\[\]\s]*[^/:*\[\]\s.]", name) is not None
