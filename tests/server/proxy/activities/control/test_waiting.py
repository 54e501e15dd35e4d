"""ListScheduled and ListTransactions: what waits, told to operators."""

from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.support.broker_world import START_MS
from tests.support.proxy_world import ProxyWorld, message, resource, run


def test_delayed_messages_are_listed_soonest_first_and_can_be_recalled() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for after_ms in (30_000, 10_000, 20_000):
            name = str(after_ms)
            late = message(topic="delay", message_id=name, due_ms=START_MS + after_ms)
            await world.send(late)
        request = control.ListScheduledRequest(topic="delay")
        told = (await world.call("ListScheduled", request)).messages
        assert [one.message_id for one in told] == ["10000", "20000", "30000"]
        assert told[0].delivery.ToMilliseconds() == START_MS + 10_000
        recall = rpc.RecallMessageRequest(
            topic=resource("delay"), recall_handle=told[1].recall_handle
        )
        assert await world.code("RecallMessage", recall) == pb.OK
        request.max_messages = 1
        told = (await world.call("ListScheduled", request)).messages
        assert [one.message_id for one in told] == ["10000"]
        elsewhere = control.ListScheduledRequest(topic="mixed")
        assert len((await world.call("ListScheduled", elsewhere)).messages) == 0

    run(scenario)


def test_half_messages_are_listed_until_they_end() -> None:
    async def scenario(world: ProxyWorld) -> None:
        half = message(topic="transaction", message_type=pb.TRANSACTION, message_id="h")
        sent = await world.send(half)
        request = control.ListTransactionsRequest(topic="transaction")
        (told,) = (await world.call("ListTransactions", request)).transactions
        assert told.transaction_id == sent.entries[0].transaction_id
        assert (told.topic, told.checks, told.parked) == ("transaction", 0, False)
        assert told.stored.ToMilliseconds() == START_MS
        end = rpc.EndTransactionRequest(
            topic=resource("transaction"),
            message_id="h",
            transaction_id=told.transaction_id,
            resolution=pb.COMMIT,
        )
        assert await world.code("EndTransaction", end) == pb.OK
        assert len((await world.call("ListTransactions", request)).transactions) == 0

    run(scenario)


def test_an_unknown_topic_is_not_found_or_has_nothing() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for name, request in (
            ("ListScheduled", control.ListScheduledRequest(topic="nowhere")),
            ("ListTransactions", control.ListTransactionsRequest(topic="nowhere")),
        ):
            assert await world.code(name, request) in {pb.OK, pb.TOPIC_NOT_FOUND}

    run(scenario)
