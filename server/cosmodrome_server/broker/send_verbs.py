"""The verbs of producers."""

from bisect import bisect_left
from collections.abc import Sequence

from cosmodrome_server.broker.catalogue_verbs import CatalogueVerbs
from cosmodrome_server.broker.statistics import SIZE_BOUNDS
from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.hashing import java_hash
from cosmodrome_server.core.send import ANY_QUEUE, check_acceptance, plan_send
from cosmodrome_server.errors import BadRequest, CorruptFrame, MessageNotFound, OverloadedError
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.message import MessageType, NewMessage, SendReceipt
from cosmodrome_server.model.recall_handle import RecallHandle, RecallHandles

# Looking a member up in its enum takes longer than what is done with it.
_DELAYED = MessageState.DELAYED
_TRANSACTION, _DELAY = MessageType.TRANSACTION, MessageType.DELAY


class SendVerbs(CatalogueVerbs):
    """Implements the producers' part of `broker.interface.Messaging`."""

    _recall_handles: RecallHandles

    def send(
        self, topic: str, messages: Sequence[NewMessage], queue_id: int = ANY_QUEUE
    ) -> list[SendReceipt]:
        """See `Messaging`."""
        state = self._topic(topic)
        check_acceptance(state, messages)
        self._check_bounds(state, messages)
        records = self._plan_send(state, messages, queue_id)
        positions = self._put_messages(records)
        self._count_sent(topic, messages)
        # Of a batch some may be due already.
        if _DELAYED in [record.state for record in records]:
            return self._recallable(topic, messages, records, positions)
        return [
            SendReceipt(message.message_id, record.queue_offset, "")
            for message, record in zip(messages, records, strict=True)
        ]

    def _plan_send(
        self, state: TopicState, messages: Sequence[NewMessage], queue_id: int
    ) -> list[MessageRecord]:
        first_check_ms = self._settings.transaction_first_check_ms
        return plan_send(state, messages, self._now(), first_check_ms, queue_id)

    def _recallable(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        records: Sequence[MessageRecord],
        positions: Sequence[int],
    ) -> list[SendReceipt]:
        """Receipts of messages some of which can be taken back."""
        receipts = []
        for message, record, position in zip(messages, records, positions, strict=True):
            handle = ""
            if record.state is _DELAYED:
                self._note_delayed(position)
                self._counters.held_back(topic, record.due_ms - record.store_timestamp_ms)
                handle = self._recall_handles.seal(
                    RecallHandle(record.topic_id, record.due_ms, position, message.message_id)
                )
            receipts.append(SendReceipt(message.message_id, record.queue_offset, handle))
        return receipts

    def _note_delayed(self, position: int) -> None:
        """A delayed message was stored: `TimerVerbs` remembers what is not durable yet."""
        raise NotImplementedError

    def _check_bounds(self, state: TopicState, messages: Sequence[NewMessage]) -> None:
        checked: MessageType | None = None
        for message in messages:
            # Nearly always all of a batch are of one type.
            if message.message_type is not checked:
                checked = message.message_type
                self._check_bound(checked)
                if checked is _TRANSACTION:
                    self._check_ids(state, messages)

    def _check_ids(self, state: TopicState, messages: Sequence[NewMessage]) -> None:
        """A half message is known by its id: another one with it would take its place.

        The same one again is fine: its producer did not hear that it was stored.

        Raises:
            BadRequest: Names the id.
            ReadFailed: Nobody can say now whether it is the same.
        """
        seen: dict[str, tuple[bytes, bytes, int]] = {}
        for message in messages:
            if message.message_type is not _TRANSACTION:
                continue
            name, content = message.message_id, _content(message)
            known = seen.get(name) or self._open_content(state, name)
            if known is not None and known != content:
                raise BadRequest(
                    f"message id {name} is that of another half message of topic"
                    f" {state.topic.name}, which is not ended: give each message an id of its own"
                )
            seen[name] = content

    def _open_content(self, state: TopicState, name: str) -> tuple[bytes, bytes, int] | None:
        """What an open half message says; None if there is none, or it is lost."""
        half = self._shard.transactions.find((state.topic_id, name))
        if half is None:
            return None
        try:
            record = self._log.read_position(half.position)
        except (CorruptFrame, MessageNotFound):
            return None
        return record.body, record.user, record.tag_hash

    def _check_bound(self, message_type: MessageType) -> None:
        if message_type is _TRANSACTION:
            is_open = len(self._shard.transactions)
            if is_open >= self._settings.transactions_max:
                raise OverloadedError(
                    f"{is_open} transactions are open (transactions.open_max)",
                    "transactions.open_max",
                )
        elif message_type is _DELAY:
            waiting = len(self._shard.timers)
            if waiting >= self._settings.delayed_max:
                raise OverloadedError(
                    f"{waiting} delayed messages wait (delays.pending_max)", "delays.pending_max"
                )

    def _count_sent(self, topic: str, messages: Sequence[NewMessage]) -> None:
        # Nearly always all of a batch are of one type and of one size.
        message_type = messages[0].message_type
        sent = self._counters.sent_of(topic, message_type)
        sizes = sent.sizes
        body_bytes = 0
        size = at = -1
        for message in messages:
            if message.message_type is not message_type:
                sent.body_bytes += body_bytes
                message_type, body_bytes = message.message_type, 0
                sent = self._counters.sent_of(topic, message_type)
                sizes = sent.sizes
            if len(message.body) != size:
                size = len(message.body)
                at = bisect_left(SIZE_BOUNDS, size)
            sizes[at] += 1
            body_bytes += size
        sent.body_bytes += body_bytes


def _content(message: NewMessage) -> tuple[bytes, bytes, int]:
    """What makes a message another one, whenever and however often it is sent."""
    return message.body, message.user, java_hash(message.tag) if message.tag else 0
