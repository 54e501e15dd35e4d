import threading

import pytest

from cosmodrome_server.store.group_commit import Durability, parse_durability
from cosmodrome_server.store.worker import ThreadWorker
from tests.support.log_world import World


@pytest.mark.parametrize(
    ("text", "durability"),
    [
        ("sync", Durability(is_synced=True)),
        ("interval:200", Durability(is_synced=False, interval_ms=200)),
        ("os", Durability(is_synced=False)),
    ],
)
def test_durability_is_read_from_the_settings(text: str, durability: Durability) -> None:
    assert parse_durability(text) == durability


def test_while_a_frame_is_written_the_next_one_fills() -> None:
    world = World()
    world.writer.holding = True
    world.send(0, b"first")
    assert world.log.commit(lambda: None)
    world.send(0, b"second")

    assert not world.log.commit(lambda: None)
    assert (world.log.durable_lsn, world.log.open_lsn, world.log.has_staged) == (0, 2, True)
    world.writer.release()
    assert world.log.durable_lsn == 1
    assert world.log.commit(lambda: None)
    assert world.messages(1, 0) == [(0, b"first"), (1, b"second")]


def test_whoever_is_told_of_a_frame_can_commit_the_next_at_once() -> None:
    world = World()
    told = []

    def durable() -> None:
        told.append("durable")
        world.send(0, b"second")
        assert world.log.commit(lambda: told.append("second durable"))

    world.log.set_on_idle(lambda: told.append("idle"))
    world.send(0, b"first")
    world.writer.holding = True
    world.log.commit(durable)
    world.writer.release()

    assert told == ["durable", "second durable", "idle", "idle"]


def test_an_announcement_that_fails_stops_no_other() -> None:
    world = World()
    idle = []
    world.log.set_on_idle(lambda: idle.append(True))
    world.send(0, b"x")

    def bug() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.log.commit(bug)
    assert idle == [True]
    world.send(0, b"y")
    assert world.log.commit(lambda: None)


def test_a_bug_in_the_writer_is_a_failed_write() -> None:
    world = World()
    world.log._parts.append("no bytes")  # type: ignore[arg-type]  # the bug
    world.send(0, b"x")
    world.commit()

    assert [type(error) for error in world.failed] == [TypeError]
    assert world.acked_lsn == 0


def test_a_thread_runs_jobs_in_order_and_survives_their_bugs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = ThreadWorker("test")
    done: list[int] = []
    worker.submit(lambda: done.append(1))
    worker.submit(lambda: done.append(1 // 0))
    worker.submit(lambda: done.append(2))
    worker.close()

    assert done == [1, 2]
    assert "job_failed" in caplog.text


def test_a_short_job_runs_where_it_is_given_once_one_was_short(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, takes_s = [0.0], [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    worker = ThreadWorker("test")
    ran_here: list[bool] = []

    def job() -> None:
        ran_here.append(threading.current_thread() is threading.main_thread())
        now_s[0] += takes_s[0]

    def give(seconds: float) -> None:
        takes_s[0] = seconds
        worker.submit_short(job)
        done = threading.Event()
        worker.submit(done.set)
        assert done.wait(10)

    for seconds in (0.0001, 0.0001, 0.1, 0.1, 0.0001, 0.0001):
        give(seconds)
    assert ran_here == [False, True, True, False, False, True]

    worker.submit_short(lambda: ran_here.append(1 // 0 > 0))
    worker.close()
    assert "job_failed" in caplog.text


def test_an_idle_thread_runs_its_idle_job() -> None:
    worker = ThreadWorker("test")
    ticks, ticked = [], threading.Event()

    def tick() -> None:
        ticks.append(1)
        if len(ticks) == 3:
            ticked.set()

    worker.every(0.001, tick)

    assert ticked.wait(10)
    worker.close()
