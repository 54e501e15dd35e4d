"""Checkpoints, bounds, renewal and stopping."""

import asyncio
from typing import NoReturn

import pytest

from cosmodrome_server.broker import settle_verbs
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import InvalidReceiptHandle, OverloadedError, StoreFull
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import Topic
from tests.support.broker_world import Replies, Run, World, bodies, new_message


def waiter(world: World, given: list[list[bytes]], count: int = 32) -> Waiter:
    query = ReceiveQuery("billing", "orders", ANY_QUEUE, "c", count, 60_000)
    deadline_ms = world.clocks.run_ms + 20_000

    def on_ready(deliveries: list[Delivery]) -> None:
        given.append(bodies(deliveries))

    return Waiter(query, deadline_ms, on_ready)


def test_a_start_from_a_checkpoint_gives_the_same_state_as_from_the_log(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", *[new_message(b"%d" % number) for number in range(20)])
        _, second, *_ = world.receive("orders", "billing", 10)
        world.broker.ack("billing", "orders", second.receipt_handle)
        await world.later(30_000)
        world.receive("orders", "billing", 3)
        await world.settle()
        assert world.log.rows_saved
        world.broker.ack("billing", "orders", world.receive("orders", "billing")[0].receipt_handle)
        await world.settle()
        before = world.broker.state_hash()
        crashed = world.log.crashed()
        without = world.log.crashed()
        without.forget_checkpoint()
        for log in (crashed, without):
            world.broker.abandon()
            world.start(log)
            world.broker.wake()
            assert world.broker.state_hash() == before

    run(scenario)


def test_a_delivery_is_renewed_while_its_client_lives_under_its_first_handle(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (first,) = world.receive("orders", "billing", invisible_ms=60_000, auto_renew=True)
        for _ in range(120):
            await world.later(5_000)
            assert world.receive("orders", "billing", auto_renew=True) == []
        world.broker.ack("billing", "orders", first.receipt_handle)

    run(scenario)


def test_what_a_client_that_went_away_had_comes_again_after_a_second(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (first,) = world.receive("orders", "billing", invisible_ms=60_000, auto_renew=True)
        world.broker.client_gone("client")
        await world.later(999)
        assert world.receive("orders", "billing") == []
        await world.later(1)
        (second,) = world.receive("orders", "billing")
        assert second.attempt == 2
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", first.receipt_handle)

    run(scenario)


def test_renewing_ends_after_its_total_with_one_rest_by_the_groups_backoff(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        world.receive("orders", "billing", invisible_ms=60_000, auto_renew=True)
        elapsed = 0
        while not (again := world.receive("orders", "billing", auto_renew=True)):
            await world.later(5_000)
            elapsed += 5_000
            assert elapsed < 4 * 3_600_000
        assert again[0].attempt == 2
        assert 10_800_000 - 10_000 <= elapsed <= 10_800_000 + 10_000

    run(scenario)


def test_the_last_renewal_is_one_record(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        world.receive("orders", "billing", invisible_ms=60_000, auto_renew=True)
        for _ in range(10_790_000 // 5_000):
            await world.later(5_000)
        for _ in range(100):
            await world.later(100)
        kinds = [record.kind for frame in world.log.frames for record in frame]
        # After 50 s, then 10 s before the end of each term of 1, 3, 5, 10 and 30 minutes and of
        # an hour, the last one cut short: and there.
        assert kinds.count(RecordKind.RENEW) == 9
        await world.later(1_000)
        assert bodies(world.receive("orders", "billing")) == [b"a"]

    run(scenario)


def test_what_was_delivered_before_a_restart_is_not_renewed_also_for_a_client_that_is_back(
    run: Run,
) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"its reply died with the process"))
        world.receive("orders", "billing", invisible_ms=60_000, auto_renew=True)
        await world.restart()
        assert world.receive("orders", "billing", auto_renew=True) == []
        for _ in range(11):
            await world.later(5_000)
        assert world.receive("orders", "billing", auto_renew=True) == []
        await world.later(5_000)
        (again,) = world.receive("orders", "billing", auto_renew=True)
        assert again.attempt == 2

    run(scenario)


def test_no_more_is_delivered_than_a_group_may_have_in_flight(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_group(Group("billing", attributes={"inflight.max": "2"}))
        await world.send("orders", *[new_message(b"%d" % number) for number in range(4)])
        first, _ = world.receive("orders", "billing")
        given: list[list[bytes]] = []
        assert world.receive("orders", "billing") == []
        world.broker.wait(waiter(world, given))
        await world.settle()
        assert given == []
        world.broker.ack("billing", "orders", first.receipt_handle)
        await world.settle()
        assert given == [[b"2"]]

    run(scenario)


def test_more_waiters_than_allowed_are_refused() -> None:
    async def main() -> None:
        world = World(BrokerSettings(is_auto_create=True, waiters_per_group=2))
        given: list[list[bytes]] = []
        for _ in range(2):
            world.broker.wait(waiter(world, given))
        with pytest.raises(OverloadedError, match="waiters_per_group"):
            world.broker.wait(waiter(world, given))
        await world.broker.close()
        assert given == [[], []]

    asyncio.run(main())


def test_what_a_full_disk_lets_a_receive_lease_is_delivered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        assert bodies(world.receive("orders", "billing")) == [b"a"]
        await world.later(10_000)
        await world.send("orders", new_message(b"b"))
        real, left = world.log.stage, 1

        def stage(kind: RecordKind, payload: bytes) -> int:
            nonlocal left
            if left == 0:
                raise StoreFull("no space even for this: the test says so")
            left -= 1
            return real(kind, payload)

        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", stage)
            (first,) = world.receive("orders", "billing")
            with pytest.raises(StoreFull):
                world.receive("orders", "billing")
        (second,) = world.receive("orders", "billing")
        found = {(bytes(each.message.body), each.attempt) for each in (first, second)}
        assert found == {(b"a", 2), (b"b", 1)}

    run(scenario)


def test_dead_letters_are_copied_by_so_many_bytes_a_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_verbs, "_DEAD_LETTER_BYTES_PER_TURN", 2)

    async def scenario(world: World) -> None:
        world.broker.create_group(Group("once", max_attempts=1))
        await world.send("orders", *[new_message(b"%d" % number) for number in range(5)])
        assert len(world.receive("orders", "once")) == 5
        world.clocks.pass_ms(10_000)
        world.broker.wake()
        assert world.broker.statistics().dead_letters == {("orders", "once"): 2}
        await world.settle()
        assert world.broker.statistics().dead_letters == {("orders", "once"): 5}

    run(scenario)


def test_a_full_store_refuses_messages_and_keeps_exhausted_ones_for_later(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_group(Group("billing", max_attempts=1))
        await world.send("orders", new_message(b"a"), new_message(b"b"))
        first, _ = world.receive("orders", "billing")
        world.log.is_full = True
        with pytest.raises(StoreFull):
            world.broker.send("orders", [new_message()])
        world.broker.ack("billing", "orders", first.receipt_handle)
        await world.later(10_000)
        world.log.is_full = False
        await world.later(1_000)
        assert bodies(world.receive("%DLQ%billing", "billing")) == [b"b"]

    run(scenario)


def test_who_waits_is_answered_in_time_when_renewals_find_no_space(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        assert len(world.receive("orders", "billing", auto_renew=True, invisible_ms=20_001)) == 1
        given: list[list[bytes]] = []
        world.broker.wait(waiter(world, given))
        await world.settle()
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(20_000)
            assert given == [[]]

    run(scenario)


def test_renewals_that_found_no_space_are_made_when_there_is_some(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"), new_message(b"b"))
        for _ in range(2):
            world.receive("orders", "billing", count=1, auto_renew=True, invisible_ms=60_000)
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(50_000)
        await world.later(1_000)
        await world.later(10_000)
        assert world.receive("orders", "billing") == []

    run(scenario)


def test_replies_leave_with_the_frame_that_holds_what_they_answer(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.log.holding = True
        replies = Replies()
        world.broker.send("orders", [new_message(b"a")])
        world.broker.reply_when_durable(replies, "first", b"")
        await world.settle()
        world.broker.send("orders", [new_message(b"b")])
        world.broker.reply_when_durable(replies, "second", b"")
        await world.settle()
        assert replies.given == []
        world.log.release()
        assert replies.given == ["first"]
        await world.settle()
        assert replies.given == ["first"]
        world.log.release()
        assert replies.given == ["first", "second"]

    run(scenario)


def test_a_reply_without_a_record_of_its_own_waits_for_what_it_rests_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (delivery,) = world.receive("orders", "billing")
        await world.settle()
        world.log.holding = True
        replies = Replies()
        world.broker.ack("billing", "orders", delivery.receipt_handle)
        world.broker.reply_when_durable(replies, "first", b"")
        await world.settle()
        world.broker.ack("billing", "orders", delivery.receipt_handle)
        world.broker.reply_when_durable(replies, "again", b"")
        await world.settle()
        assert replies.given == []
        await world.release()
        assert replies.given == ["first", "again"]

    run(scenario)


def test_a_kill_loses_only_what_was_not_answered(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"kept"))
        world.log.holding = True
        await world.send("orders", new_message(b"lost"))
        world.kill()
        assert bodies(world.receive("orders", "billing")) == [b"kept"]

    run(scenario)


def test_a_deleted_topic_answers_who_waits_and_comes_back_empty(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"old"))
        world.receive("orders", "billing")
        world.broker.delete_topic("orders")
        await world.settle()
        world.broker.create_topic(Topic("orders", queues=2))
        assert world.receive("orders", "billing") == []
        await world.send("orders", new_message(b"new"))
        assert bodies(world.receive("orders", "billing")) == [b"new"]

    run(scenario)


def test_a_wall_clock_that_jumps_ends_no_delivery(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (delivery,) = world.receive("orders", "billing")
        for jump_ms in (40 * 86_400_000, -80 * 86_400_000):
            world.clocks.wall_ms += jump_ms
            await world.later(1)
            assert world.receive("orders", "billing") == []
        world.broker.ack("billing", "orders", delivery.receipt_handle)

    run(scenario)


def test_store_times_never_go_back_also_across_a_restart(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        await world.restart()
        world.clocks.wall_ms -= 86_400_000
        await world.send("orders", new_message(b"b"))
        first, second = world.receive("orders", "billing")
        assert second.message.store_timestamp_ms >= first.message.store_timestamp_ms

    run(scenario)


def test_a_deleted_group_forgets_and_its_waiters_are_answered(run: Run) -> None:
    async def scenario(world: World) -> None:
        await world.send("orders", new_message(b"a"))
        (delivery,) = world.receive("orders", "billing")
        given: list[list[bytes]] = []
        world.broker.wait(waiter(world, given))
        world.broker.delete_group("billing")
        await world.settle()
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", delivery.receipt_handle)
        await world.later(20_000)
        assert given == [[]]
        world.broker.create_group(Group("billing"))
        assert bodies(world.receive("orders", "billing")) == [b"a"]

    run(scenario)
