"""GetOffset: how far a group has committed on a queue."""

from cosmodrome_proto import service_pb2 as rpc
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
    topic = context.names.topic(queue.topic.name)
    group = context.names.group(request.group.name)
    context.broker.bounds(topic, queue.id)  # that there is such a queue
    context.broker.group(group)
    return rpc.GetOffsetResponse(
        status=status.OK_STATUS, offset=context.broker.committed_offset(group, topic, queue.id)
    )
