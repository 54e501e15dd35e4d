"""Restarts with back-off, and the ends of a job; a query that fails as often as it is told."""

import random
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from cosmodrome_spark.errors import DataLoss
from cosmodrome_spark.jobs.config import load
from cosmodrome_spark.jobs.progress import BatchProgress
from cosmodrome_spark.jobs.run import BACKOFF_S_MAX, JobContext, backoff_s, cause_of, run_query
from tests.support.pull_server import PullServer


class Stopping(threading.Event):
    """Notes how long it was waited for, and lets nobody wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0.0)
        return self.is_set()


class Failing:
    """A sink that fails some batches, and counts the rows of the others."""

    def __init__(self, error: Exception, times: int) -> None:
        self._error = error
        self._left = times
        self.rows = 0

    def __call__(self, frame: DataFrame, _batch: int) -> None:
        if self._left:
            self._left -= 1
            raise self._error
        self.rows += frame.count()


class Attempts:
    """Makes the query of each attempt."""

    def __init__(self, spark: SparkSession, server: PullServer, sink: Failing) -> None:
        options = {"endpoints": server.endpoints, "subscribe": "orders"}
        self._read = spark.readStream.format("rocketmq").options(
            **options, startingOffsets="earliest"
        )
        self._sink = sink
        self.count = 0

    def __call__(self) -> DataStreamWriter:
        self.count += 1
        return self._read.load().writeStream.foreachBatch(self._sink)


@pytest.fixture
def stopping() -> Stopping:
    return Stopping()


def context(
    spark: SparkSession, folder: Path, stopping: Stopping, told: list[BatchProgress]
) -> JobContext:
    config = load("archive", None, [f"stream.checkpoint={folder}", "stream.retries=3"])
    return JobContext(config, once=True, stopping=stopping, tell=told.append, session=spark)


@pytest.fixture
def orders(server: PullServer) -> PullServer:
    server.create("orders", 1)
    server.fill("orders", 0, 25)
    return server


def test_a_query_that_fails_starts_again_from_its_checkpoint_after_longer_and_longer_waits(
    spark: SparkSession, orders: PullServer, tmp_path: Path, stopping: Stopping
) -> None:
    told: list[BatchProgress] = []
    sink = Failing(ConnectionError("the disk is away"), times=3)
    attempts = Attempts(spark, orders, sink)

    code = run_query(context(spark, tmp_path, stopping, told), attempts)

    assert code == 0
    assert attempts.count == 4
    assert sink.rows == 25
    assert [each.rows for each in told if each.rows] == [25]
    for waited_s, whole_s in zip(stopping.waited_s, (1, 2, 4), strict=True):
        assert whole_s / 2 <= waited_s <= whole_s


def test_a_query_that_fails_for_good_is_given_up_after_its_retries(
    spark: SparkSession, orders: PullServer, tmp_path: Path, stopping: Stopping
) -> None:
    attempts = Attempts(spark, orders, Failing(ConnectionError("the disk is away"), times=99))

    code = run_query(context(spark, tmp_path, stopping, []), attempts)

    assert (code, attempts.count, len(stopping.waited_s)) == (1, 4, 3)


def test_what_no_repetition_cures_is_not_repeated(
    spark: SparkSession, orders: PullServer, tmp_path: Path, stopping: Stopping
) -> None:
    attempts = Attempts(spark, orders, Failing(DataLoss("3 offsets are gone"), times=99))

    code = run_query(context(spark, tmp_path, stopping, []), attempts)

    assert (code, attempts.count, stopping.waited_s) == (1, 1, [])


def test_a_job_that_is_to_stop_does_not_start_again(
    spark: SparkSession, orders: PullServer, tmp_path: Path, stopping: Stopping
) -> None:
    class Stops(Failing):
        def __call__(self, frame: DataFrame, batch: int) -> None:
            stopping.set()
            super().__call__(frame, batch)

    attempts = Attempts(spark, orders, Stops(ConnectionError("the disk is away"), times=99))

    run_query(context(spark, tmp_path, stopping, []), attempts)

    assert (attempts.count, stopping.waited_s) == (1, [])


def test_the_wait_doubles_with_jitter_and_is_bounded() -> None:
    chance = random.Random(1)
    waits = [[backoff_s(attempt, chance) for _ in range(200)] for attempt in range(1, 12)]

    for attempt, each in enumerate(waits, 1):
        whole_s = min(BACKOFF_S_MAX, 2.0 ** (attempt - 1))
        assert whole_s / 2 <= min(each) < max(each) <= whole_s


def test_a_failure_is_told_in_one_line_ours_before_sparks() -> None:
    traceback = (
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n"
        '  File "wire.py", line 99, in unary\n'
        "cosmodrome_spark.errors.BrokerUnreachable: QueryRoute: connection refused\n"
        " SQLSTATE: 38000\n=== Streaming Query ===\n"
    )
    assert cause_of(traceback) == "BrokerUnreachable: QueryRoute: connection refused"
    assert cause_of("[SPARK] out of memory\n=== Streaming Query ===\n") == "[SPARK] out of memory"
