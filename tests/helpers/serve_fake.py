"""A server process over a fake engine, for tests of signals, exit codes and files.

Set by TINYSERVE_SERVER_* variables; prints the URL when it is ready. FAKE_STEP_S is how long a step
takes, FAKE_FAULT_AFTER after how many steps the model breaks, FAKE_LOAD_S how long it loads.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from helpers.fake_service import SpeakingLogits, SpeakingRunner, make_engine

from tinyserve.config import TinyServeConfig
from tinyserve.engine.build import Engine
from tinyserve.engine.plan import StepPlan
from tinyserve.errors import EngineDeadError
from tinyserve.logs import configure_logging
from tinyserve.server.run import serve


def number(name: str, default: float) -> float:
    return float(os.environ.get(name, default))


def slow_down(runner: SpeakingRunner) -> None:
    """Make its steps take their time, and fail in the end."""
    run, fault_after = runner.run, number("FAKE_FAULT_AFTER", float("inf"))

    def slow_run(plan: StepPlan) -> SpeakingLogits:
        time.sleep(number("FAKE_STEP_S", 0.0))
        if runner.steps >= fault_after:
            raise RuntimeError("the fake model broke")
        return run(plan)

    runner.run = slow_run  # type: ignore[method-assign]


def main() -> int:
    server = TinyServeConfig.resolve().server
    configure_logging(server.log_level)
    loading: Future[Engine] = Future()

    def load() -> None:
        time.sleep(number("FAKE_LOAD_S", 0.0))
        engine = make_engine()
        runner = engine.core.runner
        assert isinstance(runner, SpeakingRunner)
        slow_down(runner)
        loading.set_result(engine)

    threading.Thread(target=load, daemon=True).start()
    try:
        serve(loading, server, on_ready=lambda engine, url: print(url, flush=True))
    except EngineDeadError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
