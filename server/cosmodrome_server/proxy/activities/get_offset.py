"""GetOffset: how far a group has committed on a queue."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import OffsetNotFound
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def get_offset(
    context: Context, _call: Call, request: rpc.GetOffsetRequest
) -> rpc.GetOffsetResponse:
    """Return the committed offset.

    Raises:
        IllegalTopic, IllegalConsumerGroup, TopicNotFound, ConsumerGroupNotFound
        BadRequest: No such queue.
        OffsetNotFound: Nothing committed.
    """
    queue = request.message_queue
    topic = context.known_topic(queue.topic.name).name
    group = context.names.group(request.group.name)
    context.broker.bounds(topic, queue.id)  # that there is such a queue
    if context.config.auto_create and not context.broker.has_group(group):
        # It may be at work tomorrow; asking how far it is makes no group of it.
        raise OffsetNotFound(f"consumer group {group} committed nothing, and is not there yet")
    context.broker.group(group)
    return rpc.GetOffsetResponse(
        status=status.OK_STATUS, offset=context.broker.committed_offset(group, topic, queue.id)
    )
