"""Index entries → Arrow bytes. Runs on the reader thread; touches nothing of the loop's.

Messages of a queue lie where they were sent: mostly one run of one segment, and now and
then (delayed messages, the end of a segment) the next run of another.
"""

import itertools
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cosmodrome_server.columnar.envelope import Messages, to_batch
from cosmodrome_server.columnar.protobuf import Buffer, Ints
from cosmodrome_server.columnar.records import gathered, record_lengths
from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.proxy.bulk.plan import Plan
from cosmodrome_server.store.segment import OFFSET_BITS, OFFSET_MASK

Words = NDArray[np.uint64]
_WORDS = 3


def encode(segment: Callable[[int], memoryview], plan: Plan) -> tuple[bytes, int]:
    """The Arrow bytes of a plan's messages, and the offset to go on from.

    Raises:
        MessageNotFound: A segment is gone.
        CorruptFrame, MalformedMessage: What lies there is no message.
    """
    batches = []
    room = plan.batch_bytes
    resume = plan.end
    for run in _runs(segment, plan):
        fitting = _fitting(run, room)
        batch = _batch(run.first(fitting), plan)
        if batch.num_rows:
            batches.append(batch)
            room -= batch.nbytes
        if fitting < len(run.offsets) or room <= 0:
            resume = int(run.offsets[fitting - 1]) + 1
            break
    if not batches:
        return b"", resume
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[0].serialize().to_pybytes(), resume


class _Run(msgspec.Struct, frozen=True):
    """Messages of one queue in one segment, one after the other."""

    buffer: Buffer
    offsets: Ints
    entries: Words

    @property
    def places(self) -> Ints:
        """Where each record begins in the buffer."""
        return (self.entries[:, 0] & np.uint64(OFFSET_MASK)).astype(np.int64)

    def first(self, count: int) -> "_Run":
        """The first `count` of them."""
        return _Run(self.buffer, self.offsets[:count], self.entries[:count])


def _runs(segment: Callable[[int], memoryview], plan: Plan) -> Iterator[_Run]:
    for part in plan.entries:
        entries: Words = np.frombuffer(part.words, np.uint64).reshape(-1, _WORDS)
        offsets = np.arange(part.start, part.start + len(entries), dtype=np.int64)
        stored = entries[:, 0] != 0  # a hole: its message was lost to corruption
        entries, offsets = entries[stored], offsets[stored]
        numbers = entries[:, 0] >> np.uint64(OFFSET_BITS)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in itertools.pairwise(edges):
            if start < end:
                raw = np.frombuffer(segment(int(numbers[start])), np.uint8)
                yield _Run(Buffer.mapped(raw), offsets[start:end], entries[start:end])


def _fitting(run: _Run, room: int) -> int:
    """How many records fit into so many bytes; at least one."""
    sizes = np.cumsum(record_lengths(run.buffer, run.places))
    return max(1, int(np.searchsorted(sizes, room, side="right")))


def _batch(run: _Run, plan: Plan) -> pa.RecordBatch:
    times_ms = run.entries[:, 2].astype(np.int64)
    messages = gathered(run.buffer, run.places, run.offsets, plan.constants, times_ms=times_ms)
    if plan.matcher is not None:
        messages = _matching(messages, run.entries, plan)
    return to_batch(messages, plan.columns)


def _matching(messages: Messages, entries: Words, plan: Plan) -> Messages:
    """The messages that the filter lets pass: by tag hash first, then one by one, exactly."""
    matcher = plan.matcher
    assert matcher is not None
    chosen = _candidates(matcher, entries)  # type: ignore[arg-type]  # a Matcher, see Plan
    raw = messages.buffer.bytes
    kept = []
    for row in chosen.tolist():
        record = MessageRecord(
            MessageState.VISIBLE,
            topic_id=0,
            queue_id=int(plan.constants["queue_id"]),
            queue_offset=int(messages.queue_offsets[row]),
            tag_hash=int(entries[row, 1]),
            store_timestamp_ms=int(entries[row, 2]),
            due_ms=0,
            system=raw[messages.system[0][row] : messages.system[1][row]].tobytes(),
            user=raw[messages.user[0][row] : messages.user[1][row]].tobytes(),
            body=b"",
        )
        if matcher.matches(record):  # type: ignore[attr-defined]  # as above
            kept.append(row)
    return messages.rows(np.array(kept, np.int64))


def _candidates(matcher: Matcher, entries: Words) -> Ints:
    hashes = matcher.tag_hashes
    if hashes is None:
        return np.arange(len(entries), dtype=np.int64)
    wanted = np.array(sorted(hashes), np.uint64)
    return np.flatnonzero(np.isin(entries[:, 1], wanted)).astype(np.int64)
