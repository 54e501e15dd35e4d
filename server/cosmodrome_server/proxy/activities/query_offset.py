"""QueryOffset: where a queue begins, ends, or stood at a time."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import timestamp_ms
from cosmodrome_server.proxy.front import Call


def query_offset(
    context: Context, _call: Call, request: rpc.QueryOffsetRequest
) -> rpc.QueryOffsetResponse:
    """Return the first offset, the next to be written, or the first at or after a time.

    Raises:
        IllegalTopic, TopicNotFound
        BadRequest: No such queue or policy, or a time is asked for and not given.
    """
    queue = request.message_queue
    topic = context.known_topic(queue.topic.name).name
    bounds = context.broker.bounds(topic, queue.id)
    if request.query_offset_policy == pb.BEGINNING:
        found = bounds.min_offset
    elif request.query_offset_policy == pb.END:
        found = bounds.max_offset
    elif request.query_offset_policy != pb.TIMESTAMP:
        raise BadRequest(f"there is no offset policy {request.query_offset_policy}")
    elif not request.HasField("timestamp"):
        raise BadRequest("the policy TIMESTAMP needs a timestamp")
    else:
        found = context.broker.offset_at(topic, queue.id, timestamp_ms(request.timestamp))
    return rpc.QueryOffsetResponse(status=status.OK_STATUS, offset=found)
