"""SyncLiteSubscription, and what a lite consumer then receives."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.support.proxy_world import ProxyWorld, consumer_settings, message, resource, run


def sync_request(
    *names: str,
    topic: str = "lite",
    group: str = "readers",
    action: int = pb.COMPLETE_ADD,
) -> rpc.SyncLiteSubscriptionRequest:
    request = rpc.SyncLiteSubscriptionRequest(
        topic=resource(topic), group=resource(group), lite_topic_set=names
    )
    request.MergeFromString(bytes((8, action)))  # also numbers that do not exist
    return request


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (sync_request("chat-1", "chat-2"), pb.OK),
        (sync_request("chat-1", action=pb.PARTIAL_ADD), pb.OK),
        (sync_request("chat-1", action=pb.PARTIAL_REMOVE), pb.OK),
        (sync_request(action=pb.COMPLETE_REMOVE), pb.OK),
        (sync_request("a b"), pb.ILLEGAL_LITE_TOPIC),
        (sync_request("l" * 65), pb.ILLEGAL_LITE_TOPIC),
        (sync_request("x", topic="normal"), pb.ILLEGAL_TOPIC),
        (sync_request("x", topic="a b"), pb.ILLEGAL_TOPIC),
        (sync_request("x", group="billing"), pb.ILLEGAL_TOPIC),
        (sync_request("x", group="nope"), pb.CONSUMER_GROUP_NOT_FOUND),
        (sync_request("x", group=""), pb.ILLEGAL_CONSUMER_GROUP),
        (sync_request("x", action=9), pb.BAD_REQUEST),
    ],
)
def test_a_subscription_is_answered(request_: rpc.SyncLiteSubscriptionRequest, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("SyncLiteSubscription", request_) == code

    run(scenario)


def test_more_lite_topics_than_a_client_may_read_are_refused() -> None:
    async def scenario(world: ProxyWorld) -> None:
        code = await world.code("SyncLiteSubscription", sync_request("a", "b", "c"))
        assert code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED

    run(scenario, lite__subscriptions_per_client="2")


def test_more_lite_topics_than_there_may_be_are_refused() -> None:
    async def scenario(world: ProxyWorld) -> None:
        first = await world.send(message(topic="lite", lite_topic="a"))
        second = await world.send(message(topic="lite", lite_topic="b"))
        assert first.status.code == pb.OK
        assert second.status.code == pb.LITE_TOPIC_QUOTA_EXCEEDED

    run(scenario, lite__topics_max="1")


def test_a_client_receives_the_lite_topics_it_subscribed_to() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings("readers", "lite", pb.LITE_PUSH_CONSUMER))
        assert await world.code("SyncLiteSubscription", sync_request("chat-1")) == pb.OK
        for name in ("chat-1", "chat-2"):
            sent = await world.send(message(name.encode(), "lite", lite_topic=name))
            assert sent.status.code == pb.OK
        await world.world.settle()
        (received,) = await world.receive(topic="lite", group="readers")
        assert received.body == b"chat-1"
        assert received.system_properties.lite_topic == "chat-1"

    run(scenario)
