"""ResetOffset: move a group on a topic."""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import timestamp_ms
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS


def reset_offset(
    context: Context, _call: Call, request: wire.ResetOffsetRequest
) -> wire.ResetOffsetResponse:
    """Move a group on one queue or on all of a topic; what it has in flight there is forgotten.

    Raises:
        TopicNotFound, ConsumerGroupNotFound: There is none.
        BadRequest: No target, no such queue, or an offset for all queues at once.
        IllegalOffset: An offset the queue does not hold.
    """
    # Looked for first: a typing error must not create what it names (topics.auto_create).
    if not context.broker.has_topic(request.topic):
        raise TopicNotFound(f"there is no topic {request.topic}")
    topic = context.broker.topic(request.topic)
    if not context.broker.has_group(request.group):
        raise ConsumerGroupNotFound(f"there is no consumer group {request.group}")
    has_queue = request.HasField("queue_id")
    if request.WhichOneof("target") == "offset" and not has_queue:
        raise BadRequest("an offset is one of one queue: name queue_id, or give a time")
    queues = [request.queue_id] if has_queue else range(topic.queues)
    response = wire.ResetOffsetResponse(status=OK_STATUS)
    for queue_id in queues:
        offset = _target(context, request, queue_id)
        context.broker.reset_offset(request.group, request.topic, queue_id, offset)
        response.offsets.add(queue_id=queue_id, offset=offset)
    return response


def _target(context: Context, request: wire.ResetOffsetRequest, queue_id: int) -> int:
    target = request.WhichOneof("target")
    bounds = context.broker.bounds(request.topic, queue_id)
    if target == "offset":
        return request.offset
    if target == "timestamp":
        moment = timestamp_ms(request.timestamp)
        return context.broker.offset_at(request.topic, queue_id, moment)
    if target == "policy" and request.policy in (pb.BEGINNING, pb.END):
        return bounds.min_offset if request.policy == pb.BEGINNING else bounds.max_offset
    raise BadRequest("a reset needs a timestamp, BEGINNING, END, or an offset of one queue")
