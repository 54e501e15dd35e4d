"""Fields that nobody knows, in a message, stop neither its consumers nor the broker.

Protobuf keeps what it does not know, also groups and fields of ours with another wire type, and
what a producer sent is stored as it came.
"""

import pytest

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy.encoding import bytes_field
from tests.support.proxy_world import (
    METHODS,
    FakeCall,
    ProxyWorld,
    handle_of,
    message,
    receive_request,
    resource,
    run,
)

# Of numbers that neither Message nor SystemProperties has.
STRANGE = {
    "a group": b"\xa3\x06\x08\x01\xa4\x06",
    "a group in a group": b"\xa3\x06\xa3\x06\xa4\x06\xa4\x06",
    "four bytes": b"\xa5\x06abcd",
    "eight bytes": b"\xa1\x06abcdefgh",
    "text": b"\xa2\x06\x04abcd",
}
# The tag, the message group and the time of birth as fixed-width fields, which they are not.
MISTAKEN = b"\x0dabcd" + b"\x8d\x01abcd" + b"\x3dabcd"
SQL = pb.FilterExpression(type=pb.SQL, expression="a = '1' AND BORN_TIMESTAMP IS NULL")
TAGGED = pb.FilterExpression(type=pb.TAG, expression="t")


async def send(world: ProxyWorld, sent: pb.Message, strange: bytes) -> int:
    """Send a message with these fields added to it and to its system properties."""
    system = sent.system_properties.SerializeToString() + strange + MISTAKEN
    encoded = b"".join(
        (
            strange,
            bytes_field(1, sent.topic.SerializeToString()),
            pb.Message(user_properties=sent.user_properties).SerializeToString(),
            bytes_field(3, system),
            bytes_field(4, sent.body),
        )
    )
    call = FakeCall(bytes_field(1, encoded))
    world.handlers[METHODS["SendMessage"].path](call)
    await world.world.settle()
    return rpc.SendMessageResponse.FromString(call.messages[0]).status.code


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("wanted", [None, TAGGED, SQL], ids=["all", "tag", "sql"])
def test_it_is_received_by_any_filter(strange: bytes, wanted: pb.FilterExpression) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await send(world, message(tag="t", properties={"a": "1"}), strange) == pb.OK
        await world.send(message(b"next", tag="t", properties={"a": "1"}))
        received = await world.receive(filter_expression=wanted)
        assert [one.body for one in received] == [b"hello", b"next"]
        assert all(one.user_properties == {"a": "1"} for one in received)

    run(scenario)


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_it_keeps_its_message_group(strange: bytes) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await send(world, message(topic="fifo", message_group="g"), strange) == pb.OK
        await world.send(message(b"next", topic="fifo", message_group="g"))
        asked = {"topic": "fifo", "group": "ledger", "batch": 1, "queue_id": -1}
        assert [one.body for one in await world.receive(**asked)] == [b"hello"]
        assert await world.receive_nothing(**asked)

    run(scenario)


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_as_a_half_message_it_is_committed_after_a_restart(strange: bytes) -> None:
    async def scenario(world: ProxyWorld) -> None:
        half = message(topic="transaction", message_type=pb.TRANSACTION)
        assert await send(world, half, strange) == pb.OK
        await world.restart()
        commit = rpc.EndTransactionRequest(
            topic=resource("transaction"), transaction_id="id1", resolution=pb.COMMIT
        )
        assert await world.code("EndTransaction", commit) == pb.OK
        assert [one.body for one in await world.receive(topic="transaction")] == [b"hello"]

    run(scenario)


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_it_becomes_a_dead_letter_and_is_found_by_its_id(strange: bytes) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await send(world, message(), strange) == pb.OK
        (received,) = await world.receive()
        forward = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=resource("billing"), topic=resource("normal"), receipt_handle=handle_of(received)
        )
        assert await world.code("ForwardMessageToDeadLetterQueue", forward) == pb.OK
        (dead,) = await world.receive(topic="%DLQ%billing")
        assert dead.system_properties.dead_letter_queue.message_id == "id1"
        asked = admin.ListMessageRequest(topic=resource("normal"), message_id="id1")
        call = world.begin("QueryMessage", asked)
        await world.world.settle()
        (found,) = admin.ListMessageResponse.FromString(call.messages[0]).messages
        assert found.body == b"hello"

    run(scenario)


def test_a_receive_sees_them_as_they_came() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await send(world, message(), STRANGE["a group"]) == pb.OK
        call = world.begin("ReceiveMessage", receive_request())
        await world.world.settle()
        assert STRANGE["a group"] + MISTAKEN in call.messages[1]

    run(scenario)
