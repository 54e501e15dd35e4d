"""Half messages: stored, invisible, waiting for their producer's word.

    half ──commit────────▶ visible: the same bytes get a place in their queue
      │ ──rollback──────▶ dropped
      │ ──unanswered────▶ checked at first_check (or the message's own immunity), then every
      │                   interval; after checks_max checks
      ├─▶ parked ────────── no longer checked, listed for operators, resolvable as before
      └──expire_ms──────▶ dropped

A resolution is remembered for a while, so that the same one again is fine and the other one
is refused. A half message sent again under its id takes the place of the first, which can
no longer be named by anybody; another one under an id that is open is refused (broker.send_verbs).

    EndTransaction    at u64 · position u64 · store time u64 · topic u32 · queue u32 ·
                      queue offset u64 · tag hash u32 · is commit u8 · id
    TransactionCheck  at u64 · time u64 · topic u32 · id
    Expire            at u64 · time u64 · topic u32 · id

    row  'X' + topic u32 + id → the fields of `HalfMessage`
    row  'Y' + topic u32 + id → resolved at u64 · is commit u8

Times are the log's. A check that nobody could be asked is no record and is not counted: the
schedule goes on from it in memory, and from the last record after a restart.

Source: protocol.md 1.12, 9 and their DO marks, F.12.
"""

import heapq
from collections.abc import Iterator
from struct import Struct
from typing import ClassVar

import msgspec

from cosmodrome_server.core.machine import NEVER_MS, DirtyRow, Row
from cosmodrome_server.errors import BadRequest, InvalidTransactionId
from cosmodrome_server.model.log import END_TRANSACTION_HEAD, MessageRecord, RecordKind

_TOUCH = Struct("<QQI")
_HALF = Struct("<QQQIII")
_RESOLVED = Struct("<Q?")
_KEY = Struct(">cI")
HALF_PREFIX = b"X"
RESOLVED_PREFIX = b"Y"
# Entries that stand for nothing any more, beside one for each that does, before they are cleared.
_STALE_MIN = 1_024
# How many are forgotten, at most, where one is added.
_FORGOTTEN_PER_END = 64

Key = tuple[int, str]


class TransactionRules(msgspec.Struct, frozen=True):
    """When half messages are asked about and given up.

    Attributes:
        check_interval_ms: Between two checks of one message.
        checks_max: Checks before it is parked.
        expire_ms: Age at which it is dropped.
        remember_ms: How long a resolution is remembered.
        remembered_max: How many are.
    """

    check_interval_ms: int = 30_000
    checks_max: int = 15
    expire_ms: int = 72 * 3_600_000
    remember_ms: int = 600_000
    remembered_max: int = 100_000


class HalfMessage(msgspec.Struct):
    """A half message that is not resolved.

    Attributes:
        key: (topic id, transaction id).
        position: Where the log has it.
        stored_ms: When it was stored.
        check_ms: When it is first asked about, or was last asked about.
        queue_id: Where it will go.
        tag_hash: As in the message's record.
        checks: How often a producer was asked.
    """

    key: Key
    position: int
    stored_ms: int
    check_ms: int
    queue_id: int
    tag_hash: int
    checks: int = 0


class EndTransaction(msgspec.Struct):
    """A half message is resolved; of a rollback only the key counts."""

    kind: ClassVar[RecordKind] = RecordKind.END_TRANSACTION

    at_ms: int
    position: int
    store_timestamp_ms: int
    topic_id: int
    queue_id: int
    queue_offset: int
    tag_hash: int
    is_commit: bool
    transaction_id: str

    def encode(self) -> bytes:
        """The payload."""
        head = END_TRANSACTION_HEAD.pack(
            self.at_ms,
            self.position,
            self.store_timestamp_ms,
            self.topic_id,
            self.queue_id,
            self.queue_offset,
            self.tag_hash,
            self.is_commit,
        )
        return head + self.transaction_id.encode()

    @staticmethod
    def decode(payload: bytes) -> "EndTransaction":
        """The inverse of `encode`."""
        name = payload[END_TRANSACTION_HEAD.size :].decode()
        fields = (*END_TRANSACTION_HEAD.unpack_from(payload), name)
        return EndTransaction(*fields)


class TransactionTouch(msgspec.Struct):
    """A half message was asked about, or its time is over, as `kind` says."""

    kind: RecordKind
    at_ms: int
    now_ms: int
    topic_id: int
    transaction_id: str

    def encode(self) -> bytes:
        """The payload."""
        head = _TOUCH.pack(self.at_ms, self.now_ms, self.topic_id)
        return head + self.transaction_id.encode()

    @staticmethod
    def decode(kind: RecordKind, payload: bytes) -> "TransactionTouch":
        """The inverse of `encode`."""
        at_ms, now_ms, topic_id = _TOUCH.unpack_from(payload)
        return TransactionTouch(kind, at_ms, now_ms, topic_id, payload[_TOUCH.size :].decode())


class Transactions:
    """The half messages of a shard. See `core.machine` for the contract of its methods."""

    row_prefixes = (HALF_PREFIX, RESOLVED_PREFIX)

    def __init__(self, rules: TransactionRules | None = None) -> None:
        self._rules = rules or TransactionRules()
        # In the order of their positions.
        self._open: dict[Key, HalfMessage] = {}
        # Topic id → how many of them, and how many of those are parked.
        self._counts: dict[int, list[int]] = {}
        self._resolved: dict[Key, tuple[int, bool]] = {}
        # Topics of which one was ever remembered.
        self._resolving: set[int] = set()
        # (when, key) of each that is remembered, smallest first, and of some that are not any more.
        self._oldest: list[tuple[int, Key]] = []
        # (when to look, position, key); entries of what changed since are passed over.
        self._schedule: list[tuple[int, int, Key]] = []
        self._dirty: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[HalfMessage]:
        """Half messages, oldest first."""
        return iter(self._open.values())

    def counts(self) -> dict[int, tuple[int, int]]:
        """Topic id → how many of its half messages are asked about, and how many are parked."""
        return {topic: (both - parked, parked) for topic, (both, parked) in self._counts.items()}

    def find(self, key: Key) -> HalfMessage | None:
        """The open half message of a key; None if there is none."""
        return self._open.get(key)

    def is_parked(self, half: HalfMessage) -> bool:
        """Whether nobody is asked about it any more."""
        return half.checks >= self._rules.checks_max

    def has_expired(self, half: HalfMessage, now_ms: int) -> bool:
        """Whether its producer's word comes too late."""
        return half.stored_ms + self._rules.expire_ms <= now_ms

    def oldest_position(self) -> int | None:
        """Where the first open half message lies: retention must leave it. None for none."""
        return next((half.position for half in self._open.values()), None)

    # Planning

    def plan_end(self, key: Key, *, is_commit: bool) -> HalfMessage | None:
        """The half message to resolve; None if it was resolved just so before.

        Raises:
            InvalidTransactionId: Unknown, or expired.
            BadRequest: It was resolved the other way.
        """
        half = self._open.get(key)
        if half is not None:
            return half
        known = self._resolved.get(key)
        if known is None:
            raise InvalidTransactionId(f"transaction {key[1]} is unknown or has expired")
        if known[1] is not is_commit:
            was = "committed" if known[1] else "rolled back"
            raise BadRequest(f"transaction {key[1]} was {was} already")
        return None

    def take_due(self, now_ms: int, count_max: int) -> tuple[list[HalfMessage], list[HalfMessage]]:
        """Take what is due out of the schedule: (to be asked about, to be dropped).

        What then is no record of being asked about, or dropped, comes back by `postpone`.
        """
        to_ask: list[HalfMessage] = []
        to_drop: list[HalfMessage] = []
        schedule = self._schedule
        while schedule and schedule[0][0] <= now_ms and len(to_ask) + len(to_drop) < count_max:
            _, position, key = heapq.heappop(schedule)
            half = self._open.get(key)
            if half is None or half.position != position:
                continue
            if self.has_expired(half, now_ms):
                to_drop.append(half)
            else:
                to_ask.append(half)
        return to_ask, to_drop

    def postpone(self, half: HalfMessage, now_ms: int) -> None:
        """Nobody could be asked, or it cannot be dropped now: look again after the interval."""
        self._watch(half, now_ms + self._rules.check_interval_ms)

    def next_deadline_ms(self) -> int:
        """When `take_due` may next have something, on the log's clock."""
        return self._schedule[0][0] if self._schedule else NEVER_MS

    # Applying

    def apply_half(self, transaction_id: str, record: MessageRecord, position: int) -> None:
        """A half message was stored."""
        key = (record.topic_id, transaction_id)
        self._close(key)
        self._resolved.pop(key, None)
        half = HalfMessage(
            key,
            position,
            record.store_timestamp_ms,
            record.due_ms,
            record.queue_id,
            record.tag_hash,
        )
        self._add(half)
        self._watch(half, half.check_ms)
        self._soil(key)

    def _add(self, half: HalfMessage) -> None:
        self._open[half.key] = half
        counts = self._counts.setdefault(half.key[0], [0, 0])
        counts[0] += 1
        counts[1] += self.is_parked(half)

    def _close(self, key: Key) -> None:
        half = self._open.pop(key, None)
        if half is not None:
            counts = self._counts[key[0]]
            counts[0] -= 1
            counts[1] -= self.is_parked(half)
            if not counts[0]:
                del self._counts[key[0]]

    def apply_end(self, record: EndTransaction) -> None:
        """A half message was resolved; whoever applies a commit gives it its place."""
        key = (record.topic_id, record.transaction_id)
        self._close(key)
        self._resolved.pop(key, None)
        self._resolving.add(record.topic_id)
        self._resolved[key] = (record.store_timestamp_ms, record.is_commit)
        heapq.heappush(self._oldest, (record.store_timestamp_ms, key))
        self._soil(key)
        self._forget(record.store_timestamp_ms)

    def apply_touch(self, record: TransactionTouch) -> None:
        """A half message was asked about, or dropped."""
        key = (record.topic_id, record.transaction_id)
        self._soil(key)
        if record.kind is RecordKind.EXPIRE:
            self._close(key)
            return
        half = self._open.get(key)
        if half is not None:
            half.checks += 1
            self._counts[key[0]][1] += half.checks == self._rules.checks_max
            half.check_ms = record.now_ms
            self._watch(half, self._following_ms(half))

    def drop_topic(self, topic_id: int) -> None:
        """Forget what belongs to a deleted topic."""
        if topic_id in self._counts:
            for half in [key for key in self._open if key[0] == topic_id]:
                self._close(half)
                self._soil(half)
        if topic_id not in self._resolving:
            return  # Lite topics are deleted by the thousand.
        self._resolving.discard(topic_id)
        for resolved in [key for key in self._resolved if key[0] == topic_id]:
            del self._resolved[resolved]
            self._soil(resolved)

    def _following_ms(self, half: HalfMessage) -> int:
        expiry_ms = half.stored_ms + self._rules.expire_ms
        if self.is_parked(half):
            return expiry_ms
        if half.checks == 0:
            return min(expiry_ms, half.check_ms)
        return min(expiry_ms, half.check_ms + self._rules.check_interval_ms)

    def _watch(self, half: HalfMessage, when_ms: int) -> None:
        heapq.heappush(self._schedule, (when_ms, half.position, half.key))

    def _forget(self, now_ms: int) -> None:
        """Forget resolutions of long ago, of one time the smallest key first.

        The log's time stands still while the wall clock is behind it: then thousands are of one,
        and old all at once.
        """
        if len(self._oldest) > 2 * len(self._resolved) + _STALE_MIN:
            self._order_resolved()
        forgotten = 0
        while self._oldest and forgotten < _FORGOTTEN_PER_END:
            resolved_ms, key = self._oldest[0]
            known = self._resolved.get(key)
            # Else it stands for nothing, which a start does not know and must not count.
            if known is not None and known[0] == resolved_ms:
                is_old = resolved_ms + self._rules.remember_ms <= now_ms
                if not is_old and len(self._resolved) <= self._rules.remembered_max:
                    return
                del self._resolved[key]
                self._soil(key)
                forgotten += 1
            heapq.heappop(self._oldest)

    def _order_resolved(self) -> None:
        # Sorted, it is a heap.
        self._oldest = sorted((when_ms, key) for key, (when_ms, _) in self._resolved.items())

    # Rows

    def _soil(self, key: Key) -> None:
        self._dirty[HALF_PREFIX + _row_key(key)] = None
        self._dirty[RESOLVED_PREFIX + _row_key(key)] = None

    def rows(self) -> Iterator[Row]:
        """All half messages and remembered resolutions."""
        for key, half in self._open.items():
            yield HALF_PREFIX + _row_key(key), _half_value(half)
        for key, resolved in self._resolved.items():
            yield RESOLVED_PREFIX + _row_key(key), _RESOLVED.pack(*resolved)

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """What changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        for row_key in dirty:
            key = _key_of(row_key)
            if row_key[:1] == HALF_PREFIX:
                half = self._open.get(key)
                yield row_key, None if half is None else _half_value(half)
            else:
                resolved = self._resolved.get(key)
                yield row_key, None if resolved is None else _RESOLVED.pack(*resolved)

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one row; `restored` follows the last."""
        if key[:1] == RESOLVED_PREFIX:
            name = _key_of(key)
            self._resolved[name] = _RESOLVED.unpack(value)
            self._resolving.add(name[0])
            return
        position, stored_ms, check_ms, queue_id, tag_hash, checks = _HALF.unpack(value)
        half = HalfMessage(_key_of(key), position, stored_ms, check_ms, queue_id, tag_hash, checks)
        self._add(half)
        self._watch(half, self._following_ms(half))

    def restored(self) -> None:
        """All rows are back: put both in their order."""
        self._open = dict(sorted(self._open.items(), key=lambda item: item[1].position))
        self._order_resolved()


def _row_key(key: Key) -> bytes:
    return key[0].to_bytes(4, "big") + key[1].encode()


def _key_of(row_key: bytes) -> Key:
    return int(_KEY.unpack_from(row_key)[1]), row_key[_KEY.size :].decode()


def _half_value(half: HalfMessage) -> bytes:
    return _HALF.pack(
        half.position,
        half.stored_ms,
        half.check_ms,
        half.queue_id,
        half.tag_hash,
        half.checks,
    )
