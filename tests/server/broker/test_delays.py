"""What producers of delayed messages see."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from cosmodrome_server.broker import timer_verbs
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import (
    BadRequest,
    MessageNotFound,
    OverloadedError,
    StoreFull,
    Unsupported,
)
from cosmodrome_server.model.log import MessageRecord, RecordKind
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.broker_world import START_MS, Run, World, bodies, new_message
from tests.support.faulty_files import FaultyFiles

HOUR_MS = 3_600_000
# A job that ended begins the next one within so many turns of the loop.
IDLE_TURNS = 6


def delayed(name: str, after_ms: int) -> NewMessage:
    message = new_message(name.encode(), message_type=MessageType.DELAY)
    message.delivery_timestamp_ms = START_MS + after_ms
    return message


async def begin(world: World, *delays_ms: int) -> list[str]:
    """A topic with one message a delay, named by it; returns the recall handles."""
    world.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
    handles = []
    for delay_ms in delays_ms:
        (receipt,) = world.broker.send("later", [delayed(str(delay_ms), delay_ms)])
        handles.append(receipt.recall_handle)
    await world.settle()
    return handles


def test_a_delayed_message_comes_when_it_is_due_and_not_before(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, 5_000, 1_000, 3_000)
        for due_ms in (1_000, 3_000, 5_000):
            await world.later(START_MS + due_ms - 1 - world.clocks.wall_ms)
            assert world.receive("later", "billing") == []
            await world.later(201)
            assert bodies(world.receive("later", "billing")) == [b"%d" % due_ms]

    run(scenario)


def test_delayed_messages_are_spread_over_the_queues_also_before_any_is_due(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("later", TopicType.DELAY, queues=4))
        for number in range(8):
            world.broker.send("later", [delayed(str(number), 1_000)])
        await world.restart()
        for number in range(8, 16):
            world.broker.send("later", [delayed(str(number), 1_000)])
        await world.later(1_201)
        deliveries = world.receive("later", "billing")
        assert sorted(delivery.message.queue_id for delivery in deliveries) == sorted(
            [0, 1, 2, 3] * 4
        )

    run(scenario)


def test_a_delivery_time_that_has_passed_means_at_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        assert await begin(world, -5_000, 0) == ["", ""]
        assert bodies(world.receive("later", "billing")) == [b"-5000", b"0"]

    run(scenario)


def test_messages_of_many_hours_come_in_their_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        delays = [40 * 24 * HOUR_MS, HOUR_MS, 30 * HOUR_MS, 2 * HOUR_MS, 10]
        await begin(world, *delays)
        seen: list[bytes] = []
        while len(seen) < len(delays):
            await world.later(10 * 60_000)
            for delivery in world.receive("later", "billing"):
                seen.append(delivery.message.body)
                world.broker.ack("billing", "later", delivery.receipt_handle)
        assert seen == [b"%d" % delay for delay in sorted(delays)]

    run(scenario)


def test_a_stopping_broker_leaves_what_is_due_to_the_next_start(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, *[HOUR_MS] * 600)
        world.clocks.pass_ms(2 * HOUR_MS)
        world.broker.send("later", [delayed("0", 0)])
        frames = len(world.log.frames)
        await world.broker.close()
        written = [record.kind for frame in world.log.frames[frames:] for record in frame]
        assert RecordKind.TIMER_FIRE not in written
        world.start(world.log.crashed())
        got: list[bytes] = []
        while deliveries := world.receive("later", "billing") or await one_more(world):
            got += bodies(deliveries)
        assert len(got) == 601

    async def one_more(world: World) -> list[Delivery]:
        for _ in range(8):
            await world.later(1)
        return world.receive("later", "billing")

    run(scenario)


def test_what_came_due_while_the_broker_was_down_comes_at_once(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, HOUR_MS, 50 * HOUR_MS, 100 * HOUR_MS)
        before = world.broker.state_hash()
        world.clocks.pass_ms(60 * HOUR_MS)
        await world.restart()
        assert world.broker.state_hash() == before
        for _ in range(4):
            await world.later(1)
        assert bodies(world.receive("later", "billing")) == [
            b"%d" % HOUR_MS,
            b"%d" % (50 * HOUR_MS),
        ]

    run(scenario)


def test_a_recalled_message_never_comes_and_recalling_it_again_says_so(run: Run) -> None:
    async def scenario(world: World) -> None:
        handles = await begin(world, 1_000, 2_000)
        assert world.broker.recall("later", handles[0]) == "1000"
        with pytest.raises(MessageNotFound):
            world.broker.recall("later", handles[0])
        await world.restart()
        await world.later(3_000)
        assert bodies(world.receive("later", "billing")) == [b"2000"]
        with pytest.raises(MessageNotFound):
            world.broker.recall("later", handles[1])

    run(scenario)


@pytest.mark.parametrize("topic_type", [TopicType.DELAY, TopicType.MIXED])
def test_a_batch_that_begins_with_what_is_due_has_handles_for_the_rest(
    run: Run, topic_type: TopicType
) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("some", topic_type, queues=1))
        batch = [delayed("now", -1), delayed("later", 2_000), delayed("never", 2_000)]
        receipts = world.broker.send("some", batch)
        assert [bool(receipt.recall_handle) for receipt in receipts] == [False, True, True]
        assert world.broker.recall("some", receipts[2].recall_handle) == "never"
        await world.later(3_000)
        assert bodies(world.receive("some", "billing")) == [b"now", b"later"]

    run(scenario)


def test_a_recall_handle_that_is_malformed_forged_or_of_another_topic_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        (handle,) = await begin(world, 1_000)
        for topic, text in (("orders", handle), ("later", "x"), ("later", handle[:-6] + "AAAA==")):
            with pytest.raises(BadRequest):
                world.broker.recall(topic, text)

    run(scenario)


def test_a_recall_handle_of_what_a_crash_took_takes_back_nothing_that_is_stored_later(
    run: Run,
) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        lost = [
            world.broker.send("later", [delayed(f"lost {number}", 5_000)])[0].recall_handle
            for number in range(4)
        ]
        world.kill()
        await begin(world, 5_000)
        # Nothing lies there yet: what will must not be taken for it.
        for handle in lost[1:]:
            with pytest.raises(MessageNotFound, match="lost"):
                world.broker.recall("later", handle)
        for number in range(4):
            world.broker.send("later", [delayed(f"kept {number}", 5_000)])
        await world.later(5_200)
        kept = {b"5000", *(b"kept %d" % number for number in range(4))}
        assert set(bodies(world.receive("later", "billing"))) == kept

    run(scenario)


def test_what_waits_is_listed_soonest_first_and_can_be_recalled_from_the_list(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, 30 * HOUR_MS, 1_000, 2 * HOUR_MS)
        listed = world.broker.scheduled("", 10)
        assert [one.message_id for one in listed] == ["1000", str(2 * HOUR_MS), str(30 * HOUR_MS)]
        assert listed[0].due_ms == START_MS + 1_000
        world.broker.recall("later", listed[1].recall_handle)
        assert len(world.broker.scheduled("later", 10)) == 2
        assert len(world.broker.scheduled("later", 1)) == 1

    run(scenario)


def test_nothing_fires_before_it_is_durable(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        world.log.holding = True
        world.broker.send("later", [delayed("a", 10)])
        await world.settle()
        await world.later(1_000)
        world.kill()
        await world.later(1_000)
        assert world.receive("later", "billing") == []

    run(scenario)


def test_there_is_a_bound_and_a_switch() -> None:
    async def main() -> None:
        world = World(BrokerSettings(delayed_max=1, is_recall_enabled=False))
        (handle,) = await begin(world, 1_000)
        with pytest.raises(OverloadedError, match="pending_max"):
            world.broker.send("later", [delayed("b", 1_000)])
        world.broker.create_topic(Topic("mixed", TopicType.MIXED))
        with pytest.raises(OverloadedError, match="pending_max"):
            world.broker.send("mixed", [new_message(b"now"), delayed("b", 1_000)])
        with pytest.raises(Unsupported):
            world.broker.recall("later", handle)
        world.broker.abandon()

    asyncio.run(main())


async def until_idle(world: World) -> None:
    """Wait until nothing is copied any more, nor will be: a job may begin where another ended."""
    idle_turns = 0
    for _ in range(10_000):
        is_copying = world.broker.is_copying
        idle_turns = 0 if is_copying else idle_turns + 1
        if idle_turns > IDLE_TURNS:
            return
        await asyncio.sleep(0.001 if is_copying else 0)
    raise AssertionError("it goes on copying")


def test_more_messages_than_a_turn_reads_are_copied_together(run: Run, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        disk = FaultyFiles()
        buckets = world.buckets = TimerBuckets(disk, tmp_path)
        world.broker.abandon()
        world.start(world.log.crashed())
        await begin(world, *range(5 * HOUR_MS, 5 * HOUR_MS + 700))
        await world.later(60_000)
        await until_idle(world)
        (hour,) = buckets.hours()
        assert len(buckets.load(hour).positions) == 700
        # One of the file, one of its directory.
        assert disk.syncs == 2

    run(scenario)


def test_what_is_due_takes_the_room_that_there_is_beside_what_others_send(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        stage_messages, refusals = world.log.stage_messages, 0

        def crowded(records: Sequence[MessageRecord]) -> list[int]:
            nonlocal refusals
            if len(records) > 1:
                refusals += 1
                raise OverloadedError("the test's log has room for one", "store.staged_mib")
            return stage_messages(records)

        due = [delayed(f"{number:03}" * 130, 1) for number in range(3)]
        for message in due:
            world.broker.send("later", [message])
        await world.settle()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.log, "stage_messages", crowded)
            for _ in range(12):
                await world.later(1_001)
        assert refusals > 0
        assert bodies(world.receive("later", "billing")) == [message.body for message in due]

    run(scenario)


@pytest.mark.parametrize("is_log_there", [True, False], ids=["from the log", "from their bucket"])
def test_large_messages_that_are_due_together_come_a_few_at_a_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_log_there: bool
) -> None:
    monkeypatch.setattr(timer_verbs, "_FIRED_BYTES_PER_TURN", 1_000)
    monkeypatch.setattr(timer_verbs, "_COPIED_BYTES_PER_JOB", 1_000)

    async def scenario(world: World) -> None:
        world.buckets = TimerBuckets(OsFiles(), tmp_path)
        world.broker.abandon()
        world.start(world.log.crashed())
        await begin(world)
        most = 0
        stage_messages = world.log.stage_messages

        def watched(records: Sequence[MessageRecord]) -> list[int]:
            nonlocal most
            most = max(most, len(records))
            return stage_messages(records)

        due = [delayed(f"{number:03}" * 130, 5 * HOUR_MS + 1) for number in range(9)]
        for message in due:
            world.broker.send("later", [message])
        await world.later(60_000)
        await until_idle(world)
        await world.later(4 * HOUR_MS)
        await until_idle(world)
        if not is_log_there:
            world.log.forget_messages()
        monkeypatch.setattr(world.log, "stage_messages", watched)
        await world.later(HOUR_MS)
        await until_idle(world)
        assert bodies(world.receive("later", "billing")) == [message.body for message in due]
        assert most == 2

    run(scenario)


def test_messages_copied_to_their_bucket_come_although_retention_took_the_log(
    run: Run, tmp_path: Path
) -> None:
    async def scenario(world: World) -> None:
        buckets = TimerBuckets(OsFiles(), tmp_path)
        world.buckets = buckets
        world.broker.abandon()
        world.start(world.log.crashed())
        await begin(world, 5 * HOUR_MS, 9 * HOUR_MS)
        await world.later(60_000)
        await until_idle(world)
        assert len(buckets.hours()) == 2
        assert world.broker.oldest_needed_position() > 1 << 40
        world.log.forget_messages()
        for _ in range(10):
            await world.later(HOUR_MS)
            await until_idle(world)
            await world.later(1_000)
            await until_idle(world)
        names = bodies(world.receive("later", "billing"))
        assert names == [b"%d" % (5 * HOUR_MS), b"%d" % (9 * HOUR_MS)]
        await world.later(3 * HOUR_MS)
        await until_idle(world)
        assert TimerBuckets(OsFiles(), tmp_path).hours() == []

    run(scenario)


def test_an_hour_that_ends_on_a_disk_without_any_space_does_not_hold_up_retention(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    def retain(now_ms: int, *_: object) -> int:
        looked.append(now_ms)
        return 0

    async def scenario(world: World) -> None:
        (handle,) = await begin(world, 5_000)
        world.broker.recall("later", handle)
        await world.settle()
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            patch.setattr(world.log, "retain", retain)
            await world.later(HOUR_MS)
            looked.clear()
            for _ in range(3):
                await world.later(10_000)
        assert len(looked) == 3

    run(scenario)
