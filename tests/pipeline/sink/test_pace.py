"""Tasks that write to one place share a rate, whichever process they are in."""

from pathlib import Path

import pytest

from cosmodrome_spark.options import sink_options
from cosmodrome_spark.sink.pace import Pace

SECOND_NS = 1_000_000_000


class Time:
    """A clock that its sleeper moves."""

    def __init__(self, now_ns: int = 5 * SECOND_NS) -> None:
        self.now_ns = now_ns
        self.slept: list[float] = []

    def now(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * SECOND_NS)


def pace(folder: Path, time: Time, **options: str) -> Pace:
    base = {"endpoints": "h:1", "topic": "out", "rateLimit": "100"}
    return Pace(sink_options(base | options), folder, time.now, time.sleep)


def test_a_task_waits_for_as_long_as_what_went_before_takes(tmp_path: Path) -> None:
    time = Time()
    one = pace(tmp_path, time)

    for messages in (50, 100, 25):
        one.wait(messages)

    assert time.slept == [0.5, 1.0]


def test_tasks_take_turns(tmp_path: Path) -> None:
    times = [Time(), Time()]
    tasks = [pace(tmp_path, time) for time in times]

    for _ in range(2):
        for task in tasks:
            task.wait(50)

    assert [time.slept for time in times] == [[1.0], [0.5, 1.0]]


def test_another_topic_has_a_rate_of_its_own(tmp_path: Path) -> None:
    time = Time()
    pace(tmp_path, time).wait(100)
    pace(tmp_path, time, topic="other").wait(100)

    assert time.slept == []


def test_idle_time_is_not_saved_up(tmp_path: Path) -> None:
    time = Time()
    one = pace(tmp_path, time)
    one.wait(100)
    time.now_ns += 60 * SECOND_NS

    one.wait(100)
    one.wait(100)

    assert time.slept == [1.0]


def test_a_moment_of_before_the_machine_was_started_anew_counts_for_nothing(
    tmp_path: Path,
) -> None:
    pace(tmp_path, Time(9_000_000 * SECOND_NS)).wait(100)
    time = Time()

    pace(tmp_path, time).wait(100)

    assert time.slept == []


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_file_that_was_cut_begins_anew(tmp_path: Path, content: bytes) -> None:
    time = Time()
    one = pace(tmp_path, time)
    one.wait(1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)

    one.wait(1)

    assert time.slept == []
