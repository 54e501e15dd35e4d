"""Threads of plain listeners: as many as are busy, and none that a process waits for."""

import subprocess
import sys
import threading

import pytest

from cosmodrome._client.threads import DaemonThreads

STUCK = """
import threading
from cosmodrome._client.threads import DaemonThreads

begun = threading.Event()
pool = DaemonThreads(2, "consume")
pool.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
pool.shutdown(wait=False, cancel_futures=True)
"""


def test_calls_run_side_by_side_up_to_the_bound() -> None:
    pool, gate = DaemonThreads(3, "consume"), threading.Barrier(4)

    together = [pool.submit(gate.wait) for _ in range(3)]
    after = pool.submit(threading.current_thread)
    gate.wait(20)

    assert {future.result(20) for future in together} <= {0, 1, 2, 3}
    assert after.result(20).daemon
    pool.shutdown()


def test_an_idle_thread_is_used_again() -> None:
    pool = DaemonThreads(8, "consume")

    names = {pool.submit(lambda: threading.current_thread().name).result(20) for _ in range(50)}

    assert len(names) == 1
    pool.shutdown()


@pytest.mark.parametrize("is_given_before", [True, False])
def test_a_call_waits_for_no_stuck_one_that_was_abandoned(is_given_before: bool) -> None:
    pool, gate, begun = DaemonThreads(1, "consume"), threading.Event(), threading.Event()
    many = [pool.submit(lambda: None) for _ in range(50)]
    assert [future.result(20) for future in many] == [None] * 50

    def hang() -> bool:
        begun.set()
        return gate.wait(60)

    stuck = pool.submit(hang)
    assert begun.wait(20)
    if is_given_before:
        waiting = pool.submit(lambda: 7)
        pool.abandon()
    else:
        pool.abandon()
        waiting = pool.submit(lambda: 7)

    assert waiting.result(20) == 7
    gate.set()
    assert stuck.result(20)
    pool.shutdown()


def test_what_a_call_raises_is_its_futures() -> None:
    pool = DaemonThreads(1, "consume")

    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(20)
    with pytest.raises(RuntimeError, match=r"sys\.exit"):
        pool.submit(sys.exit, 3).result(20)
    with pytest.raises(RuntimeError, match="StopIteration"):
        pool.submit(next, iter(())).result(20)

    assert pool.submit(lambda: 7).result(20) == 7
    pool.shutdown()


def test_what_was_not_begun_is_cancelled_at_the_end() -> None:
    pool, gate, begun = DaemonThreads(1, "consume"), threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return gate.wait(20)

    running = pool.submit(wait)
    begun.wait(20)
    waiting = pool.submit(lambda: None)

    pool.shutdown(wait=False, cancel_futures=True)
    gate.set()

    assert waiting.cancelled()
    assert running.result(20)
    with pytest.raises(RuntimeError, match="ended"):
        pool.submit(lambda: None)


def test_a_process_ends_although_a_call_is_stuck() -> None:
    subprocess.run([sys.executable, "-c", STUCK], check=True, timeout=60)
