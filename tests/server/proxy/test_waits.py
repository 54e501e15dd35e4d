"""Who waits for a topic or a group hears when it is deleted, or becomes another one."""

from typing import Any

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.queries import PullQuery
from cosmodrome_server.model.topic import Permission, Topic, TopicType
from cosmodrome_server.proxy.convert import to_duration
from cosmodrome_server.proxy.waits import Waits
from tests.support.proxy_world import (
    METHODS,
    FakeCall,
    ProxyWorld,
    consumer_settings,
    message,
    no_collector,
    receive_request,
    resource,
    run,
    seen_to_go,
)


def pull_request(offset: int = 0) -> rpc.PullMessageRequest:
    return rpc.PullMessageRequest(
        group=resource("billing"),
        message_queue=pb.MessageQueue(topic=resource("normal"), id=0),
        offset=offset,
        long_polling_timeout=to_duration(5_000),
    )


REQUESTS = {"ReceiveMessage": receive_request(), "PullMessage": pull_request()}


async def waiting(world: ProxyWorld, name: str = "ReceiveMessage", **options: Any) -> FakeCall:
    call = world.begin(name, REQUESTS[name], **options)
    await world.world.settle()
    assert call.ended is None
    return call


def answers(name: str, call: FakeCall) -> list[Any]:
    assert call.ended is not None
    return [METHODS[name].response.FromString(one) for one in call.messages]


@pytest.mark.parametrize("name", REQUESTS)
def test_who_waits_for_a_topic_that_is_deleted_is_told_at_once(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        calls = [await waiting(world, name) for _ in range(300)]
        world.world.broker.delete_topic("normal")
        await world.world.settle()
        codes = [answers(name, call)[0].status.code for call in calls]
        assert codes == [pb.TOPIC_NOT_FOUND] * 300
        assert len(world.context.waits) == 0

    run(scenario)


def test_who_waits_in_a_group_that_is_deleted_is_told_at_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world)
        world.world.broker.delete_group("billing")
        await world.world.settle()
        told = answers("ReceiveMessage", call)
        assert told[0].status.code == pb.CONSUMER_GROUP_NOT_FOUND
        assert told[-1].HasField("delivery_timestamp")

    run(scenario)


@pytest.mark.parametrize("name", REQUESTS)
def test_who_waits_hears_of_a_topic_that_is_made_anew(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world, name)
        world.world.broker.delete_topic("normal")
        world.world.broker.create_topic(Topic("normal", TopicType.NORMAL, queues=1))
        await world.world.settle()
        assert call.ended is None
        await world.send(message(b"new"))
        await world.world.settle()
        assert answers(name, call)[1].message.body == b"new"

    run(scenario)


def test_who_waits_for_a_group_that_is_made_anew_is_served() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world)
        world.world.broker.delete_group("billing")
        world.world.broker.create_group(Group("billing"))
        await world.send(message(b"new"))
        await world.world.settle()
        assert answers("ReceiveMessage", call)[1].message.body == b"new"

    run(scenario)


def test_a_change_that_takes_nothing_away_leaves_the_wait_and_its_deadline() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world)
        await world.later(3_000)
        world.world.broker.create_group(Group("billing", max_attempts=7))
        await world.later(1_900)
        assert call.ended is None
        await world.later(100)
        assert answers("ReceiveMessage", call)[0].status.code == pb.MESSAGE_NOT_FOUND
        assert len(world.context.waits) == 0

    run(scenario)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_topic_that_may_not_be_read_any_more_is_said(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world, name)
        closed = Topic("normal", TopicType.NORMAL, queues=2, permission=Permission.WRITE)
        world.world.broker.create_topic(closed)
        await world.world.settle()
        assert answers(name, call)[0].status.code == pb.FORBIDDEN

    run(scenario)


def test_a_pull_that_waits_beyond_the_end_of_the_new_topic_is_told_where_it_ends() -> None:
    async def scenario(world: ProxyWorld) -> None:
        broker = world.world.broker
        await world.send(message())
        await world.send(message())
        assert broker.bounds("normal", 0).max_offset == 1
        call = world.begin("PullMessage", pull_request(1))
        await world.world.settle()
        broker.delete_topic("normal")
        broker.create_topic(Topic("normal", TopicType.NORMAL, queues=1))
        await world.world.settle()
        told = answers("PullMessage", call)
        assert told[0].status.code == pb.ILLEGAL_OFFSET
        assert told[1].next_offset == 0

    run(scenario)


def test_where_topics_are_made_on_first_use_the_wait_goes_on_with_the_new_one() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world)
        world.world.broker.delete_topic("normal")
        await world.world.settle()
        assert call.ended is None
        await world.send(message(b"new"))
        await world.world.settle()
        assert answers("ReceiveMessage", call)[1].message.body == b"new"

    run(scenario, topics__auto_create="true")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_client_that_went_away_does_not_ask_again(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world, name)
        world.world.broker.delete_topic("normal")
        call.cancel()
        await world.world.settle()
        assert call.ended is None
        assert not call.messages
        assert len(world.context.waits) == 0

    run(scenario)


@pytest.mark.parametrize("name", REQUESTS)
def test_what_a_refused_wait_carried_is_let_go_with_its_call(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = await waiting(world, name)
        world.world.broker.delete_topic("normal")
        await world.world.settle()
        kept = seen_to_go(call)
        del call
        assert kept() is None

    with no_collector():
        run(scenario)


def test_a_wait_ends_once_and_only_itself() -> None:
    waits = Waits()
    query = PullQuery("", "orders", 0, 0, 1)
    first, second = (waits.begin(query, lambda: None) for _ in range(2))
    waits.end(query, first)
    waits.end(query, first)
    assert len(waits) == 1
    waits.end(query, second)
    assert len(waits) == 0
    waits.topic_changed("orders")


BYE = rpc.NotifyClientTerminationRequest(group=resource("billing"))


async def comes_again_after_s(world: ProxyWorld) -> int:
    """When another client would be given a message, by five seconds."""
    for seconds in range(0, 300, 5):
        call = world.begin("ReceiveMessage", receive_request(), client_id="other")
        await world.world.settle()
        if call.ended is not None:
            return seconds
        call.cancel()
        await world.later(5_000)
    raise AssertionError("hidden for five minutes")


def test_receives_of_a_client_that_said_good_bye_are_given_nothing() -> None:
    """It was hidden for three hours: renewed for a client that nobody heard of any more."""

    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings(kind=pb.PUSH_CONSUMER), client_id="leaves")
        request = receive_request(auto_renew=True)
        leaving = [world.begin("ReceiveMessage", request, client_id="leaves") for _ in range(3)]
        stays = world.begin("ReceiveMessage", receive_request(), client_id="stays")
        await world.world.settle()
        assert await world.code("NotifyClientTermination", BYE, client_id="leaves") == pb.OK
        for call in leaving:
            status, last = answers("ReceiveMessage", call)
            assert status.status.code == pb.MESSAGE_NOT_FOUND
            assert last.HasField("delivery_timestamp")
        assert len(world.context.waits) == 1
        await world.send(message())
        await world.world.settle()
        assert answers("ReceiveMessage", stays)[0].status.code == pb.OK

    run(scenario)


def test_what_is_given_in_the_turn_of_the_good_bye_is_not_hidden_for_long() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings(kind=pb.PUSH_CONSUMER), client_id="leaves")
        await world.send(message())
        await world.world.settle()
        request = receive_request(auto_renew=True)
        call = world.begin("ReceiveMessage", request, client_id="leaves")
        world.begin("NotifyClientTermination", BYE, client_id="leaves")
        await world.world.settle()
        assert len(answers("ReceiveMessage", call)) == 3
        assert 0 < await comes_again_after_s(world) <= 130

    run(scenario)
