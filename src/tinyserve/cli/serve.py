"""`tinyserve serve`: load the model on one thread, import the web framework on another."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from tinyserve.cli.options import configuration
from tinyserve.config import ServerConfig, TinyServeConfig
from tinyserve.kernels.select import choose_backend
from tinyserve.logs import configure_logging
from tinyserve.signals import end_at_once, handled

if TYPE_CHECKING:
    from tinyserve.engine.build import Engine

logger = logging.getLogger("tinyserve")


def run(arguments: argparse.Namespace) -> int:
    gc.disable()  # nearly every object made while loading stays; `Collector.start` enables it again
    try:
        with handled(_end_at_once):
            return _serve(configuration(arguments))
    finally:
        gc.enable()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """Before the server handles signals itself there is nothing to finish: exit with 0, as it
    would. The KeyboardInterrupt that SIGINT raises by default can be lost in a callback of an
    import; the import lock then stays locked, and the process never ends.
    """
    end_at_once(0)


def _serve(config: TinyServeConfig) -> int:
    configure_logging(config.server.log_level, config.server.log_format)
    if wants_table(config.server):
        logger.setLevel(logging.WARNING)  # until `_announce`: the summary says it all
    loading = in_background(lambda: _load(config))
    # Pydantic would read the metadata of every installed package to look for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

    from tinyserve.server.run import serve

    serve(loading, config.server, on_ready=partial(_announce, config))
    return 0


def wants_table(config: ServerConfig) -> bool:
    """Is the summary drawn, rather than logged? Not in pipes, nor under NO_COLOR
    (https://no-color.org). Log levels and formats are for logs.
    """
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    is_log = config.log_level not in ("info", "debug") or config.log_format != "text"
    return sys.stderr.isatty() and not is_plain and not is_log


def in_background(load: Callable[[], Engine]) -> Future[Engine]:
    """The result of `load`, run on a thread that does not keep the process alive."""
    future: Future[Engine] = Future()

    def work() -> None:
        try:
            future.set_result(load())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name="tinyserve-load", daemon=True).start()
    return future


def _load(config: TinyServeConfig) -> Engine:
    choice = choose_backend(config.model.threads)
    logger.info(
        "back end: %s (%s), %d threads (%s)",
        choice,
        choice.reason,
        choice.threads,
        choice.threads_reason,
    )
    from tinyserve.engine.build import build_engine
    from tinyserve.models.progress import shown

    with shown(None) as progress:
        return build_engine(config, progress)


def _announce(config: TinyServeConfig, engine: Engine, url: str) -> None:
    from tinyserve.cli.summary import announce

    logger.setLevel(logging.NOTSET)
    choice = choose_backend(config.model.threads)
    announce(engine, url, choice, is_table=wants_table(config.server))
