"""`tinyserve serve`: load the model on one thread, import the web framework on another."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tinyserve.cli.options import configuration
from tinyserve.config import TinyServeConfig
from tinyserve.logs import configure_logging

if TYPE_CHECKING:
    from tinyserve.engine.build import Engine

logger = logging.getLogger("tinyserve")


def run(arguments: argparse.Namespace) -> int:
    config = configuration(arguments)
    configure_logging(config.server.log_level)
    loading = in_background(lambda: _load(config))

    from tinyserve.server.run import serve

    serve(loading, config.server, on_ready=_announce)
    return 0


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
    from tinyserve.kernels.select import choose_backend

    choice = choose_backend(config.model.threads)
    logger.info(
        "back end: %s (%s), %d threads (%s)",
        choice,
        choice.reason,
        choice.threads,
        choice.threads_reason,
    )
    from tinyserve.engine.build import build_engine

    return build_engine(config)


def _announce(engine: Engine, url: str) -> None:
    """The start-up summary."""
    from tinyserve.kv_budget import readable

    report = engine.core.memory_report()
    reserved = sum(item["reserved"] for item in report.values())
    weights = report.get("weights", {}).get("reserved", 0)
    cache, scheduler = engine.config.cache, engine.config.scheduler
    logger.info(
        "model: %s, context %d tokens, %d sequences at once",
        engine.model_name,
        engine.intake.limits.max_model_len,
        scheduler.max_num_seqs,
    )
    logger.info(
        "memory: weights %s; %d KV blocks of %d tokens; %s reserved in all",
        readable(weights),
        cache.num_blocks or 0,
        cache.block_size,
        readable(reserved),
    )
    logger.info("ready: %s/v1", url)
