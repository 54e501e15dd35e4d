"""QueryAssignment: which message queues a push consumer receives from."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import ConsumerGroupNotFound, Forbidden
from cosmodrome_server.model.queries import ANY_QUEUE
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.query_route import broker_of, permission_of
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def query_assignment(
    context: Context, _call: Call, request: rpc.QueryAssignmentRequest
) -> rpc.QueryAssignmentResponse:
    """Assign each queue of the topic to a FIFO group, and "any queue" (-1) to another.

    Every member gets the same answer; receiving is what shares the messages out.

    Raises:
        IllegalTopic, IllegalConsumerGroup, TopicNotFound
        Forbidden: The topic is not readable.
    """
    topic = context.broker.topic(context.names.topic(request.topic.name))
    group = context.names.group(request.group.name)
    if not topic.permission.is_readable:
        raise Forbidden(f"topic {topic.name} has no readable queue")
    broker = broker_of(context, request.endpoints)
    ids = range(topic.queues) if _is_fifo(context, group) else (ANY_QUEUE,)
    return rpc.QueryAssignmentResponse(
        status=status.OK_STATUS,
        assignments=[
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=request.topic, id=queue_id, permission=permission_of(topic), broker=broker
                )
            )
            for queue_id in ids
        ],
    )


def _is_fifo(context: Context, group: str) -> bool:
    """A group that does not exist is answered as a regular one, as the reference does."""
    try:
        return context.broker.group(group).is_fifo
    except ConsumerGroupNotFound:
        return False
