"""What each request needs of the access rules (protocol.md 2.4, docs/wire.md).

Beside the reference: ChangeInvisibleDuration also needs Sub on the topic, and the four
offset RPCs, Admin and Control have rules at all. A dead letter topic is read under its own
name; a retry topic counts as its group.

Two requests have no rule here, for they name nothing: ReleaseSegments, whose pin only those
have who were given it, and PublishStaged, which asks for each topic that messages were staged
for.
"""

from collections.abc import Callable, Iterator

from google.protobuf.message import Message

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import Unauthorized
from cosmodrome_server.model.topic import RETRY_PREFIX
from cosmodrome_server.proxy.security.policies import Action, Need, ResourceType

Needs = Callable[..., Iterator[Need]]
PUB, SUB = (Action.PUB,), (Action.SUB,)
GET, LIST = (Action.GET,), (Action.LIST,)
_CONSUMERS = (
    pb.PUSH_CONSUMER,
    pb.SIMPLE_CONSUMER,
    pb.PULL_CONSUMER,
    pb.LITE_PUSH_CONSUMER,
    pb.LITE_SIMPLE_CONSUMER,
)


def needs_of(request: Message) -> list[Need]:
    """What a request needs; nothing for one that only says who is there.

    Raises:
        Unauthorized: It names no topic or no group where its kind needs one.
    """
    rule = RULES.get(type(request))
    return [] if rule is None else list(rule(request))


def _topic(name: str, actions: tuple[Action, ...]) -> Need:
    if not name:
        raise Unauthorized("topic is null")
    if name.startswith(RETRY_PREFIX):
        return Need(ResourceType.GROUP, name.removeprefix(RETRY_PREFIX), actions)
    return Need(ResourceType.TOPIC, name, actions)


def _group(name: str, actions: tuple[Action, ...] = SUB) -> Need:
    if not name:
        raise Unauthorized("group is null")
    return Need(ResourceType.GROUP, name, actions)


def _cluster(actions: tuple[Action, ...]) -> Need:
    return Need(ResourceType.CLUSTER, "*", actions)


def sending_to(topic: str) -> list[Need]:
    """What a send to this topic needs, where a request does not name it."""
    return [_topic(topic, PUB)]


def _publishes(request: rpc.RecallMessageRequest | rpc.EndTransactionRequest) -> Iterator[Need]:
    yield _topic(request.topic.name, PUB)


def _sends(request: rpc.SendMessageRequest) -> Iterator[Need]:
    for name in {message.topic.name for message in request.messages} or {""}:
        yield _topic(name, PUB)


def _routes(request: rpc.QueryRouteRequest) -> Iterator[Need]:
    yield _topic(request.topic.name, PUB + SUB)


def _consumes(
    request: rpc.AckMessageRequest
    | rpc.ChangeInvisibleDurationRequest
    | rpc.ForwardMessageToDeadLetterQueueRequest
    | rpc.QueryAssignmentRequest
    | rpc.SyncLiteSubscriptionRequest,
) -> Iterator[Need]:
    yield _group(request.group.name)
    yield _topic(request.topic.name, SUB)


def _reads_queue(
    request: rpc.ReceiveMessageRequest
    | rpc.PullMessageRequest
    | rpc.UpdateOffsetRequest
    | rpc.GetOffsetRequest,
) -> Iterator[Need]:
    if not request.HasField("message_queue"):
        raise Unauthorized("messageQueue is null")
    yield _group(request.group.name)
    yield _topic(request.message_queue.topic.name, SUB)


def _queries_offset(request: rpc.QueryOffsetRequest) -> Iterator[Need]:
    yield _topic(request.message_queue.topic.name, SUB)


def _beats(request: rpc.HeartbeatRequest) -> Iterator[Need]:
    if request.client_type in _CONSUMERS:
        yield _group(request.group.name)


def _ends(request: rpc.NotifyClientTerminationRequest) -> Iterator[Need]:
    if request.group.name:
        yield _group(request.group.name)


def _settles(request: rpc.TelemetryCommand) -> Iterator[Need]:
    if request.WhichOneof("command") != "settings":
        return
    settings = request.settings
    for topic in settings.publishing.topics:
        yield _topic(topic.name, PUB)
    if settings.HasField("subscription"):
        yield _group(settings.subscription.group.name)
        for entry in settings.subscription.subscriptions:
            yield _topic(entry.topic.name, SUB)


def _reads_in_bulk(request: bulk.ReadQueueRequest | bulk.QuerySegmentsRequest) -> Iterator[Need]:
    yield _topic(request.topic, SUB)


def _stages(request: bulk.StageMessagesRequest) -> Iterator[Need]:
    yield from _sends(request.content)


def _creates_topic(request: control.CreateTopicRequest) -> Iterator[Need]:
    yield _topic(request.topic.name, (Action.CREATE,))


def _deletes_topic(request: control.DeleteTopicRequest) -> Iterator[Need]:
    yield _topic(request.name, (Action.DELETE,))


def _creates_group(request: control.CreateGroupRequest) -> Iterator[Need]:
    yield _group(request.group.name, (Action.CREATE,))


def _deletes_group(request: control.DeleteGroupRequest) -> Iterator[Need]:
    yield _group(request.name, (Action.DELETE,))


def _moves(request: control.ResetOffsetRequest) -> Iterator[Need]:
    yield _group(request.group, (Action.UPDATE,))
    yield _topic(request.topic, SUB)


def _redrives(request: control.RedriveRequest) -> Iterator[Need]:
    yield _group(request.group, (Action.UPDATE,))


def _on_cluster(action: Action) -> Needs:
    def rule(_request: Message) -> Iterator[Need]:
        yield _cluster((action,))

    return rule


def _looks(request: Message) -> Iterator[Need]:
    """Admin requests look at a topic or several, a group, both, or the whole."""
    named = False
    for field, make in (("topic", _topic), ("group", _group)):
        resource = getattr(request, field, None)
        if resource is not None and resource.name:
            named = True
            yield make(resource.name, GET)
    for resource in getattr(request, "topics", ()):
        named = True
        yield _topic(resource.name, GET)
    if not named:
        yield _cluster(GET)


def _changes(request: Message) -> Iterator[Need]:
    for field, make in (("topic", _topic), ("group", _group)):
        resource = getattr(request, field, None)
        if resource is not None:
            yield make(resource.name, (Action.UPDATE,))


def _admin_sends(request: admin.AdminSendMessageRequest) -> Iterator[Need]:
    yield _topic(request.topic.name, PUB)


RULES: dict[type[Message], Needs] = {
    rpc.SendMessageRequest: _sends,
    rpc.RecallMessageRequest: _publishes,
    rpc.EndTransactionRequest: _publishes,
    rpc.QueryRouteRequest: _routes,
    rpc.QueryAssignmentRequest: _consumes,
    rpc.ReceiveMessageRequest: _reads_queue,
    rpc.AckMessageRequest: _consumes,
    rpc.ChangeInvisibleDurationRequest: _consumes,
    rpc.ForwardMessageToDeadLetterQueueRequest: _consumes,
    rpc.SyncLiteSubscriptionRequest: _consumes,
    rpc.PullMessageRequest: _reads_queue,
    rpc.UpdateOffsetRequest: _reads_queue,
    bulk.ReadQueueRequest: _reads_in_bulk,
    bulk.QuerySegmentsRequest: _reads_in_bulk,
    bulk.StageMessagesRequest: _stages,
    rpc.GetOffsetRequest: _reads_queue,
    rpc.QueryOffsetRequest: _queries_offset,
    rpc.HeartbeatRequest: _beats,
    rpc.NotifyClientTerminationRequest: _ends,
    rpc.TelemetryCommand: _settles,
    control.CreateTopicRequest: _creates_topic,
    control.DeleteTopicRequest: _deletes_topic,
    control.CreateGroupRequest: _creates_group,
    control.DeleteGroupRequest: _deletes_group,
    control.ResetOffsetRequest: _moves,
    control.RedriveRequest: _redrives,
    control.ListTopicsRequest: _on_cluster(Action.LIST),
    control.ListGroupsRequest: _on_cluster(Action.LIST),
    control.ListScheduledRequest: _on_cluster(Action.LIST),
    control.ListTransactionsRequest: _on_cluster(Action.LIST),
    control.PutUserRequest: _on_cluster(Action.UPDATE),
    control.DeleteUserRequest: _on_cluster(Action.UPDATE),
    control.ListUsersRequest: _on_cluster(Action.LIST),
    control.PutPolicyRequest: _on_cluster(Action.UPDATE),
    control.DeletePolicyRequest: _on_cluster(Action.UPDATE),
    control.ListPoliciesRequest: _on_cluster(Action.LIST),
    control.CheckAccessRequest: _on_cluster(Action.GET),
    control.DescribeServerRequest: _on_cluster(Action.GET),
    admin.AdminSendMessageRequest: _admin_sends,
    admin.ResetGroupOffsetRequest: _changes,
    admin.DeleteSubscriptionRequest: _changes,
    admin.ChangeLogLevelRequest: _on_cluster(Action.UPDATE),
    admin.DescribeTopicStatusRequest: _looks,
    admin.ListSubscriptionRequest: _looks,
    admin.DescribeSubscriptionRequest: _looks,
    admin.DescribeGroupAccumulationRequest: _looks,
    admin.ListConsumerConnectionRequest: _looks,
    admin.ListMessageRequest: _looks,
    admin.PrintThreadStackTraceRequest: _looks,
    admin.VerifyMessageRequest: _looks,
    admin.GetConsumerRunningInfoRequest: _looks,
    admin.GetTopicRouteRequest: _looks,
    admin.QueryTimeSpanRequest: _looks,
    admin.GetProxyRuntimeStatsRequest: _on_cluster(Action.GET),
}
