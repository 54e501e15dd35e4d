"""Delayed messages: taking them back, listing them, and putting them into their queues.

    every turn   fire what is due · load the hour that comes · copy what only the log has
                 into its buckets · delete the buckets of hours that are over

Reading and writing buckets is the business of a thread (`broker.bucket_worker`); the
messages that fire come from memory or the log, or were fetched from their bucket before.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice

import msgspec

from cosmodrome_server.broker.bucket_worker import BucketWorker
from cosmodrome_server.broker.transaction_verbs import TransactionVerbs
from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.timer import HOUR_MS, LOAD_AHEAD_MS, Fire, hour_of
from cosmodrome_server.core.timer_slot import TimerEntry
from cosmodrome_server.errors import (
    BadRequest,
    CorruptFrame,
    MessageNotFound,
    OverloadedError,
    ReadFailed,
    StoreFull,
    Unsupported,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import DelayedStore, Loaded, MessageRecord, MessageState
from cosmodrome_server.model.queries import Scheduled
from cosmodrome_server.model.recall_handle import RecallHandle

# What one turn of the loop fires, and takes into memory of a loaded hour.
_FIRED_PER_TURN = 128
# … as long as they are small: no more of large ones may wait for the disk at a time, or be fetched.
_FIRED_BYTES_PER_TURN = 8 << 20
_LOADED_PER_TURN = 1_024
# Copying waits until so much time has passed or so many messages wait: most messages with
# a short delay fire from the log and are never copied.
_COPY_EVERY_MS = 60_000
_COPY_AT = 8_192
# … or, where a full disk had no space for copies, for this long.
_COPY_RETRY_MS = 10_000
# … as many together as a slow disk needs, which syncs each bucket once for all of them; they
# are read from the log some in each turn.
_COPIED_PER_JOB = 16_384
_COPIED_BYTES_PER_JOB = 8 << 20
_READ_PER_TURN = 128
# With no space for what is due, it waits this long before the next try.
_RETRY_MS = 1_000
# Messages one listing looks at.
_LISTED_MAX = 4_096
_ALL = 1 << 62


class _Copies(msgspec.Struct):
    """Delayed messages on their way from the log to their buckets.

    Attributes:
        messages: Due time, position and message of each that still waits.
        count: How many were looked at.
        position: Of the last of them.
        size_bytes: Of the messages.
    """

    messages: list[tuple[int, int, MessageRecord]] = msgspec.field(default_factory=list)
    count: int = 0
    position: int = 0
    size_bytes: int = 0


class TimerVerbs(TransactionVerbs):
    """Implements `Messaging.recall` and `Operations.scheduled`."""

    def _open_timers(self, buckets: DelayedStore) -> None:
        self._buckets = buckets
        self._worker = BucketWorker()
        self._fetched: dict[int, MessageRecord | None] = {}
        self._loading: Iterator[TimerEntry] | None = None
        self._load_hour = 0
        self._load_copied = 0
        self._copy_ms = self._clock.monotonic_ms() + _COPY_EVERY_MS
        # Of the monotonic clock: the log's time stands still behind a clock that was set back.
        self._fire_resume_ms = self._load_resume_ms = self._copy_resume_ms = 0
        self._fire_bytes = _FIRED_BYTES_PER_TURN
        self._swept_hour = 0
        # (frame, hour): once that frame is on the disk, buckets of earlier hours may go.
        self._to_sweep: tuple[int, int] | None = None
        self._copies = _Copies()
        # (frame, first position) of delayed messages that were not durable when last asked.
        self._delayed_frames: deque[tuple[int, int]] = deque()

    @property
    def is_copying(self) -> bool:
        """Whether delayed messages are on their way between log, memory and buckets."""
        return self._worker.is_busy or self._loading is not None or self._copies.count > 0

    def oldest_needed_position(self) -> int:
        """The first message that retention must leave in the log, whatever its age."""
        return self._shard.oldest_needed_position()

    def recall(self, topic: str, recall_handle: str) -> str:
        """See `Messaging`."""
        if not self._settings.is_recall_enabled:
            raise Unsupported("recalling messages is switched off (delays.recall)")
        state = self._topic(topic)
        handle = self._recall_handles.open(recall_handle)
        if handle.topic_id != state.topic_id:
            raise BadRequest(f"recall handle is not of topic {topic}")
        lease_ms = self._advance()
        record = self._shard.timers.plan_recall(handle.due_ms, handle.position, lease_ms)
        self._check_is_named(handle)
        self._put_other(record)
        return handle.message_id

    def _check_is_named(self, handle: RecallHandle) -> None:
        """Where a power cut took a message, another one may lie: not what the handle is about.

        Raises:
            MessageNotFound: The message is not there any more.
            ReadFailed: Nobody can say now.
        """
        lost = MessageNotFound("the message was lost in a power cut, before it was on the disk")
        if handle.position >= self._log.end_position:
            raise lost  # Another one will lie there.
        try:
            record = self._log.read_position(handle.position)
        except (CorruptFrame, MessageNotFound):
            return  # Its bucket has it, or it is damaged: it will not be taken for another.
        if (
            record.state is not MessageState.DELAYED
            or (record.topic_id, record.due_ms) != (handle.topic_id, handle.due_ms)
            or wire.message_id(record.system) != handle.message_id
        ):
            raise lost

    def scheduled(self, topic: str, max_messages: int) -> list[Scheduled]:
        """See `Operations`. Hours that are not in memory are read while everybody waits."""
        wanted = self._shard.catalogue.topic(topic).topic_id if topic else 0
        found: list[Scheduled] = []
        for entry in islice(self._soonest_first(), _LISTED_MAX):
            if len(found) >= max_messages:
                break
            one = self._scheduled(entry, wanted)
            if one is not None:
                found.append(one)
        return found

    def _soonest_first(self) -> Iterator[TimerEntry]:
        timers = self._shard.timers
        for hour in timers.hours:
            if timers.is_loaded(hour):
                yield from timers.in_order(hour)
                continue
            entries = {entry.position: entry for entry in _entries(self._buckets.load(hour))}
            for due_ms, position in timers.uncopied:
                if hour_of(due_ms) == hour:
                    entries[position] = TimerEntry(due_ms, position, 0)
            for entry in sorted(entries.values()):
                if timers.is_pending(entry.due_ms, entry.position):
                    yield entry

    def _scheduled(self, entry: TimerEntry, wanted: int) -> Scheduled | None:
        record = self._delayed_at(entry.due_ms, entry.position)
        if record is None:
            record = _fetch(self._buckets, [entry]).records.get(entry.position)
        topic = None if record is None else self._shard.catalogue.topics_by_id.get(record.topic_id)
        if record is None or topic is None or wanted not in {0, record.topic_id}:
            return None
        name = wire.message_id(record.system)
        handle = RecallHandle(record.topic_id, entry.due_ms, entry.position, name)
        return Scheduled(topic.topic.name, name, entry.due_ms, self._recall_handles.seal(handle))

    def _delayed_at(self, due_ms: int, position: int) -> MessageRecord | None:
        """The delayed message in the log; None if it is not there, or another one is.

        Copies in buckets are always synced, the log with `interval` and `os` is not: a power cut
        may leave the copy and give the position to another message.
        """
        try:
            record = self._log.read_position(position)
        except (CorruptFrame, MessageNotFound):
            return None
        is_it = record.state is MessageState.DELAYED and record.due_ms == due_ms
        return record if is_it else None

    def _note_delayed(self, position: int) -> None:
        lsn = self._log.open_lsn
        if not self._delayed_frames or self._delayed_frames[-1][0] < lsn:
            self._delayed_frames.append((lsn, position))

    def _durable_before(self) -> int:
        """Delayed messages below this position are durable."""
        frames = self._delayed_frames
        while frames and frames[0][0] <= self._log.durable_lsn:
            frames.popleft()
        return frames[0][1] if frames else _ALL

    # Later

    def _do_later(self) -> None:
        super()._do_later()
        timers = self._shard.timers
        now_ms = self._now()
        if timers.hours or timers.uncopied:
            self._load(now_ms)
            self._fire(now_ms)
            self._copy()
        self._sweep(now_ms)

    def _fire(self, now_ms: int) -> None:
        if self._clock.monotonic_ms() < self._fire_resume_ms:
            return
        room, bytes_left = _FIRED_PER_TURN, self._fire_bytes
        while room > 0 and bytes_left > 0:
            plan = self._shard.timers.plan_fire(now_ms, room, self._durable_before())
            if plan is None:
                return
            try:
                looked_at, records = self._due_records(plan.entries, bytes_left)
                if looked_at < len(plan.entries):
                    if not looked_at:
                        return  # Being fetched.
                    plan = plan.first(looked_at)
                self._put_messages(list(self._placed(records, now_ms)))
            except (StoreFull, OverloadedError, ReadFailed) as error:
                self._fire_resume_ms = self._clock.monotonic_ms() + _RETRY_MS
                if isinstance(error, OverloadedError):
                    # Beside what others have staged there is room for less.
                    self._fire_bytes = max(1, self._fire_bytes // 8)
                return
            self._fire_bytes = min(_FIRED_BYTES_PER_TURN, 2 * self._fire_bytes)
            self._counters.lost_messages += plan.count - len(records)
            self._put_other(Fire(self._advance(), plan.slot, plan.position, plan.count))
            room -= max(1, len(plan.entries))
            bytes_left -= sum(map(_size_of, records))
        self._commit.touch()

    def _due_records(
        self, entries: list[TimerEntry], bytes_max: int
    ) -> tuple[int, list[MessageRecord]]:
        """What the first entries stand for, and how many those are.

        As many as are at hand and not larger than `bytes_max` together, but for the last. The
        others are fetched from their bucket meanwhile, if need be.
        """
        records: list[MessageRecord] = []
        for at, entry in enumerate(entries):
            if bytes_max <= 0:
                return at, records
            record = self._delayed_at(entry.due_ms, entry.position)
            if record is None and entry.position in self._fetched:
                record = self._fetched[entry.position]
            elif record is None:
                self._fetch_due(entries[at:])
                return at, records
            if record is not None:
                records.append(record)
                bytes_max -= _size_of(record)
        self._fetched.clear()
        return len(entries), records

    def _fetch_due(self, entries: list[TimerEntry]) -> None:
        if not self._worker.is_busy:
            known = [entry for entry in entries if entry.position not in self._fetched]
            job = partial(_fetch, self._buckets, known, _FIRED_BYTES_PER_TURN)
            self._worker.run(job, self._take_fetched)

    def _take_fetched(self, fetched: "_Fetched") -> None:
        self._fetched = fetched.records
        if fetched.is_refused:
            self._fire_resume_ms = self._clock.monotonic_ms() + _RETRY_MS
        self._commit.touch()

    def _placed(self, records: list[MessageRecord], now_ms: int) -> Iterator[MessageRecord]:
        ends: dict[tuple[int, int], int] = {}
        for record in records:
            topic = self._shard.catalogue.topics_by_id.get(record.topic_id)
            if topic is None:
                continue
            name = topic.topic.name
            self._counters.fired[name] = self._counters.fired.get(name, 0) + 1
            queue = (record.topic_id, record.queue_id)
            queue_offset = ends.get(queue, topic.next_offsets[record.queue_id])
            ends[queue] = queue_offset + 1
            yield MessageRecord(
                MessageState.VISIBLE,
                *queue,
                queue_offset,
                record.tag_hash,
                now_ms,
                0,
                record.system,
                record.user,
                record.body,
            )

    def _load(self, now_ms: int) -> None:
        timers = self._shard.timers
        if self._loading is not None:
            self._load_some(self._loading)
            return
        hour = timers.hour_to_load(now_ms)
        run_ms = self._clock.monotonic_ms()
        if hour is None or self._worker.is_busy or run_ms < self._load_resume_ms:
            return
        self._load_hour = hour
        self._load_copied = timers.begin_load(hour)
        if self._buckets.is_kept:
            # Before the answer: a load that fails is tried again after a while.
            self._load_resume_ms = run_ms + _RETRY_MS
            self._worker.run(partial(self._buckets.load, hour), self._take_loaded)
        else:
            self._loading = iter(())
            self._load_some(self._loading)

    def _load_some(self, loading: Iterator[TimerEntry]) -> None:
        timers, hour = self._shard.timers, self._load_hour
        if timers.add_uncopied(hour, _LOADED_PER_TURN):
            entries = list(islice(loading, _LOADED_PER_TURN))
            timers.add_loaded(entries, self._load_copied)
            if len(entries) < _LOADED_PER_TURN:
                self._loading = None
                timers.end_load(hour)
        self._commit.touch()

    def _take_loaded(self, loaded: Loaded) -> None:
        self._load_resume_ms = 0
        self._loading = _entries(loaded)
        self._commit.touch()

    def _copy(self) -> None:
        waiting = len(self._shard.timers.uncopied)
        if not waiting or self._worker.is_busy:
            return
        if not (self._buckets.is_kept and self._worker.is_writable):
            return
        now_ms = self._clock.monotonic_ms()
        is_due = waiting >= _COPY_AT or now_ms >= self._copy_ms or self._copies.count
        if not is_due or now_ms < self._copy_resume_ms:
            return
        try:
            are_all = self._read_some(self._copies)
        except ReadFailed:
            self._copies = _Copies()
            self._copy_resume_ms = now_ms + _RETRY_MS
            return
        if not are_all:
            self._commit.touch()
        elif self._copies.count:
            copies, self._copies = self._copies, _Copies()
            # Before the answer: what finds no space is tried again after a while.
            self._copy_resume_ms = now_ms + _COPY_RETRY_MS
            job = partial(_append, self._buckets, copies.messages)
            self._worker.run(job, partial(self._copied, copies.position), is_write=True)

    def _read_some(self, copies: _Copies) -> bool:
        """Read what one turn has time for; whether that is all there is, or enough for a job."""
        timers, before = self._shard.timers, self._durable_before()
        some = timers.uncopied.first(_READ_PER_TURN, copies.count)
        read = 0
        for due_ms, position in some:
            if position >= before or copies.size_bytes >= _COPIED_BYTES_PER_JOB:
                break
            is_pending = timers.is_pending(due_ms, position)
            record = self._delayed_at(due_ms, position) if is_pending else None
            if record is not None:
                copies.messages.append((due_ms, position, record))
                copies.size_bytes += _size_of(record)
            copies.position = position
            read += 1
        copies.count += read
        return (
            read < _READ_PER_TURN
            or copies.count >= _COPIED_PER_JOB
            or copies.size_bytes >= _COPIED_BYTES_PER_JOB
        )

    def _copied(self, position: int, result: None) -> None:
        del result
        self._copy_resume_ms = 0
        self._shard.timers.copied(position)
        if not self._shard.timers.uncopied:
            self._copy_ms = self._clock.monotonic_ms() + _COPY_EVERY_MS
        self._commit.touch()

    def _sweep(self, now_ms: int) -> None:
        """Delete the buckets of hours whose last message fired an hour ago or earlier."""
        hour = hour_of(now_ms)
        if hour != self._swept_hour and self._to_sweep is None and self._buckets.is_kept:
            self._swept_hour = hour
            lsn = self._log.open_lsn if self._log.has_staged else self._log.open_lsn - 1
            self._to_sweep = lsn, min([hour - 1, *self._shard.timers.hours])
        if self._to_sweep is None or self._worker.is_busy:
            return
        lsn, first = self._to_sweep
        if lsn <= self._log.synced_lsn:
            # Else a crash can take these fires back: then the bucket is all there is.
            self._to_sweep = None
            self._worker.run(partial(_delete_before, self._buckets, first), self._swept)

    def _swept(self, result: None) -> None:
        del result
        self._commit.touch()

    def _next_deadline_ms(self) -> int:
        timers = self._shard.timers
        first = super()._next_deadline_ms()
        due_ms = timers.next_deadline_ms()
        if due_ms != NEVER_MS:
            is_loaded = not timers.hours or timers.is_loaded(timers.hours[0])
            resume_ms = self._fire_resume_ms if is_loaded else self._load_resume_ms
            first = min(first, max(self._look_again(self._until(due_ms)), resume_ms))
        unloaded = [hour for hour in timers.hours[:2] if not timers.is_loaded(hour)]
        if unloaded and not (self._worker.is_busy or self._loading):
            load_ms = self._look_again(self._until(unloaded[0] * HOUR_MS - LOAD_AHEAD_MS))
            first = min(first, max(load_ms, self._load_resume_ms))
        if self._buckets.is_kept and self._worker.is_writable and timers.uncopied:
            first = min(first, max(self._copy_ms, self._copy_resume_ms))
        # Never sooner than a millisecond: what cannot be done yet must not keep the loop busy.
        return max(first, self._clock.monotonic_ms() + 1)


def _entries(loaded: Loaded) -> Iterator[TimerEntry]:
    return map(TimerEntry, loaded.due_ms, loaded.positions, loaded.starts)


class _Fetched(msgspec.Struct):
    """Messages read from their buckets.

    Attributes:
        records: By position; None for a damaged one.
        is_refused: Whether the disk refused one of them now.
    """

    records: dict[int, MessageRecord | None] = msgspec.field(default_factory=dict)
    is_refused: bool = False


def _fetch(
    buckets: DelayedStore, entries: list[TimerEntry], bytes_max: int = _FIRED_BYTES_PER_TURN
) -> _Fetched:
    """In the thread: messages whose segments retention took, the first of them in any case.

    What the disk refuses now is left out. An entry may not know that its message was copied:
    retention acts on what is on the disk, and a start after a crash on the rows of the last
    checkpoint.
    """
    fetched = _Fetched()
    starts: dict[int, dict[int, int]] = {}
    for entry in entries:
        if bytes_max <= 0:
            break
        hour = hour_of(entry.due_ms)
        record: MessageRecord | None = None
        try:
            if not entry.start and hour not in starts:
                starts[hour] = _starts(buckets, hour)
            start = entry.start or starts[hour].get(entry.position, 0)
            record = buckets.read(hour, start) if start else None
        except CorruptFrame:
            pass
        except ReadFailed:
            fetched.is_refused = True
            continue
        fetched.records[entry.position] = record
        bytes_max -= _size_of(record) if record is not None else 0
    return fetched


def _size_of(record: MessageRecord) -> int:
    return len(record.body) + len(record.system) + len(record.user)


def _starts(buckets: DelayedStore, hour: int) -> dict[int, int]:
    """Where the bucket of an hour has which position."""
    loaded = buckets.load(hour)
    return dict(zip(loaded.positions, loaded.starts, strict=True))


def _append(buckets: DelayedStore, delayed: list[tuple[int, int, MessageRecord]]) -> None:
    buckets.append(delayed)
    buckets.sync()


def _delete_before(buckets: DelayedStore, hour: int) -> None:
    for passed in buckets.hours():
        if passed < hour:
            buckets.delete(passed)
