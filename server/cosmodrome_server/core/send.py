"""Where new messages go: which queue, which offset, at once or later.

    a chosen queue     that one, for all of the send
    message group      the queue of its hash, per message also inside a batch
    priority           queue min(priority, queues - 1)
    everything else    one queue for the whole batch, the next one for the next batch

Source: protocol.md 1.3 (queue selection), 5.1 and 5.2 (types), 7.12 (priority), F.2.
"""

from collections.abc import Sequence

from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.hashing import java_hash, queue_of_message_group
from cosmodrome_server.errors import BadRequest, Forbidden, MessageTypeConflict
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, TopicType

ANY_QUEUE = -1
_VISIBLE, _TRANSACTION = MessageState.VISIBLE, MessageType.TRANSACTION
_TAKES_ALL = (DEAD_LETTER_PREFIX, RETRY_PREFIX)
_ACCEPTED = {
    TopicType.NORMAL: frozenset({MessageType.NORMAL}),
    TopicType.FIFO: frozenset({MessageType.FIFO}),
    TopicType.DELAY: frozenset({MessageType.DELAY}),
    TopicType.TRANSACTION: frozenset({MessageType.TRANSACTION}),
    TopicType.LITE: frozenset({MessageType.LITE}),
    TopicType.PRIORITY: frozenset({MessageType.PRIORITY}),
    TopicType.MIXED: frozenset(
        {MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION}
    ),
}


def check_acceptance(topic: TopicState, messages: Sequence[NewMessage]) -> None:
    """Refuse messages the topic does not take.

    Raises:
        Forbidden: The topic takes no writes.
        MessageTypeConflict: Names the first that does not fit.
    """
    settings = topic.topic
    if not topic.is_writable:
        raise Forbidden(
            f"topic {settings.name} takes no messages: its permission is {settings.permission}"
        )
    accepted = _ACCEPTED[settings.topic_type]
    for message in messages:
        if message.message_type not in accepted and not settings.name.startswith(_TAKES_ALL):
            raise MessageTypeConflict(
                f"topic {settings.name} takes {settings.topic_type} messages,"
                f" message {message.message_id} is {message.message_type.name}"
            )


def plan_send(
    topic: TopicState,
    messages: Sequence[NewMessage],
    now_ms: int,
    first_check_ms: int,
    chosen: int = ANY_QUEUE,
) -> list[MessageRecord]:
    """Place messages of one topic that `check_acceptance` let pass; records in their order.

    Delayed and half messages get a queue and no offset yet.

    Args:
        topic: Where they go.
        messages: Of one send.
        now_ms: The log's time.
        first_check_ms: How long after that a half message is first asked about, where it
            does not say so itself.
        chosen: The producer's choice of queue, if it has one.

    Raises:
        BadRequest: There is no such queue.
    """
    ends = topic.next_offsets
    queues = len(ends)
    if chosen >= queues:
        raise BadRequest(f"topic {topic.topic.name} has queues 0 to {queues - 1}, no {chosen}")
    rotated = (topic.last_queue + 1) % queues
    taken: dict[int, int] = {}
    records = []
    for message in messages:
        if chosen >= 0:
            queue_id = chosen
        elif message.message_group:
            queue_id = queue_of_message_group(message.message_group, queues)
        elif message.priority >= 0:
            queue_id = min(message.priority, queues - 1)
        else:
            queue_id = rotated
        state, due_ms = _VISIBLE, 0
        if message.delivery_timestamp_ms or message.message_type is _TRANSACTION:
            state, due_ms = _state(message, now_ms, first_check_ms)
        if state is _VISIBLE:
            queue_offset = taken.get(queue_id, ends[queue_id])
            taken[queue_id] = queue_offset + 1
        else:
            queue_offset = 0
        records.append(
            MessageRecord(
                state,
                topic.topic_id,
                queue_id,
                queue_offset,
                java_hash(message.tag) if message.tag else 0,
                now_ms,
                due_ms,
                message.system,
                message.user,
                message.body,
            )
        )
    return records


def _state(message: NewMessage, now_ms: int, first_check_ms: int) -> tuple[MessageState, int]:
    if message.message_type is _TRANSACTION:
        return MessageState.HALF, now_ms + (message.transaction_check_ms or first_check_ms)
    if message.delivery_timestamp_ms > now_ms:
        return MessageState.DELAYED, message.delivery_timestamp_ms
    return _VISIBLE, 0
