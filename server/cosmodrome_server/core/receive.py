"""Which messages the next receive of a group gets, and under which leases.

A receive is served from all queues of the topic, beginning where the last one ended, so
that none starves and none waits for a client to name it. New messages and redeliveries
share a batch in halves; what one does not need the other gets, and the odd place goes to
each in turn. New messages that the filter passes over need none of it.

    queue    … done │ ready: 3, 7 │ cursor ▶ 9 10 11 12 … end
    batch of 4      └─ Pop [3, 7] ┘└ Pop [9, 10], cursor ▶ 11

Messages that do not match the filter, were taken by retention or are damaged are passed
over and settled: a pop says what it delivers, and the rest of its range is done.
Ordered groups: `core.message_group`.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.core.progress import Place, Progress
from cosmodrome_server.core.records import LEASE_SPAN, Ack, Pop
from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.model.log import MessageRecord, QueueReader

# Messages one receive finds delivered too often; the next receive finds the rest.
_EXHAUSTED_MAX = 1_024
# Offsets one receive looks at before it lets others have a turn of the loop.
SCAN_OFFSETS_MAX = 65_536
_SCAN_STEP = 4_096
# What reading a message that does not match counts as: so many offsets, and one for so many bytes.
_READ_OFFSETS = 16
_OFFSET_BYTES = 128
# Bodies one receive takes, give or take a message: a batch of large ones would hold the loop, and
# memory, for as long as it is large.
BYTES_MAX = 16 << 20
# As far apart as messages may lie in the log to be read together without a look at their sizes.
_TOGETHER_BYTES = 4 << 20

Found = list[tuple[int, MessageRecord]]


class Demand(msgspec.Struct, gc=False):
    """What a receive may take.

    Attributes:
        lease_ms: The lease clock.
        first_lease_id: The first of as many lease ids as are needed.
        room: How many messages, at least 1.
        invisible_ms: How long they are hidden.
        attempts_max: Deliveries a message gets.
        client_id: Who renews; "" for nobody.
        attempt_id: The client's name for the receive, "" for none.
        is_ready_last: New messages go before redeliveries, not beside them.
    """

    lease_ms: int
    first_lease_id: int
    room: int
    invisible_ms: int
    attempts_max: int
    client_id: str = ""
    attempt_id: str = ""
    is_ready_last: bool = False


class ReceivePlan(msgspec.Struct, gc=False):
    """What a receive does.

    Attributes:
        takes: Records to stage and apply, in order, each with its messages and their queue
            offsets, ascending.
        settled: Messages that waited for redelivery and cannot be delivered any more.
        exhausted: Messages that were delivered as often as they may be.
        lost: Messages passed over because they are damaged.
        is_more: Whether the same receive again may find more at once.
    """

    takes: list[tuple[Pop, Found]] = msgspec.field(default_factory=list)
    settled: list[Ack] = msgspec.field(default_factory=list)
    exhausted: list[tuple[Place, int]] = msgspec.field(default_factory=list)
    lost: int = 0
    is_more: bool = False


class ReceivePlanner:
    """Plans one receive; made for it and thrown away."""

    __slots__ = (
        "_bytes_left",
        "_demand",
        "_looked",
        "_matcher",
        "_reader",
        "_room",
        "_scan_left",
        "plan",
    )

    def __init__(self, demand: Demand, matcher: Matcher, reader: QueueReader) -> None:
        self.plan = ReceivePlan()
        self._demand = demand
        self._matcher = matcher
        self._reader = reader
        self._room = demand.room
        self._bytes_left = BYTES_MAX
        self._scan_left = SCAN_OFFSETS_MAX
        # Queue id → how many of its ready messages were looked at.
        self._looked: dict[int, int] = {}

    def receive(
        self, consumption: Consumption, order: Iterable[int], ends: Sequence[int]
    ) -> ReceivePlan:
        """Take from the queues in `order`; `ends` are those of the queues by id."""
        if consumption.is_waited_on:
            self._take_both(consumption, list(order), ends)
        else:
            awake = consumption.awake
            for queue_id in order:
                progress = awake.get(queue_id)
                cursor = consumption.cursor(queue_id) if progress is None else progress.cursor
                if ends[queue_id] > cursor:
                    self._take_fresh(progress or consumption.at(queue_id), ends[queue_id])
                    if not self._room:
                        break
        if not self._room or self._bytes_left <= 0:
            self.plan.is_more = True
        return self.plan

    def _take_both(
        self, consumption: Consumption, order: Sequence[int], ends: Sequence[int]
    ) -> None:
        """Take redeliveries beside new messages, or behind them."""
        fresh = 0
        behind = []
        for queue_id in order:
            progress = consumption.awake.get(queue_id)
            cursor = consumption.cursor(queue_id) if progress is None else progress.cursor
            if ends[queue_id] > cursor:
                fresh += ends[queue_id] - cursor
                behind.append(queue_id)
        if not self._demand.is_ready_last:
            half = (self._room + consumption.is_ready_first) // 2
            kept = BYTES_MAX // 2 if fresh else 0
            self._bytes_left -= kept
            self._take_ready(consumption, order, max(half, self._room - fresh))
            # Large redeliveries leave new messages their half of the bytes, too.
            self._bytes_left = max(0, self._bytes_left) + kept
        for queue_id in behind:
            if not self._room:
                break
            self._take_fresh(consumption.at(queue_id), ends[queue_id])
        if self._room:
            self._take_ready(consumption, order, self._room)

    def _take_ready(self, consumption: Consumption, order: Sequence[int], quota: int) -> None:
        for queue_id in order:
            progress = consumption.awake.get(queue_id)
            if progress is not None and progress.ready:
                quota = self._take_ready_of(progress, quota)

    def _take_ready_of(self, progress: Progress, quota: int) -> int:
        """Take up to so many of one queue; return how many are left to be taken."""
        queue_id = progress.place[2]
        run: Found = []
        run_attempt = 0
        looked = self._looked.get(queue_id, 0)
        for queue_offset, attempt in islice(progress.ready.items(), looked, None):
            if not quota or self._bytes_left <= 0 or len(self.plan.exhausted) >= _EXHAUSTED_MAX:
                break
            looked += 1
            if attempt > self._demand.attempts_max:
                self.plan.exhausted.append((progress.place, queue_offset))
                continue
            record = self._read_ready(progress, queue_offset)
            if record is None:
                if self._scan_left > 0:
                    continue
                # The filter of those who consume has changed, and all of these are to be settled.
                self.plan.is_more = True
                break
            if run and not (
                attempt == run_attempt and run[-1][0] < queue_offset < run[0][0] + LEASE_SPAN
            ):
                self.pop_ready(progress, run, run_attempt)
                run = []
            run.append((queue_offset, record))
            run_attempt = attempt
            quota -= 1
            self._bytes_left -= len(record.body)
        self._looked[queue_id] = looked
        if run:
            self.pop_ready(progress, run, run_attempt)
        return quota

    def _read_ready(self, progress: Progress, queue_offset: int) -> MessageRecord | None:
        record = self.read(progress, queue_offset)
        if record is not None and self._matcher.matches(record):
            return record
        self._passed_over(record)
        self.settle(progress, queue_offset)
        return None

    def _passed_over(self, record: MessageRecord | None) -> None:
        size = 0 if record is None else len(record.body)
        self._scan_left -= _READ_OFFSETS + size // _OFFSET_BYTES

    def settle(self, progress: Progress, queue_offset: int) -> None:
        """Plan to give up a message that waits for redelivery."""
        self.plan.settled.append(Ack(self._demand.lease_ms, *progress.place, 0, queue_offset))

    def read(self, progress: Progress, queue_offset: int) -> MessageRecord | None:
        """Read a message; None if it is damaged, which counts as lost, or gone by retention."""
        _, topic_id, queue_id = progress.place
        try:
            return self._reader.read(topic_id, queue_id, queue_offset)
        except CorruptFrame:
            self.plan.lost += 1
            return None
        except MessageNotFound:
            return None

    def pop_ready(self, progress: Progress, run: Found, attempt: int) -> None:
        """Plan to deliver a run of ready messages again, under one lease."""
        base = run[0][0]
        self._pop(progress, (base, 0, _mask_of(base, run)), run, attempt=attempt)

    def _take_fresh(self, progress: Progress, end: int) -> None:
        if self._bytes_left <= 0:
            return
        _, topic_id, queue_id = progress.place
        start = progress.cursor
        first = self._reader.min_offset(topic_id, queue_id)
        if first > start:
            start = min(first, end)
            self._pop(progress, (progress.cursor, start - progress.cursor, 0), [])
        if start == end:
            return
        if not self._matcher.is_everything:
            self._take_matching(progress, start, end)
            return
        if self._room == 1:
            at = start + 1
            record = self.read(progress, start)
            found = [] if record is None else [(start, record)]
            self._pop(progress, (start, 1, len(found)), found)
        else:
            at = self._take_all(progress, start, min(end, start + min(self._room, LEASE_SPAN)))
        if self._room and at < end:
            # Some were damaged: what lies behind them is there now.
            self.plan.is_more = True

    def _take_all(self, progress: Progress, start: int, end: int) -> int:
        """Take all of [start, end) that can be read; return up to where."""
        found: Found = []
        is_whole = True
        at = start
        while at < end and self._bytes_left > 0:
            stop = self._together(progress, at, end)
            records = self._read_run(progress, at, stop)
            for queue_offset, record in enumerate(records, at):
                if record is None:
                    is_whole = False
                else:
                    found.append((queue_offset, record))
                    self._bytes_left -= len(record.body)
            at = stop
        mask = (1 << at - start) - 1 if is_whole else _mask_of(start, found)
        self._pop(progress, (start, at - start, mask), found)
        return at

    def _together(self, progress: Progress, start: int, end: int) -> int:
        """Up to where messages that begin at `start` are read at once."""
        while end - start > 1 and self._apart(progress, start, end - 1) > _TOGETHER_BYTES:
            end = start + (end - start) // 2
        return end

    def _apart(self, progress: Progress, first: int, last: int) -> int:
        """How many bytes of the log lie between two messages; more than enough if one is lost."""
        _, topic_id, queue_id = progress.place
        position = self._reader.position
        try:
            return position(topic_id, queue_id, last) - position(topic_id, queue_id, first)
        except (CorruptFrame, MessageNotFound):
            return _TOGETHER_BYTES + 1

    def _read_run(self, progress: Progress, start: int, end: int) -> Sequence[MessageRecord | None]:
        _, topic_id, queue_id = progress.place
        records = self._reader.read_many(topic_id, queue_id, start, end)
        if all(records):
            return records
        # Once more alone: that says why, and counts it; or it can be read now.
        return [record or self.read(progress, at) for at, record in enumerate(records, start)]

    def _take_matching(self, progress: Progress, start: int, end: int) -> None:
        found: Found = []
        at = start
        while at < end and len(found) < self._room and min(self._scan_left, self._bytes_left) > 0:
            stop = min(end, at + _SCAN_STEP)
            at = self._scan(progress, (at, stop), found)
        self.plan.is_more = self.plan.is_more or at < end
        self._pop_spread(progress, (start, at), found)

    def _scan(self, progress: Progress, span: tuple[int, int], found: Found) -> int:
        """Look at [start, end); return where it stopped because the batch is full."""
        _, topic_id, queue_id = progress.place
        start, end = span
        hashes = self._matcher.tag_hashes
        candidates: Sequence[int] = range(start, end)
        if hashes is not None:
            stored = self._reader.tag_hashes(topic_id, queue_id, start, end)
            candidates = [start + i for i, tag_hash in enumerate(stored) if tag_hash in hashes]
        for queue_offset in candidates:
            record = self.read(progress, queue_offset)
            if record is not None and self._matcher.matches(record):
                found.append((queue_offset, record))
                self._bytes_left -= len(record.body)
                if len(found) == self._room or self._bytes_left <= 0:
                    self._scan_left -= queue_offset + 1 - start
                    return queue_offset + 1
            elif record is not None:
                self._passed_over(record)
                if self._scan_left <= 0:
                    return queue_offset + 1
        self._scan_left -= end - start
        return end

    def _pop_spread(self, progress: Progress, span: tuple[int, int], found: Found) -> None:
        """Cover [start, end) with pops whose messages lie within LEASE_SPAN of each other."""
        start, end = span
        at = 0
        while at < len(found):
            first = found[at][0]
            if first - start >= LEASE_SPAN:
                self._pop(progress, (start, first - start, 0), [])
                start = first
            run = [pair for pair in found[at : at + LEASE_SPAN] if pair[0] < start + LEASE_SPAN]
            at += len(run)
            stop = found[at][0] if at < len(found) else end
            self._pop(progress, (start, stop - start, _mask_of(start, run)), run)
            start = stop
        if start < end:
            self._pop(progress, (start, end - start, 0), [])

    def _pop(
        self, progress: Progress, extent: tuple[int, int, int], found: Found, attempt: int = 1
    ) -> None:
        base, count, mask = extent
        group_id, topic_id, queue_id = progress.place
        demand = self._demand
        client_id = demand.client_id
        # All by position: names cost as much as the object.
        pop = Pop(
            demand.lease_ms,
            group_id,
            topic_id,
            queue_id,
            demand.first_lease_id + len(self.plan.takes) if mask else 0,
            base,
            count,
            mask,
            0,
            attempt,
            demand.invisible_ms,
            0,
            client_id != "",
            client_id,
            demand.attempt_id,
        )
        self.take(pop, found)

    def take(self, pop: Pop, found: Found) -> None:
        """Plan a pop."""
        self.plan.takes.append((pop, found))
        self._room -= len(found)


def _mask_of(base: int, run: Found) -> int:
    """Bit i: the message at base + i is one of them."""
    mask = 0
    for queue_offset, _ in run:
        mask |= 1 << (queue_offset - base)
    return mask
