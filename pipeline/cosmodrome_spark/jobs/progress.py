"""What a running job tells: a JSON line for each batch, a bar for people, metrics.

Spark's listener ──▶ BatchProgress ──▶ stdout   {"job": "archive", "batch": 7, …}
                                  ├──▶ stderr   a bar, where a person looks
                                  └──▶ Prometheus gauges, where a port is given
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from pyspark.sql.streaming.listener import StreamingQueryListener

from cosmodrome_spark.offsets import from_json

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

BAR_CELLS = 24


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One finished batch.

    Attributes:
        job: The job's name.
        batch: Spark's number.
        rows: How many were read.
        batch_ms: How long it took.
        lag: Offsets between what was read and the ends of the queues; -1 if unknown.
        lag_by_queue: The same by queue.
        watermark: Event time below which nothing is waited for; "" for none.
    """

    job: str
    batch: int
    rows: int
    batch_ms: int
    lag: int
    lag_by_queue: dict[str, int] = field(default_factory=dict)
    watermark: str = ""

    @property
    def rows_per_second(self) -> int:
        """The batch's speed."""
        return round(1000 * self.rows / max(1, self.batch_ms))


def batch_progress(job: str, progress: Any) -> BatchProgress:  # noqa: ANN401 - Spark's event
    """Read Spark's progress of one query."""
    lags: dict[str, int] = {}
    for source in progress.sources:
        if not source.latestOffset or not source.endOffset:
            continue
        latest, end = (_offsets(text) for text in (source.latestOffset, source.endOffset))
        for queue, offset in latest.items():
            lags[str(queue)] = max(0, offset - end.get(queue, 0))
    return BatchProgress(
        job=job,
        batch=progress.batchId,
        rows=progress.numInputRows or 0,
        batch_ms=(progress.durationMs or {}).get("triggerExecution", 0),
        lag=sum(lags.values()) if lags else -1,
        lag_by_queue=lags,
        watermark=(progress.eventTime or {}).get("watermark", ""),
    )


def _offsets(text: Any) -> dict[Any, int]:  # noqa: ANN401 - JSON text, or what it says
    document = json.loads(text) if isinstance(text, str) else text
    return dict(from_json(document)) if isinstance(document, dict) else {}


class Listener(StreamingQueryListener):
    """Hands Spark's events on as `BatchProgress`, with the id of the query's run."""

    def __init__(self, job: str, tell: Callable[[str, BatchProgress], None]) -> None:
        super().__init__()
        self._job = job
        self._tell = tell

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:  # noqa: N802  # Spark's
        """Nothing to tell yet."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:  # noqa: N802  # Spark's
        """One batch is done."""
        self._tell(str(event.progress.runId), batch_progress(self._job, event.progress))

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:  # noqa: N802  # Spark's
        """Nothing new on the topics."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:  # noqa: N802  # Spark's
        """The runner says how it ended."""


class Teller:
    """Writes progress for machines and for people."""

    def __init__(self, lines: TextIO = sys.stdout, bar: TextIO | None = None) -> None:
        self._lines = lines
        self._bar = bar
        self._most_lag = 1

    def __call__(self, progress: BatchProgress) -> None:
        """Tell one batch; empty ones only move the bar."""
        if progress.rows:
            facts = {**asdict(progress), "rows_per_second": progress.rows_per_second}
            self._lines.write(json.dumps(facts) + "\n")
            self._lines.flush()
        if self._bar is not None:
            self._bar.write("\r" + self.bar(progress))
            self._bar.flush()

    def bar(self, progress: BatchProgress) -> str:
        """One line: how much of the largest backlog seen is done."""
        self._most_lag = max(self._most_lag, progress.lag)
        done = 1 - max(0, progress.lag) / self._most_lag
        cells = round(BAR_CELLS * done)
        bar = "█" * cells + "░" * (BAR_CELLS - cells)
        return (
            f"{progress.job} {bar} {done:4.0%}  batch {progress.batch}"
            f"  {progress.rows_per_second:,} rows/s  lag {progress.lag:,}   "
        )


def prometheus(port: int) -> Callable[[BatchProgress], None]:
    """Serve gauges on a port of the loopback; return what feeds them."""
    from prometheus_client import Gauge, start_http_server  # noqa: PLC0415  # of [server]

    start_http_server(port, addr="127.0.0.1")
    labels = ("job",)
    rows = Gauge("cosmodrome_pipeline_batch_rows", "rows of the last batch", labels)
    took = Gauge("cosmodrome_pipeline_batch_seconds", "duration of the last batch", labels)
    number = Gauge("cosmodrome_pipeline_batch", "number of the last batch", labels)
    lag = Gauge("cosmodrome_pipeline_lag_offsets", "offsets not read yet", ("job", "queue"))

    def feed(progress: BatchProgress) -> None:
        rows.labels(progress.job).set(progress.rows)
        took.labels(progress.job).set(progress.batch_ms / 1000)
        number.labels(progress.job).set(progress.batch)
        for queue, offsets in progress.lag_by_queue.items():
            lag.labels(progress.job, queue).set(offsets)

    return feed
