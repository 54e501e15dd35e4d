"""Telemetry, Heartbeat and NotifyClientTermination: the life of a client."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.front import GrpcStatus
from tests.support.proxy_world import (
    FakeCall,
    ProxyWorld,
    consumer_settings,
    message,
    producer_settings,
    resource,
    run,
)

BEAT = rpc.HeartbeatRequest(group=resource("billing"))


def ended(call: FakeCall) -> GrpcStatus | None:
    return None if call.ended is None else call.ended[0]


def test_settings_are_answered_with_the_merged_ones_on_the_same_stream() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings())
        (answer,) = call.commands()
        assert answer.status.code == pb.OK
        assert answer.settings.subscription.receive_batch_size == 32
        assert answer.settings.backoff_policy.max_attempts == 3
        assert call.ended is None

    run(scenario)


@pytest.mark.parametrize(
    "settings",
    [
        pb.Settings(client_type=pb.PRODUCER),
        consumer_settings(kind=pb.PRODUCER),
        consumer_settings(kind=pb.CLIENT_TYPE_UNSPECIFIED),
        consumer_settings(kind=pb.ClientType.ValueType(99)),
        consumer_settings(kind=pb.LITE_PUSH_CONSUMER),
        consumer_settings(expression=pb.FilterExpression(type=pb.TAG, expression="||")),
        consumer_settings(expression=pb.FilterExpression(type=pb.SQL, expression="")),
        consumer_settings(expression=pb.FilterExpression(type=pb.SQL, expression="a >")),
        consumer_settings(group="nope"),
        consumer_settings(group="a b"),
        producer_settings("a b"),
        pb.Settings(publishing=pb.Publishing(), client_properties={"rocketmq.x": "y"}),
    ],
)
def test_settings_the_client_must_change_end_the_stream_as_invalid_argument(
    settings: pb.Settings,
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(settings)
        assert ended(call) is GrpcStatus.INVALID_ARGUMENT
        assert call.ended is not None
        assert call.ended[1], "what it must change"
        assert call.messages == []

    run(scenario)


def test_without_client_id_a_status_is_sent_and_the_stream_ends_well() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(producer_settings("normal"), client_id=None)
        assert [one.status.code for one in call.commands()] == [pb.CLIENT_ID_REQUIRED]
        assert ended(call) is GrpcStatus.OK

    run(scenario)


def test_bytes_that_are_no_command_end_the_stream() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry()
        assert call._on_message is not None
        call._on_message(b"\x0a\xff")
        assert ended(call) is GrpcStatus.INVALID_ARGUMENT

    run(scenario)


def test_a_lite_consumer_of_a_bound_group_is_welcome() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings("readers", "lite", pb.LITE_PUSH_CONSUMER))
        assert call.commands()[0].settings.subscription.lite_subscription_quota == 2000

    run(scenario)


def test_a_client_must_send_settings_before_its_heartbeats_count() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("Heartbeat", BEAT) == pb.UNRECOGNIZED_CLIENT_TYPE
        world.telemetry(consumer_settings())
        assert await world.code("Heartbeat", BEAT) == pb.OK
        unknown = rpc.HeartbeatRequest(group=resource("nope"))
        assert await world.code("Heartbeat", unknown) == pb.ILLEGAL_CONSUMER_GROUP

    run(scenario)


def test_a_producer_heartbeats_without_a_group() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(producer_settings("normal"))
        assert await world.code("Heartbeat", rpc.HeartbeatRequest()) == pb.OK

    run(scenario)


def test_a_closed_stream_leaves_the_client_known_until_it_expires() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings())
        call.say(None)
        assert ended(call) is GrpcStatus.OK
        assert await world.code("Heartbeat", BEAT) == pb.OK
        await world.later(119_000)
        assert await world.code("Heartbeat", BEAT) == pb.OK
        await world.later(120_000)
        assert await world.code("Heartbeat", BEAT) == pb.UNRECOGNIZED_CLIENT_TYPE

    run(scenario)


def test_termination_forgets_a_client_at_once_even_when_its_group_is_refused() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings())
        request = rpc.NotifyClientTerminationRequest(group=resource("a b"))
        code = await world.code("NotifyClientTermination", request)
        assert code == pb.ILLEGAL_CONSUMER_GROUP
        assert await world.code("Heartbeat", BEAT) == pb.UNRECOGNIZED_CLIENT_TYPE
        code = await world.code("NotifyClientTermination", request)
        assert code == pb.UNRECOGNIZED_CLIENT_TYPE

    run(scenario)


@pytest.mark.parametrize("group", ["billing", "unknown"])
def test_termination_releases_what_was_renewed_for_the_client(group: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        world.telemetry(consumer_settings())
        assert len(await world.receive(auto_renew=True)) == 1
        request = rpc.NotifyClientTerminationRequest(group=resource(group))
        assert await world.code("NotifyClientTermination", request) == pb.OK
        await world.later(1_100)
        (again,) = await world.receive()
        assert again.system_properties.delivery_attempt == 2

    run(scenario)


def test_commands_of_newer_clients_are_passed_over() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings())
        call.say(rpc.TelemetryCommand())
        assert call.ended is None

    run(scenario)
