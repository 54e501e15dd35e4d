"""Running a job: its session, its query, its restarts, its end.

    start ──▶ query ──▶ fails ──▶ wait (back-off) ──▶ start again from the checkpoint
                 └──▶ SIGTERM, SIGINT ──▶ the batch under way ends ──▶ stop ──▶ exit code 0

A failure that repeating cannot cure (data loss, a refused option, another lineage) ends the
job at once. A batch that succeeds resets the back-off.
"""

import logging
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.config import JobConfig
from cosmodrome_spark.jobs.progress import (
    BatchProgress,
    Listener,
    Teller,
    batch_progress,
    prometheus,
)
from cosmodrome_spark.session import build_session
from cosmodrome_spark.zygote.start import WarmPython, warm_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger(__name__)
BACKOFF_S_FIRST = 1.0
BACKOFF_S_MAX = 60.0
STOP_GRACE_S = 300
_POLL_S = 1
# Of our own errors, those that another attempt cannot cure; Spark hands them over as text.
_FATAL = ("DataLoss", "InvalidOption", "InvalidJobConfig", "TableConflict", "UnsupportedByServer")


@dataclass(slots=True)
class JobContext:
    """What a job gets.

    Attributes:
        config: What it was told.
        once: Read what is there now, then end.
        stopping: Set when the job is to end.
        tell: Takes progress.
        session: A session that runs already; else one is started when it is asked for.
    """

    config: JobConfig
    once: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    tell: Callable[[BatchProgress], None] = field(default_factory=Teller)
    session: "SparkSession | None" = None
    _started: "SparkSession | None" = None
    _warm: WarmPython | None = None

    @property
    def spark(self) -> "SparkSession":
        """The session; started when it is first asked for."""
        if self.session is not None:
            return self.session
        if self._started is None:
            self._started = self._start()
        return self._started

    def close(self) -> None:
        """End the session, if one was started."""
        if self._started is not None:
            self._started.stop()
            self._started = None
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def _start(self) -> "SparkSession":
        options = self.config.session
        if options.warm_workers and options.master.startswith("local"):
            self._warm = warm_python()
        return build_session(options, python=self._warm.executable if self._warm else None)


@contextmanager
def stop_on_signals(stopping: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask to stop; a second SIGINT interrupts."""

    def ask(number: int, _frame: object) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def context_for(config: JobConfig, *, once: bool, metrics_port: int | None) -> JobContext:
    """A context that tells people and machines."""
    teller = Teller(bar=sys.stderr if sys.stderr.isatty() else None)
    if metrics_port is None:
        return JobContext(config, once=once, tell=teller)
    feed = prometheus(metrics_port)

    def tell(progress: BatchProgress) -> None:
        teller(progress)
        feed(progress)

    return JobContext(config, once=once, tell=tell)


def run_query(
    context: JobContext,
    writer: "Callable[[], DataStreamWriter]",
    rows_of: Mapping[int, int] | None = None,
) -> int:
    """Run a streaming query to its end; return the exit code.

    Args:
        context: See there.
        writer: Makes the query, without checkpoint and trigger; called for each attempt.
        rows_of: Batch → messages, for a query whose rows are no messages.
    """
    stream = context.config.stream
    checkpoint = context.config.must_checkpoint()
    healthy = threading.Event()
    told: set[tuple[str, int]] = set()

    def tell(run: str, progress: BatchProgress) -> None:
        # Spark's listener may be late, or too late: what it did not tell is told at the end.
        if (run, progress.batch) not in told:
            told.add((run, progress.batch))
            if rows_of is not None:
                progress = replace(progress, rows=rows_of.get(progress.batch, 0))
            healthy.set()
            context.tell(progress)

    listener = Listener(context.config.name, tell)
    context.spark.streams.addListener(listener)
    attempt = 0
    try:
        while True:
            made = writer().option("checkpointLocation", checkpoint)
            if context.once:
                made = made.trigger(availableNow=True)
            else:
                made = made.trigger(processingTime=f"{stream.trigger_ms} milliseconds")
            query = made.start()
            failure = _await(query, context)
            for each in query.recentProgress:
                tell(str(each.runId), batch_progress(context.config.name, each))
            if failure is None:
                return 0
            attempt = 1 if healthy.is_set() else attempt + 1
            healthy.clear()
            if _is_fatal(failure) or attempt > stream.retries or context.stopping.is_set():
                _log.error("job %s failed: %s", context.config.name, cause_of(failure))
                return 1
            pause_s = backoff_s(attempt, random.Random())
            cause = cause_of(failure)
            _log.warning("job %s: %s; again in %.1f s", context.config.name, cause, pause_s)
            context.stopping.wait(pause_s)
    finally:
        context.spark.streams.removeListener(listener)


def cause_of(failure: str) -> str:
    """What went wrong, in a line: our own error if there is one, else the first line.

    Spark hands errors of Python over as whole tracebacks, and has logged them by then.
    """
    ours = re.findall(r"^cosmodrome_spark\.errors\.(\w+: .*)$", failure, re.MULTILINE)
    return ours[-1].strip() if ours else failure.strip().partition("\n")[0]


def backoff_s(attempt: int, chance: random.Random) -> float:
    """How long to wait before attempt `attempt` + 1: doubling, with jitter, bounded."""
    whole: float = min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2 ** (attempt - 1))
    return whole * (0.5 + chance.random() / 2)


def _await(query: "StreamingQuery", context: JobContext) -> str | None:
    """Wait for the end of a query; return why it failed, or None."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415  # Spark is optional

    try:
        while not query.awaitTermination(_POLL_S):
            if context.stopping.is_set():
                _stop_after_batch(query)
                return None
    except StreamingQueryException as error:
        return str(error)
    return None


def _stop_after_batch(query: "StreamingQuery") -> None:
    """Let the batch under way end, at most `STOP_GRACE_S`; an idle query stops at once."""
    waited_s = 0
    last = query.lastProgress
    batch = last["batchId"] if last else -1
    while query.isActive and query.status["isTriggerActive"] and waited_s < STOP_GRACE_S:
        now = query.lastProgress
        if now and now["batchId"] != batch:
            break
        query.awaitTermination(_POLL_S)
        waited_s += _POLL_S
    query.stop()


def _is_fatal(failure: str) -> bool:
    return any(f"errors.{name}" in failure for name in _FATAL)
