"""What producers and consumers of an unordered group see."""

import asyncio

import pytest

from cosmodrome_server.errors import InvalidReceiptHandle, TopicNotFound
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, PullQuery, ReceiveQuery, Waiter
from tests.support.broker_world import Replies, Run, World, bodies, new_message


def test_what_was_sent_is_received_once_and_acknowledged_for_good(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"), new_message(b"b"))
        deliveries = world.receive("orders", "billing")
        assert bodies(deliveries) == [b"a", b"b"]
        assert [delivery.attempt for delivery in deliveries] == [1, 1]
        assert world.receive("orders", "billing") == []
        for delivery in deliveries:
            world.broker.ack("billing", "orders", delivery.receipt_handle)
            world.broker.ack("billing", "orders", delivery.receipt_handle)
        await world.later(60_000)
        assert world.receive("orders", "billing") == []

    run(scenario)


def test_a_message_is_received_before_it_is_durable_and_the_reply_leaves_after(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.log.holding = True
        await world.send("orders", new_message(b"a"))
        assert bodies(world.receive("orders", "billing")) == [b"a"]
        replies = Replies()
        world.broker.reply_when_durable(replies, "receive", b"a")
        await world.settle()
        assert replies.given == []
        await world.release()
        assert replies.given == ["receive"]

    run(scenario)


def test_a_message_is_pulled_once_it_is_durable(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.log.holding = True
        await world.send("orders", new_message(b"a"))
        assert world.broker.bounds("orders", 0).max_offset == 0
        assert world.broker.pull(PullQuery("", "orders", 0, 0, 32)).messages == []
        await world.release()
        (pulled,) = world.broker.pull(PullQuery("", "orders", 0, 0, 32)).messages
        assert bytes(pulled.body) == b"a"

    run(scenario)


def test_who_waits_is_served_in_the_frame_that_stores_the_message(run: Run) -> None:
    async def scenario(world: World) -> None:
        served: list[Delivery] = []
        query = ReceiveQuery("billing", "orders", ANY_QUEUE, "client", 32, 10_000)
        world.broker.wait(Waiter(query, 1 << 60, served.extend))
        await world.settle()
        frames = world.broker.statistics().frames
        await world.send("orders", new_message(b"a"))
        assert bodies(served) == [b"a"]
        assert world.broker.statistics().frames == frames + 1

    run(scenario)


def test_the_handle_of_a_lost_message_settles_not_the_one_that_has_its_offset(run: Run) -> None:
    """In memory only, or durable in less than sync mode: the crash takes message and lease."""

    async def scenario(world: World) -> None:
        world.log.holding = True
        await world.send("orders", new_message(b"lost"))
        (lost,) = world.receive("orders", "billing")
        world.clocks.pass_ms(1)
        world.kill()
        await world.send("orders", new_message(b"next"))
        (following,) = world.receive("orders", "billing")
        assert following.message.queue_offset == lost.message.queue_offset
        world.broker.change_invisible_duration(
            "billing", "orders", following.receipt_handle, 1_000, suspend=True
        )
        await world.later(1_000)
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", lost.receipt_handle)
        assert bodies(world.receive("orders", "billing")) == [b"next"]

    run(scenario)


def test_nor_does_it_two_starts_later_by_a_clock_that_went_back(run: Run) -> None:
    """Where time stands still lease ids go on from the records: none may be given twice."""

    async def scenario(world: World) -> None:
        world.clocks.wall_ms -= 3_600_000
        world.log.holding = True
        await world.send("orders", new_message(b"lost"))
        (lost,) = world.receive("orders", "billing")
        world.kill()
        await world.send("orders", new_message(b"next"))
        (following,) = world.receive("orders", "billing")
        assert following.message.queue_offset == lost.message.queue_offset
        await world.settle()
        world.kill()
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", lost.receipt_handle)
        await world.later(10_001)
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", lost.receipt_handle)
        assert bodies(world.receive("orders", "billing")) == [b"next"]

    run(scenario)


def test_an_expired_delivery_comes_again_with_the_next_attempt(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (first,) = world.receive("orders", "billing", invisible_ms=10_000)
        await world.later(9_999)
        assert world.receive("orders", "billing") == []
        await world.later(1)
        (second,) = world.receive("orders", "billing")
        assert second.attempt == 2
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", first.receipt_handle)
        world.broker.ack("billing", "orders", second.receipt_handle)

    run(scenario)


def test_a_message_delivered_as_often_as_allowed_becomes_a_dead_letter_without_a_poll(
    run: Run,
) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a", message_id="id-1"))
        for attempt in (1, 2, 3):
            (delivery,) = world.receive("orders", "billing")
            assert delivery.attempt == attempt
            await world.later(10_000)
        assert world.receive("orders", "billing") == []
        (dead,) = world.receive("%DLQ%billing", "billing")
        assert bytes(dead.message.body) == b"a"
        assert dead.attempt == 1
        assert wire.dead_letter_origin(dead.message.system) == ("orders", "id-1")
        assert world.broker.statistics().dead_letters == {("orders", "billing"): 1}

    run(scenario)


def test_changing_the_invisible_duration_gives_a_new_handle_and_ends_the_old_one(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (first,) = world.receive("orders", "billing")
        new = world.broker.change_invisible_duration(
            "billing", "orders", first.receipt_handle, 20_000, suspend=False
        )
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", first.receipt_handle)
        await world.later(15_000)
        assert world.receive("orders", "billing") == []
        world.broker.ack("billing", "orders", new)
        await world.later(15_000)
        assert world.receive("orders", "billing") == []

    run(scenario)


def test_a_suspended_message_keeps_its_attempt(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (first,) = world.receive("orders", "billing")
        world.broker.change_invisible_duration(
            "billing", "orders", first.receipt_handle, 100, suspend=True
        )
        await world.later(100)
        (second,) = world.receive("orders", "billing")
        assert second.attempt == 1

    run(scenario)


def test_forwarding_moves_a_message_to_the_dead_letters_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (delivery,) = world.receive("orders", "billing")
        world.broker.forward_to_dead_letter_queue("billing", "orders", delivery.receipt_handle)
        with pytest.raises(InvalidReceiptHandle):
            world.broker.forward_to_dead_letter_queue("billing", "orders", delivery.receipt_handle)
        await world.settle()
        assert bodies(world.receive("%DLQ%billing", "billing")) == [b"a"]

    run(scenario)


def test_waiting_receives_are_served_in_the_order_they_came(run: Run) -> None:
    async def scenario(world: World) -> None:
        served: list[tuple[str, list[bytes]]] = []

        def waiter(name: str) -> Waiter:
            def on_ready(deliveries: list[Delivery]) -> None:
                served.append((name, bodies(deliveries)))

            query = ReceiveQuery("billing", "orders", ANY_QUEUE, name, 1, 60_000)
            return Waiter(query, world.clocks.run_ms + 20_000, on_ready)

        waiters = [waiter("first"), waiter("cancelled"), waiter("second"), waiter("third")]
        for each in waiters:
            world.broker.wait(each)
        world.broker.cancel(waiters[1])
        await world.send("orders", new_message(b"a"), new_message(b"b"))
        assert served == [("first", [b"a"]), ("second", [b"b"])]
        await world.later(20_000)
        assert served[2:] == [("third", [])]
        assert world.broker.statistics().waiters == 0

    run(scenario)


def test_a_restart_continues_where_the_log_ends(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", *[new_message(b"%d" % number) for number in range(10)])
        deliveries = world.receive("orders", "billing", 4)
        world.broker.ack("billing", "orders", deliveries[1].receipt_handle)
        await world.settle()
        before = world.broker.state_hash()
        await world.restart()
        assert world.broker.state_hash() == before
        world.broker.ack("billing", "orders", deliveries[0].receipt_handle)
        assert bodies(world.receive("orders", "billing")) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        await world.later(10_000)
        assert bodies(world.receive("orders", "billing")) == [
            b"2",
            b"3",
            *(b"%d" % number for number in range(4, 10)),
        ]

    run(scenario)


def test_acks_of_one_receive_are_one_record_and_survive_a_restart(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", *[new_message(b"%d" % number) for number in range(6)])
        handles = [one.receipt_handle for one in world.receive("orders", "billing", 5)]
        await world.settle()
        before = len(world.log.frames)
        assert world.broker.ack_many("billing", "orders", handles[:4]) == [None] * 4
        await world.settle()
        (frame,) = world.log.frames[before:]
        assert [record.kind for record in frame] == [RecordKind.ACK_MANY]
        again = world.broker.ack_many("billing", "orders", ["forged", *handles, handles[4]])
        assert [result is None for result in again] == [False] + [True] * 6
        await world.restart()
        await world.later(60_000)
        assert bodies(world.receive("orders", "billing")) == [b"5"]

    run(scenario)


def test_an_unknown_topic_is_said_to_be_unknown(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(TopicNotFound, match="nowhere"):
            world.broker.send("nowhere", [new_message()])

    run(scenario)


def test_a_receipt_handle_of_another_group_or_forged_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (delivery,) = world.receive("orders", "billing")
        handle = delivery.receipt_handle
        for group, text in (
            ("ledger", handle),
            ("billing", "x" + handle[1:]),
            ("billing", handle[:-1]),
            ("billing", ""),
        ):
            with pytest.raises(InvalidReceiptHandle):
                world.broker.ack(group, "orders", text)

    run(scenario)


def test_messages_of_a_failed_write_to_the_client_come_again_as_the_same_attempt(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"), new_message(b"b"))
        deliveries = world.receive("orders", "billing")
        world.broker.return_undelivered("billing", [deliveries[1].receipt_handle])
        (again,) = world.receive("orders", "billing")
        assert (again.message.body, again.attempt) == (b"b", 1)

    run(scenario)


def test_a_failed_write_is_reported_once_and_nothing_is_answered(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.log.holding = True
        answered: list[object] = []

        class Sink:
            def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
                answered.extend(replies)

        world.broker.send("orders", [new_message()])
        world.broker.reply_when_durable(Sink(), 1, b"ok")
        await asyncio.sleep(0)
        world.log.fail(OSError("injected"))
        await world.settle()
        assert len(world.fatal) == 1
        assert answered == []

    run(scenario)
