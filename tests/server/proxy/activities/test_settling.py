"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

import pytest
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.activities.ack_message import ENTRIES_MAX
from tests.support.proxy_world import (
    ProxyWorld,
    ack_request,
    change_request,
    handle_of,
    message,
    resource,
    run,
)


def bury_request(handle: str, topic: str = "normal", group: str = "billing") -> Message:
    return rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=resource(topic), group=resource(group), receipt_handle=handle, message_id="id1"
    )


def test_acks_answer_in_the_requests_order_and_echo_its_handles() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(), message())
        first, second = map(handle_of, await world.receive())
        answer = await world.call("AckMessage", ack_request(second, "junk", first))
        assert answer.status.code == pb.MULTIPLE_RESULTS
        assert [entry.receipt_handle for entry in answer.entries] == [second, "junk", first]
        assert [entry.message_id for entry in answer.entries] == ["m0", "m1", "m2"]
        assert [entry.status.code for entry in answer.entries] == [
            pb.OK,
            pb.INVALID_RECEIPT_HANDLE,
            pb.OK,
        ]

    run(scenario)


def test_an_ack_has_a_bound() -> None:
    """A million empty entries are 2 MB, and took 30 s of the broker and 1.5 GB."""

    async def scenario(world: ProxyWorld) -> None:
        answer = await world.call("AckMessage", ack_request(*[""] * ENTRIES_MAX))
        assert len(answer.entries) == ENTRIES_MAX
        answer = await world.call("AckMessage", ack_request(*[""] * (ENTRIES_MAX + 1)))
        assert answer.status.code == pb.BAD_REQUEST
        assert f"{ENTRIES_MAX} at once" in answer.status.message
        assert not answer.entries

    run(scenario)


def test_acks_that_fail_alike_fail_as_a_whole() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("AckMessage", ack_request("x", "x")) == pb.INVALID_RECEIPT_HANDLE

    run(scenario)


def test_an_ack_twice_is_fine_and_of_nothing_is_not() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (one,) = await world.receive()
        assert await world.code("AckMessage", ack_request(handle_of(one))) == pb.OK
        assert await world.code("AckMessage", ack_request(handle_of(one))) == pb.OK
        assert await world.code("AckMessage", ack_request()) == pb.BAD_REQUEST

    run(scenario)


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("a b", "billing", pb.ILLEGAL_TOPIC),
        ("normal", "", pb.ILLEGAL_CONSUMER_GROUP),
        ("fifo", "billing", pb.INVALID_RECEIPT_HANDLE),
        ("normal", "ledger", pb.INVALID_RECEIPT_HANDLE),
    ],
)
def test_a_handle_is_good_only_for_its_own_topic_and_group(
    topic: str, group: str, code: int
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        handle = handle_of((await world.receive())[0])
        assert await world.code("AckMessage", ack_request(handle, topic=topic, group=group)) == code
        buried = bury_request(handle, topic, group)
        assert await world.code("ForwardMessageToDeadLetterQueue", buried) == code
        change = change_request(handle, 20_000)
        assert isinstance(change, rpc.ChangeInvisibleDurationRequest)
        change.topic.name, change.group.name = topic, group
        assert await world.code("ChangeInvisibleDuration", change) == code

    run(scenario)


@pytest.mark.parametrize(
    ("invisible_ms", "code"),
    [
        (-1, pb.ILLEGAL_INVISIBLE_TIME),
        (0, pb.OK),
        (43_200_000, pb.OK),
        (43_200_001, pb.ILLEGAL_INVISIBLE_TIME),
    ],
)
def test_the_invisible_duration_changes_within_bounds(invisible_ms: int, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        handle = handle_of((await world.receive())[0])
        assert (
            await world.code("ChangeInvisibleDuration", change_request(handle, invisible_ms))
            == code
        )

    run(scenario)


def test_a_change_gives_a_new_handle_and_the_old_one_is_stale() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        old = handle_of((await world.receive())[0])
        new = (
            await world.call("ChangeInvisibleDuration", change_request(old, 30_000))
        ).receipt_handle
        assert new not in ("", old)
        assert await world.code("AckMessage", ack_request(old)) == pb.INVALID_RECEIPT_HANDLE
        assert await world.code("AckMessage", ack_request(new)) == pb.OK

    run(scenario)


@pytest.mark.parametrize(("suspend", "attempt"), [(False, 2), (True, 1)])
def test_a_message_made_visible_comes_again_and_suspending_is_no_attempt(
    suspend: bool, attempt: int
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        handle = handle_of((await world.receive())[0])
        request = change_request(handle, 0, suspend=suspend)
        assert await world.code("ChangeInvisibleDuration", request) == pb.OK
        await world.later(1)
        (again,) = await world.receive()
        assert again.system_properties.delivery_attempt == attempt

    run(scenario)


def test_a_change_after_the_ack_brings_nothing_back() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        handle = handle_of((await world.receive())[0])
        await world.call("AckMessage", ack_request(handle))
        code = await world.code("ChangeInvisibleDuration", change_request(handle, 0))
        assert code == pb.INVALID_RECEIPT_HANDLE
        await world.later(60_000)
        assert await world.receive_nothing()

    run(scenario)


def test_a_buried_message_is_a_dead_letter_once_and_says_where_it_came_from() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"poison", properties={"p": "v"}))
        handle = handle_of((await world.receive())[0])
        changed = await world.call("ChangeInvisibleDuration", change_request(handle, 30_000))
        buried = bury_request(changed.receipt_handle)
        assert await world.code("ForwardMessageToDeadLetterQueue", buried) == pb.OK
        assert (
            await world.code("ForwardMessageToDeadLetterQueue", buried) == pb.INVALID_RECEIPT_HANDLE
        )
        await world.world.settle()
        (dead,) = await world.receive(topic="%DLQ%billing", group="ledger")
        assert dead.body == b"poison"
        assert dict(dead.user_properties) == {"p": "v"}
        origin = dead.system_properties.dead_letter_queue
        assert (origin.topic, origin.message_id) == ("normal", "id1")
        await world.later(60_000)
        assert await world.receive_nothing()

    run(scenario)
