"""Messages delivered as often as their group allows: copied aside, with where they came from.

    orders queue 3 offset 7 ──MESSAGE──▶ %DLQ%billing queue 0, dead_letter_queue = (orders, id)
                            └─DeadLetter▶ settled in its queue
                              both in one frame: exactly one copy, whatever crashes

Redriving goes the other way: the dead letter is copied to the topic it came from and the
place of the redrive in the dead letter topic moves on, in one frame.
"""

from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.hashing import queue_of_message_group
from cosmodrome_server.model import wire
from cosmodrome_server.model.group import SYSTEM_GROUP_PREFIX
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.topic import TopicType

# The consumer group whose progress on a dead letter topic says what was redriven.
REDRIVE_GROUP = SYSTEM_GROUP_PREFIX + "REDRIVE"


def dead_letter_of(
    message: MessageRecord, origin_topic: str, target: TopicState, now_ms: int
) -> MessageRecord:
    """The copy of a message for its group's dead letters.

    A dead letter that dies again keeps its first origin.
    """
    system = bytes(message.system)
    if wire.dead_letter_origin(system) is None:
        system += wire.dead_letter_queue(origin_topic, wire.message_id(system))
    return _copy(message, system, (target, 0), now_ms)


def redriven_of(message: MessageRecord, target: TopicState, now_ms: int) -> MessageRecord:
    """The copy of a dead letter for the topic it came from; again a message like any other."""
    system = wire.without_field(message.system, wire.DEAD_LETTER_QUEUE)
    message_group = wire.message_group(system)
    priority = wire.number_field(system, wire.PRIORITY)
    queues = len(target.next_offsets)
    if message_group:
        queue_id = queue_of_message_group(message_group, queues)
    elif priority is not None and target.topic.topic_type is TopicType.PRIORITY:
        queue_id = min(priority, queues - 1)
    else:
        queue_id = (target.last_queue + 1) % queues
    return _copy(message, system, (target, queue_id), now_ms)


def _copy(
    message: MessageRecord, system: bytes, target: tuple[TopicState, int], now_ms: int
) -> MessageRecord:
    topic, queue_id = target
    return MessageRecord(
        MessageState.VISIBLE,
        topic.topic_id,
        queue_id,
        topic.next_offsets[queue_id],
        message.tag_hash,
        now_ms,
        0,
        system,
        message.user,
        message.body,
    )
