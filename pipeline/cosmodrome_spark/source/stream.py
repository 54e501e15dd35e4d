"""Streaming reads: offsets live in Spark's checkpoint, nowhere else.

    latestOffset   where the queues end, cut by the limit        driver, each trigger
    partitions     [start, end) → tasks, losses said             driver, each batch
    read           the ranges of one task                        executors

Behaviour of Spark that shapes this:
* offsets are compared as text, so they are sorted (`offsets.to_json`);
* there is no read limit for "at least n, but wait no longer than t", so that is kept here;
* `commit` comes one batch late and never for the last, but `latestOffset` is asked after every
  batch, from where that ended: so group offsets are published there. Monitoring, not progress;
* with AvailableNow, `prepareForTriggerAvailableNow` comes first and fixes the target.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cosmodrome_spark.errors import DataLoss, PipelineError
from cosmodrome_spark.offsets import (
    MessageQueue,
    Offsets,
    OffsetsJson,
    QueueRange,
    backlog,
    from_json,
    to_json,
)
from cosmodrome_spark.options import ReadQuery, SourceOptions
from cosmodrome_spark.planning import limit_bytes, limit_offsets
from cosmodrome_spark.read.base import Cluster
from cosmodrome_spark.read.road import open_cluster, read_ranges
from cosmodrome_spark.source import resolve
from cosmodrome_spark.source.partition import (
    RangesPartition,
    plan_partitions,
    read_partition,
    write_partition,
)

_log = logging.getLogger(__name__)
# Of each queue, to estimate sizes by: so many messages, or as many as this many bytes hold.
SAMPLE_ROWS = 32
SAMPLE_BYTES = 1 << 20


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the queues of some topics.

    Lives in one process for the whole query on the driver; a copy of it reads on executors.
    """

    def __init__(self, options: SourceOptions, now_ms: Callable[[], int] | None = None) -> None:
        self._options = options
        self._now_ms = now_ms
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None
        self._waiting_since_ms: int | None = None
        self._latest: Offsets = {}
        self._gone: set[MessageQueue] = set()
        self._reported: Offsets = {}

    # What Spark calls, in its own spelling. -------------------------------------------

    def initialOffset(self) -> OffsetsJson:  # noqa: N802  # Spark's
        """Where a query without a checkpoint begins."""
        bounds = self._bounds()
        options = self._options
        start = resolve.starting_offsets(self._connected(), options.starting, bounds, options.group)
        if self._target is not None:
            # Messages may have come in since the target was fixed.
            start = {q: min(at, self._target.get(q, at)) for q, at in start.items()}
        return to_json(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        """Fix the target: what is there now is all that is read."""
        self._target = {queue: each.max_offset for queue, each in self._bounds().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        """The limit that the options ask for."""
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802  # Spark's
        """Where the next batch ends: `start` itself when there is nothing to do.

        Raises:
            DataLoss: A queue that was read is not there any more, unless failOnDataLoss is off.
        """
        begin = from_json(start)
        self._report(dict(begin))
        bounds = self._bounds()
        self._notice_gone({queue for queue in begin if queue not in bounds})
        end = {queue: each.max_offset for queue, each in bounds.items()}
        self._latest = end
        if self._target is not None:
            end = {queue: min(at, self._target.get(queue, at)) for queue, at in end.items()}
            end = {queue: at for queue, at in end.items() if queue in self._target}
        for queue, each in bounds.items():
            begin.setdefault(queue, each.min_offset)
        # A queue that ends before where it was read was created anew; `partitions` says so.
        # A queue that is gone stays as it was.
        end = {**begin, **end}
        if self._target is None and self._should_wait(backlog(begin, end)):
            return to_json(from_json(start))
        return to_json(self._limited(begin, end, limit))

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802  # Spark's
        """Where the queues end: Spark's progress shows it, and the lag follows."""
        return to_json(self._latest) if self._latest else None

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[RangesPartition]:
        """Cut one batch into tasks.

        Raises:
            DataLoss: Offsets of the batch are gone, unless failOnDataLoss is off.
        """
        begin, until = from_json(start), from_json(end)
        bounds = self._connected().bounds(sorted({*begin, *until}))
        spans, losses = resolve.checked_ranges(
            begin, until, bounds, fails=self._options.query.fail_on_data_loss
        )
        for loss in losses:
            _log.warning("data loss: %s", loss)
        return plan_partitions(spans, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges, on an executor."""
        options = self._options
        if options.write_files is not None:
            return write_partition(options, partition)
        return read_partition(options.connection, options.query, partition)

    def commit(self, end: OffsetsJson) -> None:
        """Nothing to do: `latestOffset` has published what is done."""

    def stop(self) -> None:
        """Let connections go."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # ------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        """Leave the connection behind when Spark sends this to executors."""
        return {**self.__dict__, "_cluster": None, "_now_ms": None}

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_cluster(self._options.connection)
        return self._cluster

    def _bounds(self) -> resolve.Bounds:
        cluster = self._connected()
        return cluster.bounds(resolve.choose_queues(cluster, self._options.topics))

    def _notice_gone(self, gone: set[MessageQueue]) -> None:
        if gone and self._options.query.fail_on_data_loss:
            raise DataLoss(
                f"{', '.join(map(str, sorted(gone)))} is gone, and what was not read there: its "
                "topic was deleted, or is not subscribed any more; set failOnDataLoss=false to "
                "go on without it"
            )
        for queue in sorted(gone - self._gone):
            _log.warning("data loss: %s is gone", queue)
        self._gone = gone

    def _limited(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        match limit:
            case ReadMaxRows(max_rows=rows):
                return limit_offsets(begin, end, rows)
            case ReadMaxBytes(max_bytes=size):
                return self._limited_by_bytes(begin, end, size)
            case _:
                return end

    def _should_wait(self, rows: int) -> bool:
        """Whether `minOffsetsPerTrigger` asks for patience; at most `maxTriggerDelay`."""
        if self._options.min_offsets is None or rows == 0:
            return False
        now_ms = self._now_ms() if self._now_ms else time.monotonic_ns() // 1_000_000
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        waited_ms = now_ms - self._waiting_since_ms
        if rows < self._options.min_offsets and waited_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since_ms = None
        return False

    def _limited_by_bytes(self, begin: Offsets, end: Offsets, size: int) -> Offsets:
        """Cut a batch by the size of its first messages, then by that of its last ones too."""
        sampled = {
            q: QueueRange(q, begin[q], min(at, begin[q] + SAMPLE_ROWS)) for q, at in end.items()
        }
        first = self._mean_bytes(sampled.values())
        limited = limit_bytes(begin, end, size, first)
        sampled = {
            q: QueueRange(q, max(begin[q], at - SAMPLE_ROWS), at) for q, at in limited.items()
        }
        last = self._mean_bytes(sampled.values())
        both = {q: (mean + last.get(q, mean)) / 2 for q, mean in first.items()}
        return limit_bytes(begin, limited, size, both)

    def _mean_bytes(self, spans: Iterable[QueueRange]) -> dict[MessageQueue, float]:
        """The mean size of the messages of some ranges, by queue; nothing where there are none."""
        query = ReadQuery(
            columns=("body",),
            batch_bytes=SAMPLE_BYTES,
            decode_body=False,
            fail_on_data_loss=False,
        )
        means = {}
        for span in spans:
            if span.start >= span.end:
                continue
            size = rows = 0
            with closing(read_ranges(self._options.connection, (span,), query)) as batches:
                for batch in batches:
                    size, rows = size + batch.nbytes, rows + batch.num_rows
                    if size >= SAMPLE_BYTES:
                        break
            if rows:
                means[span.queue] = size / rows
        return means

    def _report(self, offsets: Offsets) -> None:
        options = self._options
        if not (options.report_group_offsets and options.group) or offsets == self._reported:
            return
        self._reported = offsets
        try:
            self._connected().commit(options.group, offsets)
        except PipelineError as error:
            # Best effort: Spark's checkpoint holds the progress, this is for lag monitors.
            _log.warning("group offsets were not reported: %s", error)
