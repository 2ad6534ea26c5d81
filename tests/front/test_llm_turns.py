"""One `LLM`, many users: threads, interrupts from the keyboard, streams that the garbage collector
drops. A step is never entered twice, and never left half-way.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from helpers.fake_service import assert_idle, make_engine, runner_of

from tinyserve import LLM
from tinyserve.engine.plan import StepPlan
from tinyserve.errors import TinyServeError
from tinyserve.text import sandbox
from tinyserve.text.tokenizer import Tokenizer

PROMPTS = [f"prompt {i} of some" for i in range(8)]
LONG = {"max_tokens": 40, "ignore_eos": True}


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(make_engine(cache={"num_blocks": 80, "num_swap_blocks": 8})) as made:
        yield made
    assert_idle(made.engine)
    assert not made._core.inboxes


@pytest.fixture
def keyboard() -> Iterator[None]:
    """Ctrl-C interrupts, also where tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads interrupt each other between any two bytecodes, rather than every five ms."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def params(i: int) -> dict[str, Any]:
    return {**LONG, "seed": i, "n": 1 + i % 3}


def in_the_midst_of_step(
    monkeypatch: pytest.MonkeyPatch, llm: LLM, number: int, act: Callable[[], object]
) -> list[int]:
    """Let `act` happen within the step of this number; returns the numbers of completed steps."""
    runner = runner_of(llm.engine)
    run, step, begun, done = runner.run, llm.engine.core.step, [0], []

    def acting(plan: StepPlan) -> Any:
        begun[0] += 1
        if begun[0] == number:
            act()
        return run(plan)

    def counted() -> Any:
        outputs = step()
        done.append(begun[0])
        return outputs

    monkeypatch.setattr(runner, "run", acting)
    monkeypatch.setattr(llm.engine.core, "step", counted)
    return done


def texts(llm: LLM, i: int) -> list[str]:
    return [choice.text for choice in llm.generate(PROMPTS[i], params(i))[0].outputs]


@pytest.mark.usefixtures("eager_threads")
def test_threads_share_the_engine(llm: LLM) -> None:
    alone = [texts(llm, i) for i in range(len(PROMPTS))]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(5):
            assert list(pool.map(lambda i: texts(llm, i), range(len(PROMPTS)))) == alone


@pytest.mark.usefixtures("eager_threads")
def test_a_thread_joins_while_another_is_at_work(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait until the other has finished."""
    with ThreadPoolExecutor(1) as pool:
        short = []

        def join() -> None:
            short.append(pool.submit(llm.generate, "short", {"max_tokens": 2, "ignore_eos": True}))

        done = in_the_midst_of_step(monkeypatch, llm, 3, join)
        short_ended = []
        for _ in llm.stream("long", {"max_tokens": 300, "ignore_eos": True}):
            if short and not short_ended and short[0].done():
                short_ended.append(len(done))
        assert short_ended
        assert len(short[0].result()[0].token_ids) == 2


@pytest.mark.usefixtures("keyboard")
@pytest.mark.parametrize("number", [1, 2, 5, 20])
def test_ctrl_c_waits_for_the_end_of_a_step(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    whole = texts(llm, 0)
    stream = llm.stream(PROMPTS[0], params(0))
    text = next(stream).text
    done = in_the_midst_of_step(
        monkeypatch, llm, number, lambda: signal.raise_signal(signal.SIGINT)
    )
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, [params(i) for i in range(len(PROMPTS))])
    assert done[-1] == number
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(llm.engine.core._jobs) == 1, "the batch is aborted, and nobody else"
    assert text + "".join(delta.text for delta in stream) == whole[0]
    assert texts(llm, 1)


@pytest.mark.usefixtures("keyboard")
def test_ctrl_c_ends_the_stream_that_is_read(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_midst_of_step(monkeypatch, llm, 2, lambda: signal.raise_signal(signal.SIGINT))
    stream = llm.stream(PROMPTS[0], params(0))
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert list(stream) == []
    assert not llm.engine.core.has_work()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_time_limits_by_alarms(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    try:
        done = in_the_midst_of_step(
            monkeypatch, llm, 3, lambda: signal.raise_signal(signal.SIGALRM)
        )
        with pytest.raises(TimeoutError):
            llm.generate(PROMPTS[0], LONG)
        assert done == [1, 2, 3]
        assert signal.getsignal(signal.SIGALRM) is give_up
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def time_limit() -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Makes a function in whose midst the time is up."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        def passes_it(*args: Any, **kwargs: Any) -> Any:
            signal.raise_signal(signal.SIGALRM)
            return function(*args, **kwargs)

        return passes_it

    before = signal.signal(signal.SIGALRM, give_up)
    yield within
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
@pytest.mark.parametrize("call", ["generate", "embed", "stream"])
def test_a_time_limit_is_no_text_that_cannot_be_encoded(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, time_limit: Any, call: str
) -> None:
    monkeypatch.setattr(Tokenizer, "_encode", time_limit(Tokenizer._encode))
    with pytest.raises(TimeoutError):
        getattr(llm, call)(PROMPTS[0])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
def test_a_time_limit_is_nothing_that_a_template_refuses(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, time_limit: Any
) -> None:
    """Else another form of the conversation would be tried, and what is learnt of the template be
    wrong from then on.
    """
    chat = [{"role": "user", "content": "hello"}]
    whole = llm.chat(chat, LONG)[0]
    for stream in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "render", time_limit(sandbox.render))
            llm.get_tokenizer().chat_template._wants_parts.clear()
            with pytest.raises(TimeoutError):
                (llm.stream_chat if stream else llm.chat)(chat, LONG)
        assert llm.chat(chat, LONG)[0].prompt_token_ids == whole.prompt_token_ids


def test_a_handler_that_does_not_raise_stops_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(len(done)))
    try:
        done = in_the_midst_of_step(monkeypatch, llm, 3, lambda: signal.raise_signal(signal.SIGINT))
        assert len(llm.generate(PROMPTS[0], LONG)[0].token_ids) == LONG["max_tokens"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert came == [3]
    assert done[-1] > 3


def test_a_stream_dropped_within_a_step_is_aborted_after_it(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may run anywhere."""
    whole = texts(llm, 1)
    streams = [llm.stream(PROMPTS[0], params(0)) for _ in range(3)]
    for stream in streams:
        next(stream)
    del stream
    open_within = []

    def drop() -> None:
        streams.clear()
        open_within.append(len(llm.engine.core._jobs))

    in_the_midst_of_step(monkeypatch, llm, 4, drop)
    assert texts(llm, 1) == whole
    assert open_within == [4]
    assert not llm.engine.core.has_work()


def test_a_stream_is_closed_while_it_is_read(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, as servers do whose client has left."""
    stream = llm.stream(PROMPTS[0], params(0))
    with ThreadPoolExecutor(1) as pool:
        done = in_the_midst_of_step(monkeypatch, llm, 5, lambda: pool.submit(stream.close).result())
        assert len(list(stream)) == 4
    assert done == [1, 2, 3, 4, 5]
    assert not llm.engine.core.has_work()
    assert list(stream) == []


def test_who_waits_is_told_that_the_llm_was_closed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = llm.stream(PROMPTS[0], params(0))
    next(stream)
    llm.close()
    with pytest.raises(TinyServeError, match="closed"):
        list(stream)
    assert list(stream) == []
    in_the_midst_of_step(monkeypatch, llm, 3, llm.close)
    with pytest.raises(TinyServeError, match="closed"):
        llm.generate(PROMPTS, LONG)
    assert not llm.engine.core.has_work()
    assert texts(llm, 1)


def test_closing_takes_nothing_from_who_is_done(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the LLM between the last token and its collection."""
    whole, step = texts(llm, 1), llm._core.step

    def step_then_close() -> None:
        step()
        if any(output.finish_reason for inbox in llm._core.inboxes.values() for output in inbox):
            llm.close()

    monkeypatch.setattr(llm._core, "step", step_then_close)
    (output,) = llm.generate(PROMPTS[1], {**params(1), "n": 1})
    assert output.text == whole[0]
    with pytest.raises(TinyServeError, match="closed"):
        llm.generate(PROMPTS[:2], [{"max_tokens": 1}, {"max_tokens": 9, "ignore_eos": True}])


def test_a_step_that_fails_ends_everybody(llm: LLM) -> None:
    """Their outputs may be lost with it; nobody waits for ever."""
    streams = [llm.stream(PROMPTS[i], params(i)) for i in range(2)]
    for stream in streams:
        next(stream)
    runner_of(llm.engine).error = MemoryError("no room")
    with pytest.raises(MemoryError):
        llm.generate(PROMPTS[2], LONG)
    runner_of(llm.engine).error = None
    for stream in streams:
        with pytest.raises(TinyServeError, match="no room"):
            list(stream)
    assert not llm.engine.core.has_work()
    assert texts(llm, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_child_process_inherits_whole_steps(llm: LLM) -> None:
    """Another thread is always at work when the process forks."""
    whole = texts(llm, 1)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            texts(llm, 0)

    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(work)
        try:
            codes = []
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.alarm(30)  # a child that waits for ever is killed
                    os._exit(0 if texts(llm, 1) == whole else 1)
                codes.append(os.waitpid(child, 0)[1])
        finally:
            is_over.set()
        worker.result()
    assert codes == [0] * 5
    assert texts(llm, 1) == whole
