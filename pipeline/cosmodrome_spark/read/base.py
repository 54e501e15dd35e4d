"""The seams between Spark's side and a broker.

    driver      Cluster       which topics, which queues, which offsets
    executors   TopicReader   the messages of one range as Arrow batches

Both are context managers, hold connections, and cannot be pickled: what travels from the
driver to executors are `Connection`, `ReadQuery` and `QueueRange`.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from cosmodrome_spark.errors import DataLoss
from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueBounds, QueueRange
from cosmodrome_spark.options import ReadQuery

_log = logging.getLogger(__name__)


class Cluster(Protocol):
    """What the driver asks a broker."""

    def topics(self) -> list[str]:
        """All topics by name, without those of dead letters and of the system.

        Raises:
            UnsupportedByServer: The server has no such verb.
        """

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted; raises TopicNotFound."""

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """What the queues hold now; a queue that is gone is left out."""

    def offsets_at(self, timestamps_ms: Mapping[MessageQueue, int]) -> Offsets:
        """The first offset stored at or after a time; the next one where all are older."""

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """What a group committed; queues without are left out."""

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the progress of a group."""

    def close(self) -> None:
        """Let connections go."""


class TopicReader(Protocol):
    """One road."""

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, ascending, as batches with `query.columns`.

        Every offset of the range is delivered, but for those that `query.filter` leaves out.

        Raises:
            DataLoss: An offset is gone, unless `query.fail_on_data_loss` is off.
            BrokerRefused, BrokerUnreachable: The broker said no, or nothing.
        """

    def close(self) -> None:
        """Let connections go."""


class Closing:
    """`with` for what has `close`."""

    def close(self) -> None:
        """Let connections go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Density:
    """Watches that a reader delivers a range without gaps, repeats or strangers.

    An offset log is dense: where a filter is not the reason, a missing offset is a lost
    message, and a reader that goes on silently has lost it for good.
    """

    def __init__(self, span: QueueRange, query: ReadQuery) -> None:
        self._span = span
        self._next = span.start
        self._is_filtered = query.is_filtered
        self._fails = query.fail_on_data_loss

    @property
    def next_offset(self) -> int:
        """Where to go on."""
        return self._next

    @property
    def is_done(self) -> bool:
        """Whether the range is covered."""
        return self._next >= self._span.end

    def saw(self, first: int, last: int, count: int) -> None:
        """Account for `count` ascending offsets from `first` to `last`, both included.

        Raises:
            DataLoss: Offsets are missing.
        """
        assert first >= self._next, f"offset {first} of {self._span.queue} came again"
        assert last < self._span.end, f"offset {last} of {self._span.queue} lies past the range"
        if not self._is_filtered and last + 1 - self._next != count:
            self.missing(self._next, last + 1, last + 1 - self._next - count)
        self._next = last + 1

    def passed(self, next_offset: int) -> None:
        """Account for the broker's word that nothing (more) matches below `next_offset`.

        Raises:
            DataLoss: There was no filter to leave anything out.
        """
        end = min(next_offset, self._span.end)
        if not self._is_filtered and end > self._next:
            self.missing(self._next, end, end - self._next)
        self._next = max(self._next, end)

    def skipped(self, next_offset: int) -> None:
        """Go on at `next_offset`, after `missing` let that pass."""
        self._next = max(self._next, min(next_offset, self._span.end))

    def outside(self, nearest: int) -> None:
        """Account for the broker's word that the next offset is not there, and which is nearest.

        Raises:
            DataLoss: Unless failOnDataLoss is off.
        """
        start = self._next
        end = min(nearest, self._span.end) if nearest > start else self._span.end
        self.missing(start, end, end - start)
        self._next = end

    def missing(self, start: int, end: int, count: int) -> None:
        """Say that `count` offsets of [start, end) are gone.

        Raises:
            DataLoss: Unless failOnDataLoss is off.
        """
        what = f"{count} of the offsets [{start}, {end}) of {self._span.queue} are gone"
        if self._fails:
            raise DataLoss(
                f"{what}: retention took them, or the topic was created anew; "
                "set failOnDataLoss=false to go on without them"
            )
        _log.warning("data loss: %s", what)
