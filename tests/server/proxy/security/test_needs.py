"""What each request needs."""

import pytest
from google.protobuf.message import Message

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import Unauthorized
from cosmodrome_server.proxy.security.needs import RULES, needs_of

ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")
QUEUE = pb.MessageQueue(topic=ORDERS)
SETTINGS = pb.Settings(
    subscription=pb.Subscription(group=BILLING, subscriptions=[pb.SubscriptionEntry(topic=ORDERS)])
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (rpc.SendMessageRequest(messages=[pb.Message(topic=ORDERS)] * 2), ["Topic:orders pub"]),
        (rpc.RecallMessageRequest(topic=ORDERS), ["Topic:orders pub"]),
        (rpc.EndTransactionRequest(topic=ORDERS), ["Topic:orders pub"]),
        (rpc.QueryRouteRequest(topic=ORDERS), ["Topic:orders pub,sub"]),
        (
            rpc.ReceiveMessageRequest(group=BILLING, message_queue=QUEUE),
            ["Group:billing sub", "Topic:orders sub"],
        ),
        (
            rpc.ChangeInvisibleDurationRequest(group=BILLING, topic=ORDERS),
            ["Group:billing sub", "Topic:orders sub"],
        ),
        (rpc.HeartbeatRequest(client_type=pb.PRODUCER), []),
        (rpc.HeartbeatRequest(client_type=pb.PUSH_CONSUMER, group=BILLING), ["Group:billing sub"]),
        (rpc.NotifyClientTerminationRequest(), []),
        (rpc.NotifyClientTerminationRequest(group=BILLING), ["Group:billing sub"]),
        (
            rpc.TelemetryCommand(settings=SETTINGS),
            ["Group:billing sub", "Topic:orders sub"],
        ),
        (
            rpc.TelemetryCommand(settings=pb.Settings(publishing=pb.Publishing(topics=[ORDERS]))),
            ["Topic:orders pub"],
        ),
        (rpc.TelemetryCommand(), []),
        (
            control.CreateTopicRequest(topic=control.Topic(name="orders")),
            ["Topic:orders create"],
        ),
        (control.DeleteGroupRequest(name="billing"), ["Group:billing delete"]),
        (control.ListTopicsRequest(), ["Cluster:* list"]),
        (
            admin.ResetGroupOffsetRequest(topic=ORDERS, group=BILLING),
            ["Topic:orders update", "Group:billing update"],
        ),
        (admin.GetTopicRouteRequest(topic=ORDERS), ["Topic:orders get"]),
        (admin.ListSubscriptionRequest(), ["Cluster:* get"]),
        (
            admin.QueryTimeSpanRequest(group=BILLING, topics=[ORDERS, pb.Resource(name="bills")]),
            ["Group:billing get", "Topic:orders get", "Topic:bills get"],
        ),
        (admin.DescribeGroupAccumulationRequest(group=BILLING), ["Group:billing get"]),
    ],
)
def test_needs_of_each_kind_of_request(request_: Message, expected: list[str]) -> None:
    assert [f"{need} {','.join(need.actions)}" for need in needs_of(request_)] == expected


def test_a_retry_topic_counts_as_its_group() -> None:
    request = rpc.QueryRouteRequest(topic=pb.Resource(name="%RETRY%billing"))
    assert [str(need) for need in needs_of(request)] == ["Group:billing"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (rpc.SendMessageRequest(), "topic is null"),
        (rpc.AckMessageRequest(topic=ORDERS), "group is null"),
        (rpc.ReceiveMessageRequest(group=BILLING), "messageQueue is null"),
    ],
)
def test_a_request_without_what_it_is_about_is_refused(request_: Message, words: str) -> None:
    with pytest.raises(Unauthorized, match=words):
        needs_of(request_)


@pytest.mark.parametrize(
    ("service", "others"),
    [
        ("apache.rocketmq.v2.MessagingService", []),
        ("apache.rocketmq.v2.Admin", []),
        ("cosmodrome.v1.Control", []),
        # Their own right is in what they carry: see needs.py.
        ("cosmodrome.v1.Bulk", ["ReleaseSegments", "PublishStaged"]),
    ],
)
def test_every_request_of_every_service_has_a_rule(service: str, others: list[str]) -> None:
    assert [m.name for m in methods(service) if m.request not in RULES] == others
