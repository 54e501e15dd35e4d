"""UpdateOffset: commit how far a group has read a queue."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import IllegalOffset
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def update_offset(context: Context, _call: Call, request: rpc.UpdateOffsetRequest) -> bytes:
    """Commit the offset; backwards is allowed.

    Raises:
        IllegalTopic, IllegalConsumerGroup, TopicNotFound, ConsumerGroupNotFound
        IllegalOffset: Negative.
        BadRequest: No such queue.
    """
    queue = request.message_queue
    topic = context.names.topic(queue.topic.name)
    group = context.names.group(request.group.name)
    if request.offset < 0:
        raise IllegalOffset(f"the offset {request.offset} is negative")
    context.broker.bounds(topic, queue.id)  # that there is such a queue
    context.broker.group(group)
    context.broker.commit_offset(group, topic, queue.id, request.offset)
    return status.OK
