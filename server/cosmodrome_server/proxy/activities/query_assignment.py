"""QueryAssignment: which message queues a push consumer receives from."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import ConsumerGroupNotFound, Forbidden
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.queries import ANY_QUEUE
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.query_route import broker_of, permission_of
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def query_assignment(
    context: Context, _call: Call, request: rpc.QueryAssignmentRequest
) -> rpc.QueryAssignmentResponse:
    """Assign each queue of the topic to a FIFO group, and "any queue" (-1) to another.

    Every member gets the same answer; receiving is what shares the messages out. A push consumer
    has one receive under way for each assignment. "Any queue" is assigned several times, as of
    several brokers (which is what the reference answers where there are several).

    Raises:
        IllegalTopic, IllegalConsumerGroup, TopicNotFound
        Forbidden: The topic is not readable.
    """
    topic = context.broker.topic(context.names.topic(request.topic.name))
    group = _known(context, context.names.group(request.group.name))
    if not topic.permission.is_readable:
        raise Forbidden(f"topic {topic.name} has no readable queue")
    broker = broker_of(context, request.endpoints)
    if group is not None and group.is_fifo:
        assigned = [(queue_id, broker) for queue_id in range(topic.queues)]
    else:
        assigned = [(ANY_QUEUE, one) for one in _as_several(broker, _receives(context, group))]
    return rpc.QueryAssignmentResponse(
        status=status.OK_STATUS,
        assignments=[
            pb.Assignment(
                message_queue=pb.MessageQueue(
                    topic=request.topic, id=queue_id, permission=permission_of(topic), broker=one
                )
            )
            for queue_id, one in assigned
        ],
    )


def _known(context: Context, group: str) -> Group | None:
    """A group that does not exist is answered as a regular one, as the reference does."""
    try:
        return context.broker.group(group)
    except ConsumerGroupNotFound:
        return None


def _receives(context: Context, group: Group | None) -> int:
    """How many receives a push consumer of the group has under way."""
    if group is None or group.lite_bind_topic or context.config.server.strict:
        return 1
    return context.config.delivery.push_receives


def _as_several(broker: pb.Broker, count: int) -> list[pb.Broker]:
    """The same broker under names of which no two are equal: clients tell assignments apart so."""
    brokers = [broker]
    for number in range(2, count + 1):
        another = pb.Broker()
        another.CopyFrom(broker)
        another.name = f"{broker.name}-{number}"
        brokers.append(another)
    return brokers
