"""Batch reads, with or without conditions pushed down to offset ranges."""

import datetime as dt
import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import SourceOptions
from cosmodrome_spark.read.base import Cluster
from cosmodrome_spark.read.road import open_cluster
from cosmodrome_spark.source import resolve
from cosmodrome_spark.source.partition import RangesPartition, plan_partitions, read_partition

_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[RangesPartition]:
        """Resolve offsets now, and cut them into tasks."""
        cluster = open_cluster(self._options.connection)
        try:
            return plan_partitions(self._spans(cluster), self._options)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges, on an executor."""
        return read_partition(self._options.connection, self._options.query, partition)

    def _spans(self, cluster: Cluster) -> list[QueueRange]:
        options = self._options
        queues = resolve.choose_queues(cluster, options.topics)
        resolve.must_find(options.topics, queues)
        bounds = cluster.bounds(queues)
        start = resolve.starting_offsets(cluster, options.starting, bounds, options.group)
        end = resolve.ending_offsets(cluster, options.ending, bounds)
        # Asking for a range that ends before it begins is asking for nothing.
        end = {queue: max(end[queue], start[queue]) for queue in end}
        spans, losses = resolve.checked_ranges(
            start, end, bounds, fails=options.query.fail_on_data_loss
        )
        for loss in losses:
            _log.warning("data loss: %s", loss)
        return spans


class PushdownReader(BatchReader):
    """A batch read that narrows its ranges by the query's conditions.

    Only made when the option asks for it: Spark fails a query whose reader has
    `pushFilters` while spark.sql.python.filterPushdown.enabled is off.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._pushed: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take conditions on topic, queue id, offset and store time; Spark keeps the rest.

        A condition on the store time narrows the range but does not decide each row
        (offsets follow the broker's clock in milliseconds, Spark compares microseconds):
        Spark applies it too.
        """
        for each in filters:
            attribute: tuple[str, ...] = getattr(each, "attribute", ())
            column = attribute[0] if len(attribute) == 1 else ""
            if column in _NARROWING and isinstance(each, _NARROWING[column]):
                self._pushed.append(each)
                if column != "store_timestamp":
                    continue
            yield each

    def _spans(self, cluster: Cluster) -> list[QueueRange]:
        spans = super()._spans(cluster)
        for each in self._pushed:
            spans = [kept for span in spans if (kept := _narrow(cluster, span, each)) is not None]
        return spans


_COMPARISONS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_NARROWING: dict[str, tuple[type, ...]] = {
    "topic": (EqualTo, In),
    "queue_id": (EqualTo, In),
    "queue_offset": _COMPARISONS,
    "store_timestamp": _COMPARISONS,
}


def _narrow(cluster: Cluster, span: QueueRange, each: Filter) -> QueueRange | None:
    """The part of a range that a condition leaves, or None."""
    column, value = each.attribute[0], each.value  # type: ignore[attr-defined]  # by _NARROWING
    if column in {"topic", "queue_id"}:
        own = span.queue.topic if column == "topic" else span.queue.queue_id
        return span if own in (value if isinstance(each, In) else (value,)) else None
    if column == "store_timestamp":
        start, end = _offsets_of_time(cluster, span, each, value)
    else:
        start, end = _interval(each, value, value + 1)
    start, end = max(span.start, start), min(span.end, end)
    return QueueRange(span.queue, start, end) if start < end else None


def _interval(each: Filter, low: int, high: int) -> tuple[int, int]:
    """The half-open interval that a comparison with [low, high) leaves."""
    everything = (0, 1 << 62)
    match each:
        case EqualTo():
            return low, high
        case GreaterThan():
            return high, everything[1]
        case GreaterThanOrEqual():
            return low, everything[1]
        case LessThan():
            return 0, low
        case _:
            return 0, high


def _offsets_of_time(
    cluster: Cluster, span: QueueRange, each: Filter, value: dt.datetime
) -> tuple[int, int]:
    moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    time_ms = int(moment.timestamp() * 1000)
    low = cluster.offsets_at({span.queue: time_ms})[span.queue]
    high = cluster.offsets_at({span.queue: time_ms + 1})[span.queue]
    # `<` may still hold within the millisecond, so it keeps all of it.
    return (
        _interval(each, low, high)
        if not isinstance(each, (LessThan, GreaterThan))
        else ((low, 1 << 62) if isinstance(each, GreaterThan) else (0, high))
    )
