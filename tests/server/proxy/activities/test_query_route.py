"""QueryRoute and QueryAssignment."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.topic import Permission, Topic
from tests.support.proxy_world import ProxyWorld, message, receive_request, resource, run

ASKED = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=9999)])


@pytest.mark.parametrize(
    ("topic", "accepted"),
    [
        ("normal", [pb.NORMAL]),
        ("fifo", [pb.FIFO]),
        ("delay", [pb.DELAY]),
        ("transaction", [pb.TRANSACTION]),
        ("mixed", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("lite", [pb.LITE]),
        ("priority", [pb.PRIORITY]),
    ],
)
def test_a_route_lists_the_queues_and_what_they_accept(topic: str, accepted: list[int]) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.call("QueryRoute", rpc.QueryRouteRequest(topic=resource(topic)))
        assert [queue.id for queue in answer.message_queues] == [0, 1]
        for queue in answer.message_queues:
            assert list(queue.accept_message_types) == accepted
            assert queue.permission == pb.READ_WRITE
            assert queue.topic.name == topic
            assert queue.broker.id == 0

    run(scenario)


def test_a_client_is_sent_back_to_the_address_it_used() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryRouteRequest(topic=resource("normal"), endpoints=ASKED)
        answer = await world.call("QueryRoute", request)
        assert answer.message_queues[0].broker.endpoints == ASKED
        bare = await world.call("QueryRoute", rpc.QueryRouteRequest(topic=resource("normal")))
        endpoints = bare.message_queues[0].broker.endpoints
        assert (endpoints.scheme, endpoints.addresses[0].host) == (pb.IPv4, "203.0.113.1")

    run(scenario)


def test_the_topics_namespace_is_echoed() -> None:
    async def scenario(world: ProxyWorld) -> None:
        topic = pb.Resource(name="normal", resource_namespace="other")
        answer = await world.call("QueryRoute", rpc.QueryRouteRequest(topic=topic))
        assert answer.message_queues[0].topic == topic

    run(scenario)


def test_a_missing_topic_is_not_found_unless_topics_are_created_on_first_use() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryRouteRequest(topic=resource("new"))
        assert await world.code("QueryRoute", request) == pb.TOPIC_NOT_FOUND
        assignment = rpc.QueryAssignmentRequest(topic=resource("new"), group=resource("billing"))
        assert await world.code("QueryAssignment", assignment) == pb.TOPIC_NOT_FOUND

    run(scenario)


@pytest.mark.parametrize(
    ("group", "ids"),
    [("billing", [-1, -1]), ("ledger", [0, 1]), ("unheard-of", [-1]), ("readers", [-1])],
)
def test_a_fifo_group_is_assigned_each_queue_and_others_any(group: str, ids: list[int]) -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryAssignmentRequest(
            topic=resource("normal"), group=resource(group), endpoints=ASKED
        )
        answer = await world.call("QueryAssignment", request)
        queues = [one.message_queue for one in answer.assignments]
        assert [queue.id for queue in queues] == ids
        assert {queue.permission for queue in queues} == {pb.READ_WRITE}
        assert queues[0].broker.endpoints == ASKED
        assert list(queues[0].accept_message_types) == []

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"delivery__push_receives": "1"}, ["cosmodrome"]),
        ({"delivery__push_receives": "3"}, ["cosmodrome", "cosmodrome-2", "cosmodrome-3"]),
        ({"delivery__push_receives": "3", "server__strict": "true"}, ["cosmodrome"]),
    ],
)
def test_any_queue_is_assigned_as_of_several_brokers_at_one_address(
    settings: dict[str, str], names: list[str]
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryAssignmentRequest(
            topic=resource("normal"), group=resource("billing"), endpoints=ASKED
        )
        answer = await world.call("QueryAssignment", request)
        brokers = [one.message_queue.broker for one in answer.assignments]
        assert [broker.name for broker in brokers] == names
        assert all(broker.endpoints == ASKED for broker in brokers)

    run(scenario, **settings)


def test_a_topic_that_is_not_readable_is_assigned_to_nobody() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.broker.create_topic(Topic("sink", permission=Permission.WRITE))
        request = rpc.QueryAssignmentRequest(topic=resource("sink"), group=resource("billing"))
        assert await world.code("QueryAssignment", request) == pb.FORBIDDEN
        bad = rpc.QueryAssignmentRequest(topic=resource("normal"), group=resource("a b"))
        assert await world.code("QueryAssignment", bad) == pb.ILLEGAL_CONSUMER_GROUP

    run(scenario)


@pytest.mark.parametrize("permission", [Permission.READ, Permission.WRITE, Permission.NONE])
def test_who_may_not_is_told_what_the_permission_is(permission: Permission) -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.broker.create_topic(Topic("shut", permission=permission))
        queue = pb.MessageQueue(topic=resource("shut"))
        pull = rpc.PullMessageRequest(group=resource("billing"), message_queue=queue)
        answers = []
        if not permission.is_writable:
            answers.append(await world.send(message(topic="shut")))
        if not permission.is_readable:
            answers += await world.answer("PullMessage", pull)
            answers += (await world.answer("ReceiveMessage", receive_request("shut")))[:1]
        for answer in answers:
            assert answer.status.code == pb.FORBIDDEN
            assert answer.status.message.endswith(f"its permission is {permission}")

    run(scenario)


def test_a_topic_of_dead_letters_that_is_not_there_yet_is_not_to_be_created() -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = rpc.QueryRouteRequest(topic=resource("%DLQ%billing"))
        status = (await world.call("QueryRoute", request)).status
        assert status.code == pb.TOPIC_NOT_FOUND
        assert "first dead letter" in status.message

    run(scenario, topics__auto_create="true")
