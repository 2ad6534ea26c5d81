"""The socket that the server listens on: TCP or Unix, open before the model loads."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from tinyserve.config import ServerConfig
from tinyserve.errors import ConfigError, reason_of

# The kernel closes the connection of a client that has vanished (keep-alive probes), or that does
# not acknowledge what was sent, after so many seconds.
KEEPALIVE_S = 60
UNACKNOWLEDGED_S = 120
NUM_DUPLICATES = 16


@contextlib.contextmanager
def listening(config: ServerConfig) -> Iterator[socket.socket]:
    """A bound socket until the block ends. Raises ConfigError where it cannot be had."""
    if config.uds is None:
        with contextlib.closing(_tcp(config.host, config.port)) as listener:
            yield listener
        return
    with contextlib.closing(_unix(config.uds)) as listener:
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                os.unlink(config.uds)


def duplicates(listener: socket.socket) -> list[socket.socket]:
    """NUM_DUPLICATES of the listening socket, for the caller to close; itself it is closed here.

    uvloop accepts one connection from each socket per round of the event loop. With a single
    socket, `/health` would wait for seconds behind a crowd of new connections.
    """
    copies = [listener.dup() for _ in range(NUM_DUPLICATES)]
    listener.close()  # otherwise the port would stay open after the copies are closed
    return copies


def url_of(config: ServerConfig, listener: socket.socket) -> str:
    """Where clients find the server."""
    scheme = "http" if config.ssl_certfile is None else "https"
    if config.uds is not None:
        return f"{scheme}+unix:{config.uds}{config.root_path}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}{config.root_path}"


def raise_file_limit() -> None:
    """Allow as many connections as the system does: each is an open file."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Even without a hard limit, the system may refuse the number that we would like (macOS).
    for limit in (65536, 10240) if hard == resource.RLIM_INFINITY else (hard,):
        if soft == resource.RLIM_INFINITY or soft >= limit:
            return
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


def _tcp(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # If a name such as localhost has addresses of both families, take IPv4: every client tries
        # that.
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _set_timeouts(listener)
            listener.bind(address)
            listener.listen()  # until then another process may take the same address
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"server.host, server.port: cannot listen on {host}:{port}: "
            f"{reason_of(error)}{_advice(error)}"
        ) from None
    return listener


def _advice(error: Exception) -> str:
    """What to do about the most common failures; nothing for others."""
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return " (another program listens there; --port chooses another port)"
    if number in (errno.EACCES, errno.EPERM):
        return " (ports below 1024 are for root; --port chooses another port)"
    if number == errno.EADDRNOTAVAIL:
        return " (this machine has no such address; --host 0.0.0.0 listens on all it has)"
    return ""


def _set_timeouts(listener: socket.socket) -> None:
    """Keep-alive and time-outs, which accepted connections inherit; where the system has them."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S // 4),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_S * 1000),
    ):
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _unix(path: str) -> socket.socket:
    """A listening Unix socket. Whoever may write to its file may connect: see the umask."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen()  # until then it looks as if nobody used it
    except OSError as error:
        listener.close()
        raise ConfigError(f"server.uds: cannot listen on {path}: {reason_of(error)}") from None
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket that a crashed server left behind; never one that is in use."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        if is_socket and probe.connect_ex(path) != 0:
            os.unlink(path)
