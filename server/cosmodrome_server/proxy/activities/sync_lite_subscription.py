"""SyncLiteSubscription: which lite topics a client reads."""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest, IllegalTopic
from cosmodrome_server.model.lite import LiteAction, LiteChange, LiteStart
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context, client_id_of
from cosmodrome_server.proxy.front import Call

_POLICIES = {
    pb.OffsetOption.LAST: LiteStart.LAST,
    pb.OffsetOption.MIN: LiteStart.MIN,
    pb.OffsetOption.MAX: LiteStart.MAX,
}


def sync_lite_subscription(
    context: Context, call: Call, request: rpc.SyncLiteSubscriptionRequest
) -> bytes:
    """Change the client's set of lite topics.

    Raises:
        IllegalTopic: Malformed, or not the topic the group is bound to.
        IllegalConsumerGroup, ConsumerGroupNotFound, IllegalLiteTopic
        BadRequest: No such action.
        LiteSubscriptionQuotaExceeded: More than the client, or the broker, may have.
    """
    topic = context.names.topic(request.topic.name)
    name = context.names.group(request.group.name)
    if request.action not in pb.LiteSubscriptionAction.values():
        raise BadRequest(f"there is no lite subscription action {request.action}")
    names = tuple(context.names.lite_topic(one) for one in request.lite_topic_set)
    group = context.broker.group(name)
    if group.lite_bind_topic != topic:
        bound = group.lite_bind_topic or "no topic: it is a regular group"
        raise IllegalTopic(f"group {name} is bound to {bound}, not to {topic}")
    start, value = _start(request)
    change = LiteChange(
        client_id=client_id_of(call),
        group=name,
        topic=topic,
        action=LiteAction(request.action),
        lite_topics=names,
        version=request.version,
        start=start,
        start_value=value,
    )
    context.broker.sync_lite_subscription(change)
    return status.OK


def _start(request: rpc.SyncLiteSubscriptionRequest) -> tuple[LiteStart, int]:
    """Where to begin; a time is not looked at, as in the reference."""
    option = request.offset_option
    match option.WhichOneof("offset_type"):
        case "policy":
            return _POLICIES.get(option.policy, LiteStart.LAST), 0
        case "offset":
            return LiteStart.OFFSET, option.offset
        case "tail_n":
            return LiteStart.TAIL, option.tail_n
        case _:
            return LiteStart.LAST, 0
