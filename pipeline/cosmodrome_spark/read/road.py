"""Which road a range is read on.

    auto      [start ─── sealed ───)[─── the rest ─── end)
              segments, where the    bulk, or PullMessage on a server
              files can be seen      that has neither

The choice is made where the reading is done, on the executor: whether segment files can be
seen differs from machine to machine. A filter is evaluated by the broker, so a filtered
range goes the bulk road; the segments would send everything.
"""

from collections.abc import Generator, Iterator

import pyarrow as pa

from cosmodrome_spark.errors import UnsupportedByServer
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Closing, Cluster
from cosmodrome_spark.read.bulk import BulkReader
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.pull import PullReader
from cosmodrome_spark.read.segments import SegmentReader

# Below this the question costs more than the answer saves.
ROWS_WORTH_A_MANIFEST = 10_000


def open_cluster(connection: Connection) -> Cluster:
    """What the driver asks."""
    return WireCluster(connection)


def read_ranges(
    connection: Connection, spans: tuple[QueueRange, ...], query: ReadQuery
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of some ranges, one range after the other, on the best road.

    Raises:
        UnsupportedByServer: `query.read_mode` names a road that this server lacks.
        DataLoss, BrokerRefused, BrokerUnreachable: See `TopicReader.read`.
    """
    with _Roads(connection) as roads:
        for span in spans:
            yield from roads.read(span, query)


class _Roads(Closing):
    """All roads of one task; each is opened when it is first taken."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._segments: SegmentReader | None = None
        self._bulk: BulkReader | None = None
        self._pull: PullReader | None = None
        self._has_bulk = True

    def close(self) -> None:
        """Let all connections go."""
        for road in (self._segments, self._bulk, self._pull):
            if road is not None:
                road.close()

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield one range on the road that the query asks for."""
        match query.read_mode:
            case "segments":
                yield from self._by_segments().read(span, query)
            case "bulk":
                yield from self._by_bulk().read(span, query)
            case "pull":
                yield from self._by_pull().read(span, query)
            case _:
                yield from self._read_auto(span, query)

    def _read_auto(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        rest = span
        if self._has_bulk and not query.is_filtered and len(span) >= ROWS_WORTH_A_MANIFEST:
            manifest = None
            try:
                manifest = self._by_segments().manifest(span)
            except UnsupportedByServer:
                self._has_bulk = False
            if manifest is not None:
                sealed_end = min(span.end, manifest.sealed_end)
                sealed = QueueRange(span.queue, span.start, sealed_end)
                yield from self._by_segments().read_manifest(manifest, sealed, query)
                rest = QueueRange(span.queue, sealed_end, span.end)
        if not len(rest):
            return
        if self._has_bulk and not query.verify_digest:
            try:
                # Refused at the first question or never: nothing was given yet.
                yield from self._by_bulk().read(rest, query)
            except UnsupportedByServer:
                self._has_bulk = False
            else:
                return
        yield from self._by_pull().read(rest, query)

    def _by_segments(self) -> SegmentReader:
        self._segments = self._segments or SegmentReader(self._connection)
        return self._segments

    def _by_bulk(self) -> BulkReader:
        self._bulk = self._bulk or BulkReader(self._connection)
        return self._bulk

    def _by_pull(self) -> PullReader:
        self._pull = self._pull or PullReader(self._connection)
        return self._pull
