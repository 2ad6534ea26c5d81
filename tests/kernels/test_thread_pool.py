"""The thread pool: any number of threads, any number of callers, forks and exits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from kernel_tools import bind, make_weight, rows_batch, same_bits

from tinyserve.kernels.formats import F32
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Batch


def small_program(backend: NativeBackend, rng: np.random.Generator) -> Callable[[Batch], F32]:
    """A few operations of a few tasks each."""
    first = backend.linear([make_weight("u4", 96, 64, rng)])
    second = backend.linear([make_weight("int8:32", 64, 96, rng)])
    norm = np.ones(64, np.float32)
    x = rng.standard_normal((40, 64)).astype(np.float32)

    def forward(ops: object, a: object) -> object:
        for _ in range(3):
            h = ops.linear(ops.rms_norm(a, norm, 1e-5), first)  # type: ignore[attr-defined]
            a = ops.linear(h, second, residual=a)  # type: ignore[attr-defined]
        return a

    return bind(backend, forward, x)


@pytest.mark.parametrize("threads", [2, 3, 4, 8, 17])
def test_threads_change_no_bit(
    native: NativeBackend, threads: int, rng: np.random.Generator
) -> None:
    """Fewer and more threads than cores, and more threads than tasks; many steps in a row."""
    seed = int(rng.integers(2**32))
    alone = small_program(NativeBackend(1), np.random.default_rng(seed))
    many = small_program(NativeBackend(threads), np.random.default_rng(seed))
    for rows in (1, 5, 40):
        want = alone(rows_batch(rows))
        for _ in range(100):
            assert same_bits(many(rows_batch(rows)), want)


def test_callers_take_turns(native: NativeBackend, rng: np.random.Generator) -> None:
    """Several Python threads, each with programs of its own, on pools of different sizes."""
    programs = [small_program(NativeBackend(threads), rng) for threads in (1, 2, 3, 4, 2, 4)]
    wanted = [program(rows_batch(40)) for program in programs]
    wrong: list[str] = []

    def work(index: int) -> None:
        for step in range(150):
            rows = 1 + (step * 7 + index) % 40
            if not same_bits(programs[index](rows_batch(rows)), wanted[index][:rows]):
                wrong.append(f"program {index}, step {step}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a step never ended"
    assert not wrong


def test_programs_come_and_go(native: NativeBackend, rng: np.random.Generator) -> None:
    """Programs are freed while others run."""
    stop = threading.Event()
    steady = small_program(NativeBackend(3), rng)
    want = steady(rows_batch(40))
    wrong: list[int] = []

    def churn() -> None:
        local = np.random.default_rng(0)
        while not stop.is_set():
            small_program(NativeBackend(2), local)(rows_batch(3))

    thread = threading.Thread(target=churn)
    thread.start()
    for step in range(300):
        if not same_bits(steady(rows_batch(40)), want):
            wrong.append(step)
    stop.set()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert not wrong


SETUP = """
import os, sys, threading, time, warnings
import numpy as np
warnings.simplefilter("ignore")  # newer Pythons warn of forks among threads
from tinyserve.kernels.formats import FloatWeight
from tinyserve.kernels.native import NativeBackend
from tinyserve.kernels.ops import Batch, KVLayout
from tinyserve.kv.pool import KVPool

def program(threads):
    backend = NativeBackend(threads)
    x = np.ones((64, 64), np.float32)
    table, weight = backend.linear([FloatWeight(x)]), backend.linear([FloatWeight(x)])
    pool = KVPool(KVLayout(1, 16, 1, 1, 16, "f32"), 0)
    return backend.compile(lambda ops: ops.linear(ops.embed(table), weight), pool, max_rows=64)

def batch():
    ids = np.arange(64, dtype=np.int32)
    two = np.array([0, 64], np.int32)
    return Batch(ids, ids, ids, two, np.zeros(1, np.int32), np.array([0, 1], np.int32), ids)

def check(run):
    assert (run.run(batch()) == 64).all()
"""


def run_script(body: str, timeout: float = 60) -> str:
    """A fresh interpreter; its output. A crash, an error or a hang fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + body],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stderr}"
    return done.stdout


def test_a_forked_child_computes(native: NativeBackend) -> None:
    """The child has none of the parent's threads; parent and child both go on."""
    run_script("""
run = program(4)
check(run)
for _ in range(5):
    child = os.fork()
    if child == 0:
        for _ in range(20):
            check(run)
        check(program(3))
        os._exit(0)
    check(run)
    assert os.waitpid(child, 0)[1] == 0
""")


def test_a_child_forked_while_a_step_runs_computes(native: NativeBackend) -> None:
    """The fork may come while another thread holds the pool."""
    run_script("""
run, own = program(2), program(2)
stop = False
def steps():
    while not stop:
        check(run)
thread = threading.Thread(target=steps)
thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        check(own)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
""")


def test_the_process_ends_cleanly(native: NativeBackend) -> None:
    """Idle pool threads, live programs, and a daemon thread in the middle of a step."""
    for _ in range(5):
        out = run_script("""
run = program(4)
def steps():
    while True:
        check(run)
threading.Thread(target=steps, daemon=True).start()
time.sleep(0.05)
print("done")
""")
        assert out == "done\n"


def test_an_idle_pool_sleeps(native: NativeBackend) -> None:
    """Half a second after a step, its threads have used next to no processor time."""
    out = run_script("""
run = program(4)
for _ in range(10):
    check(run)
time.sleep(0.05)
before = time.process_time()  # of all threads
time.sleep(0.5)
print(time.process_time() - before)
""")
    assert float(out) < 0.2 * 0.5


def test_where_threads_cannot_be_made(native: NativeBackend) -> None:
    """A container may limit processes: the step runs on the threads that there are."""
    resource = pytest.importorskip("resource")
    if not hasattr(resource, "RLIMIT_NPROC"):
        pytest.skip("the system has no such limit")
    run_script("""
import resource
run = program(8)
if os.getuid() == 0:  # the limit does not bind root
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
check(run)
""")
