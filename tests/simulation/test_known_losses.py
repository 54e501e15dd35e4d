"""The reference's losses, one test each: what went wrong there must not be possible here.

Named after the issues of apache/rocketmq (storage.md 1.2). Those about the disk itself are in
tests/server/store: a bad record that cut off everything after it (test_scanner), a failed
fsync tried again (test_faults), a checkpoint that was not atomic with the log, #678
(test_power_cuts: without a checkpoint the log alone gives the same state), a file per queue,
#7064 (no queue has a file: benchmarks.scale memory has 100,000).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from cosmodrome_server.errors import InvalidReceiptHandle, ReadFailed
from cosmodrome_server.model.group import CustomizedBackoff, Group
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import World, bodies, new_message

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        world.broker.create_topic(Topic("orders", queues=2))
        world.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
        backoff = CustomizedBackoff((1_000,))
        world.broker.create_group(Group("billing", max_attempts=16, backoff=backoff))
        await world.settle()
        await scenario(world)

    asyncio.run(main())


async def send(world: World, *names: str) -> None:
    for name in names:
        await world.send("orders", new_message(name.encode()))


async def send_delayed(world: World, name: str, after_ms: int) -> None:
    message: NewMessage = new_message(name.encode(), message_type=MessageType.DELAY)
    message.delivery_timestamp_ms = world.clocks.wall_ms + after_ms
    await world.send("later", message)


async def drain(world: World, topic: str, rounds: int = 6) -> list[bytes]:
    """Acknowledge everything that comes; the bodies in their order."""
    seen: list[bytes] = []
    for _ in range(rounds):
        await world.later(10_001)
        deliveries = world.receive(topic, "billing")
        ack(world, topic, deliveries)
        seen += bodies(deliveries)
        await world.settle()
    return seen


def ack(world: World, topic: str, deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        world.broker.ack("billing", topic, delivery.receipt_handle)


def test_7914_what_was_in_flight_at_a_crash_comes_again() -> None:
    async def scenario(world: World) -> None:
        await send(world, "a", "b", "c")
        assert len(world.receive("orders", "billing")) == 3
        await world.settle()
        world.kill()
        assert sorted(await drain(world, "orders")) == [b"a", b"b", b"c"]

    run(scenario)


def test_10667_a_redelivery_that_failed_again_and_again_is_not_forgotten() -> None:
    async def scenario(world: World) -> None:
        await send(world, "a")
        for attempt in range(1, 9):
            (delivery,) = world.receive("orders", "billing")
            assert delivery.attempt == attempt
            await world.settle()
            if attempt % 3 == 0:
                await world.restart()
            await world.later(10_001)
        assert await drain(world, "orders") == [b"a"]

    run(scenario)


def test_10985_a_redelivery_that_could_not_be_read_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World) -> None:
        await send(world, "a", "b")
        assert len(world.receive("orders", "billing")) == 2
        await world.later(10_001)

        def refused(*_: object) -> NoReturn:
            raise ReadFailed("the disk refuses it now")

        with monkeypatch.context() as patch:
            for name in ("read", "read_many"):
                patch.setattr(world.log, name, refused)
            for _ in range(3):
                with pytest.raises(ReadFailed):
                    world.receive("orders", "billing")
                await world.later(10_001)
        world.kill()
        assert sorted(await drain(world, "orders")) == [b"a", b"b"]

    run(scenario)


def test_8835_only_what_was_not_acknowledged_comes_again_and_each_once() -> None:
    async def scenario(world: World) -> None:
        names = [f"m{number}" for number in range(20)]
        await send(world, *names)
        deliveries = world.receive("orders", "billing")
        ack(world, "orders", deliveries[::2])
        await world.settle()
        world.kill()
        again = await drain(world, "orders")
        assert sorted(again) == sorted(bodies(deliveries[1::2]))

    run(scenario)


def test_7724_an_acknowledgement_of_an_old_delivery_settles_no_other_message() -> None:
    async def scenario(world: World) -> None:
        await send(world, "a", "b")
        first = world.receive("orders", "billing")
        await world.later(10_001)
        second = world.receive("orders", "billing")
        ack(world, "orders", second[:1])
        world.broker.ack("billing", "orders", second[0].receipt_handle)
        await world.settle()
        (late,) = [one for one in first if one.message.body == second[1].message.body]
        with pytest.raises(InvalidReceiptHandle):
            world.broker.ack("billing", "orders", late.receipt_handle)
        assert await drain(world, "orders") == [second[1].message.body]

    run(scenario)


def test_offsets_saved_every_five_seconds_acknowledged_is_acknowledged_after_a_kill() -> None:
    async def scenario(world: World) -> None:
        await send(world, "a", "b")
        ack(world, "orders", world.receive("orders", "billing"))
        await world.settle()
        world.kill()
        assert await drain(world, "orders") == []

    run(scenario)


def test_a_wheel_of_seven_days_a_broker_that_was_down_for_longer_loses_no_timer() -> None:
    async def scenario(world: World) -> None:
        await send_delayed(world, "soon", 60_000)
        await send_delayed(world, "in 39 days", 39 * DAY_MS)
        world.kill()
        world.clocks.pass_ms(8 * DAY_MS)
        await world.restart()
        assert await drain(world, "later") == [b"soon"]
        world.clocks.pass_ms(32 * DAY_MS)
        await world.restart()
        assert await drain(world, "later") == [b"in 39 days"]

    run(scenario)


def test_7927_a_message_far_off_is_delivered_once_however_often_the_broker_starts() -> None:
    async def scenario(world: World) -> None:
        await send_delayed(world, "far", 5 * DAY_MS)
        for _ in range(10):
            await world.later(12 * HOUR_MS)
            await world.restart()
        assert await drain(world, "later", 20) == [b"far"]

    run(scenario)


def test_11156_timers_near_the_end_of_an_hour_fire_once_and_all() -> None:
    async def scenario(world: World) -> None:
        left_ms = HOUR_MS - world.clocks.wall_ms % HOUR_MS
        names = {b"%d" % offset for offset in range(-250, 251, 50)}
        for offset in range(-250, 251, 50):
            await send_delayed(world, str(offset), left_ms + offset)
        await world.later(left_ms)
        world.kill()
        seen = await drain(world, "later", 10)
        assert sorted(seen) == sorted(names)

    run(scenario)


def test_5091_a_start_with_many_queues_costs_what_the_checkpoint_costs() -> None:
    async def scenario(world: World) -> None:
        for number in range(300):
            world.broker.create_topic(Topic(f"t{number}", queues=64))
        await world.settle()
        await world.restart()
        assert len(world.broker.topics()) == 302
        assert list(world.log.replay()) == []

    run(scenario)
