"""Resolving half messages, asking about them, giving them up."""

from cosmodrome_server.broker.offset_verbs import OffsetVerbs
from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.transaction import EndTransaction, HalfMessage, TransactionTouch
from cosmodrome_server.errors import (
    CorruptFrame,
    InvalidTransactionId,
    MessageNotFound,
    ReadFailed,
    StoreFull,
)
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.queries import OpenTransaction

# Half messages looked after in one turn of the loop; the rest in the next.
_CHECKED_PER_TURN = 64
# … as long as they are small: each is read and shown to a producer.
_SHOWN_BYTES_PER_TURN = 8 << 20
# The longest sleep while something waits for a time of the wall clock.
_LOOK_AGAIN_MS = 1_000


class TransactionVerbs(OffsetVerbs):
    """Implements transactions of `broker.interface.Messaging` and `Operations`."""

    def end_transaction(
        self, topic: str, transaction_id: str, *, commit: bool, from_check: bool
    ) -> None:
        """See `Messaging`."""
        state = self._shard.catalogue.topics.get(topic)
        if state is None:
            raise InvalidTransactionId(
                f"transaction {transaction_id} is unknown: topic {topic} does not exist"
            )
        lease_ms = self._advance()
        key = (state.topic_id, transaction_id)
        del from_check  # both sources count alike, at any time until it expires
        half = self._shard.transactions.plan_end(key, is_commit=commit)
        if half is None:
            return
        now_ms = self._now()
        record = EndTransaction(
            lease_ms,
            half.position,
            now_ms,
            state.topic_id,
            half.queue_id,
            state.next_offsets[half.queue_id],
            half.tag_hash,
            commit,
            transaction_id,
        )
        self._put_other(record)
        self._counters.resolved(topic, now_ms - half.stored_ms, is_commit=commit)

    def transactions(self, topic: str, max_messages: int) -> list[OpenTransaction]:
        """See `Operations`."""
        topics = self._shard.catalogue.topics_by_id
        found = []
        for half in self._shard.transactions:
            name = topics[half.key[0]].topic.name
            if topic in {"", name}:
                is_parked = self._shard.transactions.is_parked(half)
                found.append(
                    OpenTransaction(name, half.key[1], half.stored_ms, half.checks, is_parked)
                )
                if len(found) >= max_messages:
                    break
        return found

    def _do_later(self) -> None:
        super()._do_later()
        self._check_transactions()

    def _check_transactions(self) -> None:
        transactions = self._shard.transactions
        if transactions.next_deadline_ms() == NEVER_MS:
            return
        now_ms, bytes_left = self._now(), _SHOWN_BYTES_PER_TURN
        for _ in range(_CHECKED_PER_TURN):
            to_ask, to_drop = transactions.take_due(now_ms, 1)
            if not (to_ask or to_drop):
                return
            for half in to_ask:
                message = self._shown(half)
                bytes_left -= 0 if message is None else len(message.body)
                is_asked = message and self._events.check_transaction(message, half.key[1])
                if not is_asked or not self._touch(RecordKind.TRANSACTION_CHECK, half):
                    transactions.postpone(half, now_ms)
            for half in to_drop:
                is_over = transactions.has_expired(half, self._believed.of(now_ms))
                if not is_over or not self._touch(RecordKind.EXPIRE, half):
                    transactions.postpone(half, now_ms)
            if bytes_left <= 0:
                break
        self._commit.touch()

    def _touch(self, kind: RecordKind, half: HalfMessage) -> bool:
        """Note that somebody was asked, or that the time is over; False without space for it."""
        try:
            self._put_other(TransactionTouch(kind, self._shard.lease_ms, self._now(), *half.key))
        except StoreFull:
            return False
        return True

    def _shown(self, half: HalfMessage) -> StoredMessage | None:
        """What a producer is asked about; None if it cannot be read now."""
        try:
            record = self._log.read_position(half.position)
        except (CorruptFrame, MessageNotFound, ReadFailed):
            return None
        return StoredMessage(
            self._shard.catalogue.topics_by_id[half.key[0]].topic.name,
            record.queue_id,
            0,
            record.store_timestamp_ms,
            record.system,
            record.user,
            record.body,
        )

    def _next_deadline_ms(self) -> int:
        due_ms = self._until(self._shard.transactions.next_deadline_ms())
        return min(super()._next_deadline_ms(), self._look_again(due_ms))

    def _look_again(self, due_ms: int) -> int:
        """A deadline that hangs on the wall clock, which may jump while the broker sleeps."""
        if due_ms == NEVER_MS:
            return NEVER_MS
        return min(due_ms, self._clock.monotonic_ms() + _LOOK_AGAIN_MS)
