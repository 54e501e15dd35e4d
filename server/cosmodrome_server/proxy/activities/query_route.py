"""QueryRoute: which message queues a topic has, and where they are reached."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.topic import Permission, Topic, TopicType
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.settings import scheme_of

_PERMISSIONS = {
    Permission.NONE: pb.NONE,
    Permission.READ: pb.READ,
    Permission.WRITE: pb.WRITE,
    Permission.READ_WRITE: pb.READ_WRITE,
}
_ACCEPTED = {
    TopicType.MIXED: (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
    TopicType.NORMAL: (pb.NORMAL,),
    TopicType.FIFO: (pb.FIFO,),
    TopicType.DELAY: (pb.DELAY,),
    TopicType.TRANSACTION: (pb.TRANSACTION,),
    TopicType.LITE: (pb.LITE,),
    TopicType.PRIORITY: (pb.PRIORITY,),
}


def query_route(
    context: Context, _call: Call, request: rpc.QueryRouteRequest
) -> rpc.QueryRouteResponse:
    """List the message queues of a topic, in the order of their ids.

    The broker's endpoints are those the client used, so that it comes back the same way,
    through any address translation.

    Raises:
        IllegalTopic, TopicNotFound
    """
    topic = context.broker.topic(context.names.topic(request.topic.name))
    broker = broker_of(context, request.endpoints)
    return rpc.QueryRouteResponse(
        status=status.OK_STATUS,
        message_queues=[
            pb.MessageQueue(
                topic=request.topic,
                id=queue_id,
                permission=permission_of(topic),
                broker=broker,
                accept_message_types=_ACCEPTED[topic.topic_type],
            )
            for queue_id in range(topic.queues)
        ],
    )


def permission_of(topic: Topic) -> pb.Permission.ValueType:
    """A topic's permission as the wire says it."""
    return _PERMISSIONS[topic.permission]


def broker_of(context: Context, asked_at: pb.Endpoints) -> pb.Broker:
    """This broker, at the endpoints the client named, else at its own."""
    endpoints = asked_at
    if not asked_at.addresses:
        host, port = context.endpoint
        endpoints = pb.Endpoints(
            scheme=scheme_of(host), addresses=[pb.Address(host=host, port=port)]
        )
    return pb.Broker(name=context.config.server.name, id=0, endpoints=endpoints)
