"""The start-up summary: what is served, with what, and why. Made of plain rows.

On a terminal it is a table in colour; in a log, in a pipe and under NO_COLOR
(https://no-color.org) it is log lines. It is written once requests can be answered, on a thread of
its own, so that nobody waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator

from tinyserve.engine.build import Engine
from tinyserve.kernels.select import BackendChoice
from tinyserve.kv_budget import readable
from tinyserve.models.config import ModelConfig
from tinyserve.server.guards import is_open

logger = logging.getLogger("tinyserve")

Row = tuple[str, str]


def announce(engine: Engine, url: str, choice: BackendChoice, *, is_table: bool) -> None:
    """Write the summary; returns at once."""
    write = _draw if is_table else _log
    threading.Thread(
        target=write, args=(engine, url, choice), name="tinyserve-summary", daemon=True
    ).start()


def model_rows(engine: Engine) -> Iterator[Row]:
    """What is served, and what it takes."""
    report = engine.core.memory_report()
    reserved = {name: item["reserved"] for name, item in report.items()}
    yield "model", _model(engine)
    formats = " and ".join(engine.weight_formats) or "weights"
    yield "weights", f"{formats}, {readable(reserved.get('weights', 0))}"
    cache, scheduler = engine.config.cache, engine.config.scheduler
    tokens = (cache.num_blocks or 0) * cache.block_size
    yield (
        "KV-cache",
        f"{tokens} tokens in {cache.num_blocks} blocks, {readable(reserved.get('kv_cache', 0))}",
    )
    yield (
        "limits",
        f"context {engine.intake.limits.max_model_len} tokens, "
        f"{scheduler.max_num_seqs} sequences at once, "
        f"{scheduler.max_num_batched_tokens} tokens a step",
    )
    touched = sum(item["touched"] for item in report.values())
    yield "memory", f"{readable(sum(reserved.values()))} reserved, {readable(touched)} of it in use"


def machine_rows(choice: BackendChoice) -> Iterator[Row]:
    """What the model is computed with."""
    yield "back end", f"{choice}: {choice.reason}"
    yield "threads", f"{choice.threads}: {choice.threads_reason}"


def address_rows(engine: Engine, url: str) -> Iterator[Row]:
    """Where clients find the server."""
    yield "API", f"{url}/v1"
    if engine.config.server.web_page:
        yield "page", f"{url}/"
    yield "reference", f"{url}/docs"
    if is_open(engine.config.server):
        yield "open", "whoever reaches this address may use it: --api-key sets a key"


def _model(engine: Engine) -> str:
    config = engine.model
    if config is None:
        return engine.model_name
    return (
        f"{engine.model_name} ({config.architecture}, {parameters(config)} parameters, "
        f"{config.num_layers} layers)"
    )


def parameters(config: ModelConfig) -> str:
    """How many, as people say it: 135 M, 1.5 B."""
    from tinyserve.models.layout import tensor_shapes

    count = sum(map(math.prod, tensor_shapes(config).values()))
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count)


def _log(engine: Engine, url: str, choice: BackendChoice) -> None:
    """The back end and the automatic choices have been logged as they were made."""
    for name, text in model_rows(engine):
        logger.info("%s: %s", name, text)
    for name, text in list(address_rows(engine, url))[1:]:
        logger.info("%s: %s", name, text)
    logger.info("ready: %s/v1", url)


def _draw(engine: Engine, url: str, choice: BackendChoice) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    import tinyserve

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (*model_rows(engine), *machine_rows(choice)):
        table.add_row(name, Text(text))
    for index, note in enumerate(engine.notes):
        table.add_row("" if index else "chosen", Text(note, style="dim"))
    for name, text in address_rows(engine, url):
        table.add_row(name, Text(text, style="yellow" if name == "open" else "bold green"))
    console = Console(stderr=True)
    console.print(Text(f"tinyserve {tinyserve.__version__}", style="bold"))
    console.print(table)
    console.print(Text("ready", style="bold green"), Text("(Ctrl-C ends it)", style="dim"))
