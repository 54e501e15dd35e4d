"""ResetGroupOffset: read a topic again from a time."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import timestamp_ms
from cosmodrome_server.proxy.front import Call


def reset_group_offset(
    context: Context, _call: Call, request: admin.ResetGroupOffsetRequest
) -> bytes:
    """Move the group on every queue to the first message stored at or after the time.

    What it has in flight there is forgotten.

    Raises:
        IllegalTopic, IllegalConsumerGroup, TopicNotFound, ConsumerGroupNotFound
        BadRequest: No time.
    """
    topic = context.known_topic(request.topic.name)
    group = context.known_group(request.group.name)
    moment_ms = timestamp_ms(request.reset_timestamp)
    if moment_ms <= 0:
        raise BadRequest("reset_timestamp must be after 1970")
    for queue_id in range(topic.queues):
        offset = context.broker.offset_at(topic.name, queue_id, moment_ms)
        context.broker.reset_offset(group.name, topic.name, queue_id, offset)
    return status.OK
