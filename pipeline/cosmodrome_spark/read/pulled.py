"""Replies of PullMessage, decoded by the column.

PullMessageResponse{ 1 status | 2 message | 3 next_offset }
Message{ 1 topic, 2 user_properties…, 3 system_properties, 4 body }
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_server.columnar.envelope import Messages, to_batch
from cosmodrome_server.columnar.protobuf import Buffer, Ints, walk
from cosmodrome_server.columnar.slices import SliceColumn
from cosmodrome_spark.errors import DataLoss
from cosmodrome_spark.offsets import MessageQueue
from cosmodrome_spark.options import ReadQuery
from cosmodrome_spark.read.unpack import columns_to_ask

_MESSAGE_TAG = 0x12
_STORE_TIMESTAMP, _QUEUE_OFFSET = 9, 14


@dataclass(frozen=True, slots=True)
class Pulled:
    """The messages of one reply, still encoded.

    Attributes:
        frames: One encoded `PullMessageResponse` for each message.
        offsets: Their queue offsets, ascending.
    """

    frames: list[memoryview]
    offsets: Ints

    @property
    def rows(self) -> int:
        """How many messages."""
        return len(self.frames)

    @property
    def size(self) -> int:
        """How many bytes."""
        return sum(map(len, self.frames))

    @property
    def first(self) -> int:
        """The lowest offset."""
        return int(self.offsets[0])

    @property
    def last(self) -> int:
        """The highest offset."""
        return int(self.offsets[-1])


def split_replies(
    frames: Sequence[memoryview], start: int, end: int
) -> tuple[Pulled, pb.Status, int]:
    """Sort the frames of one reply into messages, status and next offset.

    Args:
        frames: Encoded `PullMessageResponse`s, in order.
        start: The offset that was asked for, which is the next one if the server says none.
        end: Messages at or above are dropped: a server may give more than was asked for.
    """
    status, next_offset = pb.Status(code=pb.OK), start
    messages = []
    for frame in frames:
        if frame and frame[0] == _MESSAGE_TAG:
            messages.append(frame)
            continue
        reply = verbs.PullMessageResponse.FromString(bytes(frame))
        if reply.HasField("status"):
            status = reply.status
        elif reply.HasField("next_offset"):
            next_offset = reply.next_offset
    if not messages:
        return Pulled([], np.empty(0, np.int64)), status, next_offset
    count = len(messages)
    if next_offset == start + count:
        # Dense, by the server's word; `message_batch` checks it against the messages.
        offsets = np.arange(start, start + count, dtype=np.int64)
    else:
        offsets = queue_offsets(messages)
    if int(offsets[-1]) >= end:
        keep = int(np.searchsorted(offsets, end))
        messages, offsets = messages[:keep], offsets[:keep]
    return (
        Pulled(messages, offsets),
        status,
        max(next_offset, int(offsets[-1]) + 1 if len(offsets) else start),
    )


def queue_offsets(frames: Sequence[memoryview]) -> Ints:
    """The queue offset that each message carries; raises MalformedMessage."""
    buffer, starts, ends = _joined(frames)
    return _varints(buffer, _parts(buffer, starts, ends)[1], _QUEUE_OFFSET)


def _varints(buffer: Buffer, system: SliceColumn, number: int) -> Ints:
    values = np.zeros(system.rows, np.int64)
    for found in walk(buffer, system.starts, system.ends):
        if found.number == number:
            values[found.rows] = found.values
    return values


def message_batch(
    pulled: Sequence[Pulled], queue: MessageQueue, query: ReadQuery
) -> pa.RecordBatch:
    """One Arrow batch of the messages of several replies, bodies as they came."""
    frames = [frame for each in pulled for frame in each.frames]
    offsets = np.concatenate([each.offsets for each in pulled])
    buffer, starts, ends = _joined(frames)
    message, system, body = _parts(buffer, starts, ends)
    if (_varints(buffer, system, _QUEUE_OFFSET) != offsets).any():
        raise DataLoss(f"{queue} gave other offsets than it said")
    messages = Messages(
        buffer=buffer,
        system=(system.starts, system.ends),
        user=(message.starts, message.ends),
        body=(np.maximum(body.starts, 0), np.maximum(body.ends, 0)),
        queue_offsets=offsets,
        store_timestamps_ms=_store_timestamps_ms(buffer, system),
        constants={
            "topic": queue.topic,
            "broker": queue.broker,
            "queue_id": queue.queue_id,
            "store_host": _store_host(frames[0]),
        },
    )
    return to_batch(messages, columns_to_ask(query), verify_digest=query.verify_digest)


def _joined(frames: Sequence[memoryview]) -> tuple[Buffer, Ints, Ints]:
    ends = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return Buffer(b"".join(frames)), starts, ends


def _parts(
    buffer: Buffer, starts: Ints, ends: Ints
) -> tuple[SliceColumn, SliceColumn, SliceColumn]:
    """The message, its system properties and its body, by row."""
    rows = len(starts)
    message, system, body = SliceColumn(rows), SliceColumn(rows), SliceColumn(rows)
    for found in walk(buffer, starts, ends):
        if found.number == 2:
            message.put(found)
    for found in walk(buffer, message.starts, message.ends):
        if found.number == 3:
            system.put(found)
        elif found.number == 4:
            body.put(found)
    return message, system, body


def _store_timestamps_ms(buffer: Buffer, system: SliceColumn) -> Ints:
    stored = SliceColumn(system.rows)
    for found in walk(buffer, system.starts, system.ends):
        if found.number == _STORE_TIMESTAMP:
            stored.put(found)
    times = np.zeros(system.rows, np.int64)
    for found in walk(buffer, stored.starts, stored.ends):
        if found.number == 1:
            times[found.rows] += found.values * 1000
        elif found.number == 2:
            times[found.rows] += found.values // 1_000_000
    return times


def _store_host(frame: memoryview) -> str:
    """The broker's address: the same for all messages of a queue."""
    return verbs.PullMessageResponse.FromString(bytes(frame)).message.system_properties.store_host
