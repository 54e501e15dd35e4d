"""Delayed messages: stored at once, put into their queue when their time has come.

    stored ──▶ uncopied ──copy──▶ hour bucket on disk ──load──▶ in memory, by slot ──▶ fired
                  │                                                 ▲
                  └────────────── due this hour or the next ────────┘

A slot is a tenth of a second and fires when it is over: never early, and a tenth of a second
late at most. Slots fire in order, and within a slot messages in the order of their log
positions; so the state needs no mark per message, only a frontier: everything up to
(slot, position) has fired. A new message is always beyond it, because its slot is not over.

In memory are 24 bytes a message of this hour and the next; a count per hour; 8 bytes per
recalled message; and what was not copied to a bucket yet. An hour must be loaded before
anything of it, or of a later hour, fires; and when it is over, and memory has nothing of it
left, it is closed by a Fire of its own, whatever the counts say.

    Fire    at u64 · slot u64 · position u64 · count u32      (their copies are in the frame)
    Recall  at u64 · due u64 · position u64

    row 'DF' → frontier: slot u64 · position u64
    row 'DH' + hour u32 → pending i32 · recalled positions u64…
    row 'DU' → copied up to u64 · uncopied: (due u64 · position u64)…

'DU' is about where messages lie, not what will become of them: it differs between a log and
its replay, and is not part of the state's hash.

Source: storage.md 3.5, protocol.md 8 and its DO marks (no rolling, nothing lost when the
broker is down for longer than any wheel).
"""

import heapq
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import takewhile
from struct import Struct
from typing import ClassVar

import msgspec

from cosmodrome_server.core.machine import NEVER_MS, DirtyRow, Row
from cosmodrome_server.core.timer_slot import Slot, TimerEntry
from cosmodrome_server.core.uncopied import Uncopied
from cosmodrome_server.errors import MessageNotFound
from cosmodrome_server.model.log import RecordKind

SLOT_MS = 100
HOUR_MS = 3_600_000
SLOTS_PER_HOUR = HOUR_MS // SLOT_MS
# How long before it begins an hour is loaded.
LOAD_AHEAD_MS = HOUR_MS

_NEVER = NEVER_MS
_POSITION_MAX = (1 << 63) - 1

PREFIX = b"D"
UNCOPIED_KEY = b"DU"
_FRONTIER_KEY = b"DF"
_HOUR_KEY = b"DH"
_PAIR = Struct("<QQ")
_FIRE = Struct("<QQQI")
_RECALL = Struct("<QQQ")
_PENDING = Struct("<i")


class FirePlan(msgspec.Struct):
    """What fires next.

    Attributes:
        entries: What to put into its queue, in order.
        slot: The frontier afterwards: of this slot …
        position: … all up to this position.
        count: How many leave the pending ones of the slot's hour.
    """

    entries: list[TimerEntry]
    slot: int
    position: int
    count: int

    def first(self, count: int) -> "FirePlan":
        """The same of its first entries only, at least one."""
        entries = self.entries[:count]
        return FirePlan(entries, self.slot, entries[-1].position, count)


class Fire(msgspec.Struct):
    """Delayed messages are in their queues, by copies in the same frame; all up to a frontier.

    Attributes:
        slot: The slot of the last.
        position: The position of the last.
        count: How many left the pending ones of that hour.
    """

    kind: ClassVar[RecordKind] = RecordKind.TIMER_FIRE

    at_ms: int
    slot: int
    position: int
    count: int

    def encode(self) -> bytes:
        """The payload."""
        return _FIRE.pack(self.at_ms, self.slot, self.position, self.count)

    @staticmethod
    def decode(payload: bytes) -> "Fire":
        """The inverse of `encode`."""
        return Fire(*_FIRE.unpack(payload))


class Recall(msgspec.Struct):
    """A delayed message will not be delivered."""

    kind: ClassVar[RecordKind] = RecordKind.RECALL

    at_ms: int
    due_ms: int
    position: int

    def encode(self) -> bytes:
        """The payload."""
        return _RECALL.pack(self.at_ms, self.due_ms, self.position)

    @staticmethod
    def decode(payload: bytes) -> "Recall":
        """The inverse of `encode`."""
        return Recall(*_RECALL.unpack(payload))


class _Load(msgspec.Struct):
    """An hour on its way into memory.

    Attributes:
        copied_position: Up to which position it comes from its bucket.
        uncopied: What comes from the log.
    """

    copied_position: int
    uncopied: Uncopied


class _Hour(msgspec.Struct):
    """What is known of an hour that is not over.

    Attributes:
        pending: Messages that wait.
        recalled: Positions that will not fire, ascending.
        oldest_live: The first position in memory of which only the log knows where it lies:
            it came after its hour was loaded, and is not looked for in the bucket.
    """

    pending: int = 0
    recalled: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    oldest_live: int = _POSITION_MAX

    def has_recalled(self, position: int) -> bool:
        at = bisect_left(self.recalled, position)
        return at < len(self.recalled) and self.recalled[at] == position


def slot_of(due_ms: int) -> int:
    """The slot a delivery time lies in."""
    return due_ms // SLOT_MS


def hour_of(due_ms: int) -> int:
    """The hour a delivery time lies in, counted from the epoch."""
    return due_ms // HOUR_MS


class Timers:
    """The delayed messages of a shard. See `core.machine` for the contract of its methods."""

    row_prefix = PREFIX

    def __init__(self) -> None:
        self._frontier = (0, 0)
        self._hours: dict[int, _Hour] = {}
        # Asked several times a turn, and there may be a thousand: never sorted, never searched.
        self._hour_order: list[int] = []
        self._slots: dict[int, Slot] = {}
        self._slot_order: list[int] = []
        self._loaded: set[int] = set()
        self._copied_position = 0
        self.uncopied = Uncopied()
        self._dirty_hours: dict[int, None] = {}
        self._loads: dict[int, _Load] = {}

    def __len__(self) -> int:
        # Below 0 after a damaged frame: its messages were never counted, but fired.
        return sum(max(0, hour.pending) for hour in self._hours.values())

    @property
    def fired_until_ms(self) -> int:
        """The log's time was at least this when something last fired."""
        slot, position = self._frontier
        return (slot + 1) * SLOT_MS if position else 0

    @property
    def hours(self) -> list[int]:
        """The hours in which something is or was due and that are not over, in order."""
        return list(self._hour_order)

    @property
    def _first_hour(self) -> int:
        return self._hour_order[0] if self._hour_order else _NEVER

    @property
    def in_memory(self) -> int:
        """Messages held in slots now."""
        return sum(map(len, self._slots.values()))

    def overdue(self, now_ms: int) -> int:
        """How many are due and have not fired; of this hour those in memory, recalled ones too."""
        hour = hour_of(now_ms)
        over = sum(max(0, known.pending) for at, known in self._hours.items() if at < hour)
        if not self._slot_order or (self._slot_order[0] + 1) * SLOT_MS > now_ms:
            return over
        first, end = hour * SLOTS_PER_HOUR, slot_of(now_ms)
        return over + sum(len(held) for at, held in self._slots.items() if first <= at < end)

    def is_pending(self, due_ms: int, position: int) -> bool:
        """Whether a message that was delayed has neither fired nor been recalled."""
        if (slot_of(due_ms), position) <= self._frontier:
            return False
        known = self._hours.get(hour_of(due_ms))
        return known is not None and not known.has_recalled(position)

    # Planning

    def plan_fire(self, now_ms: int, count_max: int, before: int) -> FirePlan | None:
        """What fires now, of one slot.

        Args:
            now_ms: The log's time.
            count_max: At most so many; the rest by the next call, after this was applied.
            before: Only positions below this one: the others are not durable yet.

        Returns:
            None if nothing is due, or what is due must be loaded first.
        """
        first = self._first_hour
        if self._slot_order and self._slot_order[0] < (first + 1) * SLOTS_PER_HOUR:
            return self._plan_slot(now_ms, count_max, before)
        if first in self._loaded and now_ms >= (first + 1) * HOUR_MS:
            # The hour is over. Pending can be what a damaged bucket lost, never what memory has.
            last = (first + 1) * SLOTS_PER_HOUR - 1
            return FirePlan([], last, _POSITION_MAX, max(0, self._hours[first].pending))
        return None

    def _plan_slot(self, now_ms: int, count_max: int, before: int) -> FirePlan | None:
        slot = self._slot_order[0]
        hour = slot // SLOTS_PER_HOUR
        if (slot + 1) * SLOT_MS > now_ms or hour not in self._loaded:
            return None
        known = self._hours[hour]
        due = self._slots[slot].ahead(count_max)
        due = list(takewhile(lambda entry: entry.position < before, due))
        if not due:
            return None
        entries = [entry for entry in due if not known.has_recalled(entry.position)]
        return FirePlan(entries, slot, due[-1].position, len(entries))

    def plan_recall(self, due_ms: int, position: int, lease_ms: int) -> Recall:
        """Take a message back.

        Raises:
            MessageNotFound: Delivered or recalled already.
        """
        if not self.is_pending(due_ms, position):
            raise MessageNotFound("the message was delivered or recalled already")
        return Recall(lease_ms, due_ms, position)

    def next_deadline_ms(self) -> int:
        """When `plan_fire` or `hour_to_load` may next have something, on the log's clock."""
        first = self._first_hour
        if first == _NEVER:
            return NEVER_MS
        if first not in self._loaded:
            return first * HOUR_MS - LOAD_AHEAD_MS
        if self._slot_order and self._slot_order[0] < (first + 1) * SLOTS_PER_HOUR:
            return (self._slot_order[0] + 1) * SLOT_MS
        return (first + 1) * HOUR_MS

    # Loading and copying: where messages lie, which is not state

    def hour_to_load(self, now_ms: int) -> int | None:
        """The hour that must be loaded next, None for none now."""
        for hour in self._hour_order:
            if hour * HOUR_MS > now_ms + LOAD_AHEAD_MS:
                return None
            if hour not in self._loaded:
                return hour
        return None

    def begin_load(self, hour: int) -> int:
        """Take all messages of an hour that arrive from now on into memory.

        Returns:
            Up to which position messages must be added from the bucket, by `add_loaded`; the
            others by `add_uncopied`.
        """
        load = self._loads.get(hour)
        if load is None:
            load = self._loads[hour] = _Load(self._copied_position, self.uncopied.copy())
        # Else the bucket could not be read, and what was not in it then is taken from the log.
        return load.copied_position

    def add_uncopied(self, hour: int, count: int) -> bool:
        """Look at so many more of the messages no bucket had when the load began.

        Returns:
            Whether that was the last of them.
        """
        load = self._loads[hour]
        some = load.uncopied.first(count)
        for due_ms, position in some:
            if hour_of(due_ms) == hour:
                self._add(TimerEntry(due_ms, position, 0))
        if some:
            load.uncopied.drop_up_to(some[-1][1])
        return not load.uncopied

    def add_loaded(self, entries: Iterable[TimerEntry], copied_position: int) -> None:
        """Add messages of the hour's bucket, in slices of any size.

        Args:
            entries: As the bucket has them.
            copied_position: What `begin_load` returned.
        """
        for entry in entries:
            if entry.position <= copied_position:
                self._add(entry)

    def end_load(self, hour: int) -> None:
        """All of the hour's bucket was added: it may fire."""
        self.add_uncopied(hour, len(self._loads[hour].uncopied))
        del self._loads[hour]
        self._loaded.add(hour)

    def _add(self, entry: TimerEntry) -> None:
        if not self.is_pending(entry.due_ms, entry.position):
            return
        if not entry.start:
            known = self._hours[hour_of(entry.due_ms)]
            known.oldest_live = min(known.oldest_live, entry.position)
        slot = slot_of(entry.due_ms)
        held = self._slots.get(slot)
        if held is None:
            held = self._slots[slot] = Slot()
            heapq.heappush(self._slot_order, slot)
        held.add(entry)

    def copied(self, position: int) -> None:
        """All messages up to a position are in their buckets, durably, or need not be."""
        self._copied_position = max(self._copied_position, position)
        self.uncopied.drop_up_to(position)

    def oldest_position(self) -> int | None:
        """The first message that is read from the log: retention must leave it. None for none."""
        queues = [self.uncopied, *(load.uncopied for load in self._loads.values())]
        oldest = [queue.oldest for queue in queues]
        live = (known.oldest_live for known in self._hours.values())
        first = min([_POSITION_MAX, *live, *(at for at in oldest if at is not None)])
        return None if first == _POSITION_MAX else first

    def in_order(self, hour: int) -> Iterator[TimerEntry]:
        """What is in memory of an hour, soonest first."""
        for slot in sorted(slot for slot in self._slots if slot // SLOTS_PER_HOUR == hour):
            for entry in sorted(self._slots[slot].ahead(len(self._slots[slot]))):
                if self.is_pending(entry.due_ms, entry.position):
                    yield entry

    def is_loaded(self, hour: int) -> bool:
        """Whether all of an hour is in memory."""
        return hour in self._loaded

    # Applying

    def apply_delayed(self, due_ms: int, position: int) -> None:
        """A delayed message was stored."""
        hour = hour_of(due_ms)
        self._hour(hour).pending += 1
        self.uncopied.add(due_ms, position)
        self._dirty_hours[hour] = None
        if hour in self._loaded or hour in self._loads:
            self._add(TimerEntry(due_ms, position, 0))

    def _hour(self, hour: int) -> _Hour:
        known = self._hours.get(hour)
        if known is None:
            known = self._hours[hour] = _Hour()
            insort(self._hour_order, hour)
        return known

    def apply_fire(self, record: Fire) -> None:
        """Messages are in their queues."""
        self._frontier = (record.slot, record.position)
        hour = record.slot // SLOTS_PER_HOUR
        known = self._hours.get(hour)
        if known is not None:
            known.pending -= record.count
            self._dirty_hours[hour] = None
        over = hour + (record.position == _POSITION_MAX)
        while self._first_hour < over:
            self._end_hour(self._hour_order.pop(0))
        self._drop_slots(record)

    def _drop_slots(self, record: Fire) -> None:
        while self._slot_order and self._slot_order[0] <= record.slot:
            slot = self._slot_order[0]
            if slot == record.slot:
                held = self._slots[slot]
                held.take_up_to(record.position)
                if len(held):
                    return
            heapq.heappop(self._slot_order)
            del self._slots[slot]

    def _end_hour(self, hour: int) -> None:
        del self._hours[hour]
        self._loaded.discard(hour)
        self._dirty_hours[hour] = None

    def apply_recall(self, record: Recall) -> None:
        """A message will not fire."""
        hour = hour_of(record.due_ms)
        known = self._hours[hour]
        known.pending -= 1
        insort(known.recalled, record.position)
        self._dirty_hours[hour] = None

    # Rows

    def rows(self) -> Iterator[Row]:
        """All of the state, and where it lies."""
        yield _FRONTIER_KEY, _PAIR.pack(*self._frontier)
        for hour, known in self._hours.items():
            yield _hour_key(hour), _hour_value(known)
        yield UNCOPIED_KEY, self._uncopied_value()

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """What changed since the last call."""
        yield _FRONTIER_KEY, _PAIR.pack(*self._frontier)
        dirty, self._dirty_hours = self._dirty_hours, {}
        for hour in dirty:
            known = self._hours.get(hour)
            yield _hour_key(hour), None if known is None else _hour_value(known)
        yield UNCOPIED_KEY, self._uncopied_value()

    def _uncopied_value(self) -> bytes:
        return self._copied_position.to_bytes(8, "little") + self.uncopied.row()

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one row."""
        if key == _FRONTIER_KEY:
            self._frontier = _PAIR.unpack(value)
        elif key == UNCOPIED_KEY:
            self._copied_position = int.from_bytes(value[:8], "little")
            self.uncopied = Uncopied(value[8:])
        else:
            known = self._hour(int.from_bytes(key[2:], "big"))
            known.pending = _PENDING.unpack_from(value)[0]
            known.recalled.frombytes(value[_PENDING.size :])


def _hour_key(hour: int) -> bytes:
    return _HOUR_KEY + hour.to_bytes(4, "big")


def _hour_value(known: _Hour) -> bytes:
    return _PENDING.pack(known.pending) + known.recalled.tobytes()
