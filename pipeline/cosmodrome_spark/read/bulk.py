"""The bulk road: a Cosmodrome server sends Arrow, and only the wanted columns of it.

The stream is Arrow IPC in pieces: a schema, then batches. A broken stream is asked for
again from the offset that the last piece named.
"""

from collections.abc import Iterator

import pyarrow as pa

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import BrokerUnreachable, InvalidOption
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Closing, Density
from cosmodrome_spark.read.wire import Wire, check
from cosmodrome_spark.schema import arrow_schema

BULK = "/cosmodrome.v1.Bulk/"
ATTEMPTS = 5


class BulkReader(Closing):
    """A `TopicReader` over ReadQueue."""

    def __init__(self, connection: Connection) -> None:
        self.wire = Wire(connection)

    def close(self) -> None:
        """Let the connection go."""
        self.wire.close()

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; see `TopicReader.read`."""
        if query.verify_digest:
            raise InvalidOption("verifyDigest is checked on the roads segments and pull")
        density = Density(span, query)
        attempts = 0
        while not density.is_done:
            before = density.next_offset
            try:
                yield from self._stream(span, query, density)
            except BrokerUnreachable:
                attempts = 1 if density.next_offset > before else attempts + 1
                if attempts >= ATTEMPTS:
                    raise
            else:
                density.passed(span.end)
                density.skipped(span.end)

    def _stream(
        self, span: QueueRange, query: ReadQuery, density: Density
    ) -> Iterator[pa.RecordBatch]:
        """One call; `density` says how far it came when it breaks."""
        # The server is asked for the offset too: it is how gaps are seen.
        columns = query.columns
        asked = columns if "queue_offset" in columns else (*columns, "queue_offset")
        kind = pb.SQL if query.filter_type == "SQL" else pb.TAG
        request = bulk.ReadQueueRequest(
            topic=span.queue.topic,
            queue_id=span.queue.queue_id,
            start=density.next_offset,
            end=span.end,
            columns=asked,
            filter=pb.FilterExpression(type=kind, expression=query.filter),
            batch_bytes=query.batch_bytes,
            keep_encoded_bodies=not query.decode_body,
        )
        schema = arrow_schema(asked)
        for piece in self.wire.stream(f"{BULK}ReadQueue", request.SerializeToString()):
            answer = bulk.ReadQueueResponse.FromString(piece)
            check(answer.status, f"reading {span.queue}")
            if answer.ipc:
                batch = pa.ipc.read_record_batch(pa.py_buffer(answer.ipc), schema)
                offsets = batch.column(
                    len(asked) - 1 if columns is not asked else asked.index("queue_offset")
                )
                density.saw(offsets[0].as_py(), offsets[-1].as_py(), batch.num_rows)
                yield batch.select(list(columns)) if asked is not columns else batch
            if answer.resume > density.next_offset:
                density.passed(answer.resume)
                density.skipped(answer.resume)
