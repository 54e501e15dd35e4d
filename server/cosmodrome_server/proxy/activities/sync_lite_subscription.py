"""SyncLiteSubscription: which lite topics a client reads."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import Unsupported
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def sync_lite_subscription(
    context: Context, _call: Call, request: rpc.SyncLiteSubscriptionRequest
) -> bytes:
    """Change the client's set of lite topics.

    Raises:
        IllegalTopic, IllegalConsumerGroup, IllegalLiteTopic
    """
    context.names.topic(request.topic.name)
    context.names.group(request.group.name)
    raise Unsupported("lite subscriptions are not there yet")
