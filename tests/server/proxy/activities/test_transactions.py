"""EndTransaction and RecallMessage."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.support.broker_world import START_MS
from tests.support.proxy_world import ProxyWorld, message, producer_settings, resource, run


def end_request(
    transaction_id: str, resolution: int = pb.COMMIT, topic: str = "transaction"
) -> rpc.EndTransactionRequest:
    return rpc.EndTransactionRequest(
        topic=resource(topic),
        message_id="id1",
        transaction_id=transaction_id,
        resolution=pb.TransactionResolution.ValueType(resolution),
    )


async def half(world: ProxyWorld) -> str:
    answer = await world.send(message(topic="transaction", message_type=pb.TRANSACTION))
    return str(answer.entries[0].transaction_id)


def test_a_half_message_is_seen_by_nobody_before_its_commit() -> None:
    async def scenario(world: ProxyWorld) -> None:
        transaction_id = await half(world)
        assert await world.receive_nothing(topic="transaction")
        assert await world.code("EndTransaction", end_request(transaction_id)) == pb.OK
        await world.world.settle()
        (received,) = await world.receive(topic="transaction")
        assert received.system_properties.message_type == pb.TRANSACTION

    run(scenario)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (pb.COMMIT, pb.COMMIT, pb.OK),
        (pb.ROLLBACK, pb.ROLLBACK, pb.OK),
        (pb.COMMIT, pb.ROLLBACK, pb.BAD_REQUEST),
        (pb.ROLLBACK, pb.COMMIT, pb.BAD_REQUEST),
        (pb.TRANSACTION_RESOLUTION_UNSPECIFIED, pb.COMMIT, pb.OK),
    ],
)
def test_a_resolution_may_be_repeated_and_not_reversed(first: int, second: int, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        transaction_id = await half(world)
        assert await world.code("EndTransaction", end_request(transaction_id, first)) == pb.OK
        await world.world.settle()
        assert await world.code("EndTransaction", end_request(transaction_id, second)) == code

    run(scenario)


@pytest.mark.parametrize(
    ("transaction_id", "topic", "code"),
    [
        ("", "transaction", pb.INVALID_TRANSACTION_ID),
        ("  ", "transaction", pb.INVALID_TRANSACTION_ID),
        ("unknown", "transaction", pb.INVALID_TRANSACTION_ID),
        ("unknown", "a b", pb.ILLEGAL_TOPIC),
    ],
)
def test_a_transaction_nobody_began_cannot_end(transaction_id: str, topic: str, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        request = end_request(transaction_id, topic=topic)
        assert await world.code("EndTransaction", request) == code

    run(scenario)


def test_a_live_producer_is_asked_about_a_half_message_nobody_resolved() -> None:
    async def scenario(world: ProxyWorld) -> None:
        producer = world.telemetry(producer_settings("transaction"))
        transaction_id = await half(world)
        for _ in range(5):
            await world.later(2_000)
        asked = producer.commands()[1].recover_orphaned_transaction_command
        assert asked.transaction_id == transaction_id
        assert asked.message.body == b"hello"
        answer = end_request(transaction_id)
        answer.source = pb.SOURCE_SERVER_CHECK
        assert await world.code("EndTransaction", answer) == pb.OK
        await world.world.settle()
        assert len(await world.receive(topic="transaction")) == 1

    run(scenario)


def recall_request(handle: str, topic: str = "delay") -> rpc.RecallMessageRequest:
    return rpc.RecallMessageRequest(topic=resource(topic), recall_handle=handle)


def test_a_delayed_message_is_recalled_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(message(topic="delay", due_ms=START_MS + 60_000))
        handle = answer.entries[0].recall_handle
        await world.world.settle()
        recalled = await world.call("RecallMessage", recall_request(handle))
        assert (recalled.status.code, recalled.message_id) == (pb.OK, "id1")
        await world.world.settle()
        assert await world.code("RecallMessage", recall_request(handle)) == pb.MESSAGE_NOT_FOUND

    run(scenario)


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("", "delay", pb.BAD_REQUEST),
        ("x", "mixed", pb.BAD_REQUEST),
        ("x", "normal", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ("x", "nope", pb.TOPIC_NOT_FOUND),
        ("x", "a b", pb.ILLEGAL_TOPIC),
    ],
)
def test_a_recall_that_cannot_be_is_refused(handle: str, topic: str, code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("RecallMessage", recall_request(handle, topic)) == code

    run(scenario)


def test_recalling_may_be_switched_off() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("RecallMessage", recall_request("x")) == pb.UNSUPPORTED

    run(scenario, delays__recall="false")
