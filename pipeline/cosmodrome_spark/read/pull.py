"""The PullMessage road: the standard verb, on any server that has it.

    request  (queue, offset, batch size, filter)
    reply    status · message · message · … · next_offset

Where nothing is filtered the log is dense, so the offset of the next request is known
before the reply is there: several requests are under way at a time. Replies are decoded
together, by the column, once enough bytes are there for a batch.
"""

from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_spark.errors import BrokerBusy, BrokerUnreachable
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Closing, Density
from cosmodrome_spark.read.cluster import on_wire
from cosmodrome_spark.read.h2_client import H2Client
from cosmodrome_spark.read.patience import Patience
from cosmodrome_spark.read.pulled import Pulled, message_batch, split_replies
from cosmodrome_spark.read.unpack import unpacked
from cosmodrome_spark.read.wire import MESSAGING, check

PULL_MESSAGE = f"{MESSAGING}PullMessage"
# What one request asks for. The reference caps at 32; a server that gives fewer tells us
# by doing so, and we go on with what it gives.
BATCH_SIZE = 1024
IN_FLIGHT_MAX = 8
ROWS_PER_BATCH_MAX = 16_384


class PullReader(Closing):
    """A `TopicReader` over PullMessage."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = H2Client(connection)
        self._batch_size = BATCH_SIZE

    def close(self) -> None:
        """Let the connection go."""
        self._client.close()

    def read(self, span: QueueRange, query: ReadQuery) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; see `TopicReader.read`."""
        density = Density(span, query)
        held: list[Pulled] = []
        held_bytes = held_rows = 0
        for pulled in self._pull_all(span, query, density):
            held.append(pulled)
            held_bytes += pulled.size
            held_rows += pulled.rows
            if held_bytes >= query.batch_bytes or held_rows >= ROWS_PER_BATCH_MAX:
                yield from unpacked(message_batch(held, span.queue, query), query)
                held, held_bytes, held_rows = [], 0, 0
        if held_rows:
            yield from unpacked(message_batch(held, span.queue, query), query)

    def _pull_all(self, span: QueueRange, query: ReadQuery, density: Density) -> Iterator[Pulled]:
        """Pull until the range is covered; a broker that restarts, or is busy, is waited for."""
        patience, reached = Patience(self._connection.timeout_ms), span.start
        while not density.is_done:
            try:
                yield from self._pull_ahead(span, query, density)
            except (BrokerUnreachable, BrokerBusy):
                if density.next_offset > reached:
                    patience, reached = Patience(self._connection.timeout_ms), density.next_offset
                if not patience.wait():
                    raise
                self._client.close()
                self._client = H2Client(self._connection)

    def _pull_ahead(self, span: QueueRange, query: ReadQuery, density: Density) -> Iterator[Pulled]:
        """Pull until the range is covered, several requests ahead where that is safe."""
        under_way: deque[tuple[int, int]] = deque()  # (offset asked for, stream)
        ahead = density.next_offset
        while not density.is_done:
            depth = 1 if query.is_filtered else IN_FLIGHT_MAX
            while len(under_way) < depth and ahead < span.end:
                size = min(self._batch_size, span.end - ahead)
                stream = self._client.start(PULL_MESSAGE, self._request(span, query, ahead, size))
                under_way.append((ahead, stream))
                ahead += size
            offset, stream = under_way.popleft()
            pulled = self._take(stream, span, density)
            if pulled.rows:
                yield pulled
            if density.next_offset != (under_way[0][0] if under_way else ahead):
                # Fewer than asked for, or offsets passed over: what is under way began at
                # the wrong place. Learn the server's cap and begin again from here.
                for _, wrong in under_way:
                    self._client.discard(wrong)
                under_way.clear()
                gained = density.next_offset - offset
                if not query.is_filtered and pulled.rows == gained:
                    self._batch_size = max(1, min(self._batch_size, gained))
                ahead = density.next_offset

    def _take(self, stream: int, span: QueueRange, density: Density) -> Pulled:
        frames = self._client.finish(stream)
        before = density.next_offset
        pulled, status, next_offset = split_replies(frames, before, span.end)
        what = f"pulling {span.queue} at {before}"
        if status.code == pb.ILLEGAL_OFFSET and before != next_offset:
            density.outside(next_offset)
            return pulled
        check(status, what, good=(pb.MESSAGE_NOT_FOUND,))
        if pulled.rows:
            density.saw(pulled.first, pulled.last, pulled.rows)
        if next_offset > density.next_offset:
            density.passed(next_offset)
        if density.next_offset == before:
            density.missing(before, span.end, span.end - before)
            density.skipped(span.end)
        return pulled

    @staticmethod
    def _request(span: QueueRange, query: ReadQuery, offset: int, size: int) -> bytes:
        kind = pb.SQL if query.filter_type == "SQL" else pb.TAG
        return verbs.PullMessageRequest(
            group=pb.Resource(name=query.group),
            message_queue=on_wire(span.queue),
            offset=offset,
            batch_size=size,
            filter_expression=pb.FilterExpression(type=kind, expression=query.filter),
            long_polling_timeout=Duration(seconds=0),
        ).SerializeToString()
