"""The bulk road: a Cosmodrome server sends Arrow, and only the wanted columns of it.

Each answer is one batch of Arrow IPC and the offset to ask for next; the next question is
asked before the batch is handed on. What is not answered is asked for again.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import BrokerBusy, BrokerRefused, BrokerUnreachable
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Closing, Density
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.patience import Patience
from cosmodrome_spark.read.unpack import columns_to_ask, schema_of, unpacked
from cosmodrome_spark.read.wire import Started, Wire, check

BULK = "/cosmodrome.v1.Bulk/"
READ_QUEUE = f"{BULK}ReadQueue"
ATTEMPTS = 8
# A broker that says it is busy lives, and a backfill is what has time.
BUSY_MS_MAX = 600_000


class BulkReader(Closing):
    """A `TopicReader` over ReadQueue."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.wire = Wire(connection, is_known=True)

    def close(self) -> None:
        """Let the connection go."""
        self.wire.close()

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; see `TopicReader.read`."""
        assert not query.verify_digest, "checked when the options were read"
        density = Density(span, query)
        # The offset is asked for too: it is how gaps are seen.
        asked = columns_to_ask(query)
        asked = asked if "queue_offset" in asked else (*asked, "queue_offset")
        schema = schema_of(asked)
        started = self._start(span, query, asked, span.start)
        while True:
            try:
                answer = self._answer(
                    started, lambda: self._start(span, query, asked, density.next_offset), span
                )
            except BrokerRefused as error:
                if error.code != pb.ILLEGAL_OFFSET:
                    raise
                # Retention was here after the range was planned, or the topic is another one.
                density.outside(self._lowest(span))
                if density.is_done:
                    return
                started = self._start(span, query, asked, density.next_offset)
                continue
            if answer.resume <= density.next_offset:
                density.missing(density.next_offset, span.end, span.end - density.next_offset)
                return
            resume = answer.resume
            if resume < span.end:
                # The server reads on while this batch goes its way.
                started = self._start(span, query, asked, resume)
            if answer.ipc:
                batch = pa.ipc.read_record_batch(pa.py_buffer(answer.ipc), schema)
                offsets = batch.column(asked.index("queue_offset"))
                density.saw(offsets[0].as_py(), offsets[-1].as_py(), batch.num_rows)
                yield from unpacked(batch, query)
            density.passed(resume)
            density.skipped(resume)
            if resume >= span.end:
                return

    def _start(
        self, span: QueueRange, query: ReadQuery, columns: tuple[str, ...], start: int
    ) -> Started:
        kind = pb.SQL if query.filter_type == "SQL" else pb.TAG
        request = bulk.ReadQueueRequest(
            topic=span.queue.topic,
            queue_id=span.queue.queue_id,
            start=start,
            end=span.end,
            columns=columns,
            filter=pb.FilterExpression(type=kind, expression=query.filter),
            batch_bytes=query.batch_bytes,
        )
        return self.wire.start(READ_QUEUE, request.SerializeToString())

    def _lowest(self, span: QueueRange) -> int:
        """The lowest offset that the queue has now."""
        with WireCluster(self._connection) as cluster:
            return cluster.bounds([span.queue])[span.queue].min_offset

    def _answer(
        self, started: Started, again: Callable[[], Started], span: QueueRange
    ) -> bulk.ReadQueueResponse:
        """Take an answer, asking again where there was none; raises as `_finish`."""
        attempts, patience = 0, Patience(BUSY_MS_MAX)
        while True:
            try:
                return self._finish(started, span)
            except BrokerBusy:
                if not patience.wait():
                    raise
            except BrokerUnreachable:
                attempts += 1
                if attempts >= ATTEMPTS:
                    raise
            started = again()

    def _finish(self, started: Started, span: QueueRange) -> bulk.ReadQueueResponse:
        """Take an answer.

        Raises:
            BrokerBusy: It is to be asked again later.
            BrokerUnreachable: None.
            BrokerRefused, TopicNotFound, UnsupportedByServer: The server said no.
        """
        answer = bulk.ReadQueueResponse.FromString(self.wire.finish(started))
        check(answer.status, f"reading {span.queue}")
        return answer
