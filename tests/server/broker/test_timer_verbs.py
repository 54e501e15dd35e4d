"""Delayed messages whose disk, log or topic is not there when they are due."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from cosmodrome_server.broker.bucket_worker import BucketWorker
from cosmodrome_server.errors import ReadFailed
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store.files import File
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.broker_world import START_MS, World, bodies, new_message
from tests.support.faulty_files import FaultyFiles

HOUR_MS = 3_600_000
DIRECTORY = Path("/timer")


class SlowFiles(FaultyFiles):
    """A disk on which files are opened when `is_free` is set, and not before."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        assert self.is_free.wait(30)
        return super().open(path, create=create)


def delayed(name: str, after_ms: int) -> NewMessage:
    message = new_message(name.encode(), message_type=MessageType.DELAY)
    message.delivery_timestamp_ms = START_MS + after_ms
    return message


async def idle(world: World) -> None:
    for _ in range(1_000):
        await world.settle()
        # Between the end of one copy and the begin of the next there is a turn of the loop.
        if not world.broker.is_copying:
            await world.settle()
            if not world.broker.is_copying:
                return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to rest")


async def wait(world: World, *steps_ms: int) -> None:
    for step_ms in steps_ms:
        await world.later(step_ms)
        await idle(world)


@asynccontextmanager
async def opened(disk: FaultyFiles) -> AsyncIterator[World]:
    world = World()
    world.broker.abandon()
    world.buckets = TimerBuckets(disk, DIRECTORY)
    world.start(world.log)
    world.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
    world.broker.create_topic(Topic("sooner", TopicType.DELAY, queues=1))
    world.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    await world.settle()
    yield world
    world.broker.abandon()


async def copied(world: World, *messages: NewMessage, topic: str = "later") -> list[str]:
    """Messages that only their buckets have; their recall handles."""
    handles = [receipt.recall_handle for receipt in world.broker.send(topic, messages)]
    await world.settle()
    await wait(world, 60_000)
    world.log.forget_messages()
    return handles


async def test_what_only_buckets_have_is_listed_too() -> None:
    async with opened(FaultyFiles()) as world:
        await copied(world, delayed("a", 5 * HOUR_MS), delayed("b", 9 * HOUR_MS))
        world.broker.send("sooner", [delayed("c", 6 * HOUR_MS)])
        found = world.broker.scheduled("later", 9)
        assert [one.message_id for one in found] == ["a", "b"]
        assert [one.message_id for one in world.broker.scheduled("", 2)] == ["a", "c"]


async def test_a_bucket_that_cannot_be_read_for_a_while_holds_its_messages_back() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        await copied(world, delayed("a", 5 * HOUR_MS))
        # Loaded an hour before, fetched when due.
        await wait(world, 4 * HOUR_MS, 1_000)
        disk.unreadable = (".tb", 0, 1 << 30)
        await wait(world, HOUR_MS, 1_000, 1_000)
        assert world.receive("later", "billing") == []
        disk.unreadable = None
        await wait(world, 1_001, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"a"]
        assert world.broker.statistics().lost_messages == 0


async def test_a_bucket_is_read_again_also_while_the_wall_clock_is_set_back() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        await copied(world, delayed("a", 5 * HOUR_MS))
        await wait(world, 5 * HOUR_MS - 61_000)
        disk.unreadable = (".tb", 0, 1 << 30)
        await wait(world, 1_500)
        # It is due by the log's time, which does not go back.
        world.clocks.wall_ms -= HOUR_MS
        disk.unreadable = None
        await wait(world, 1_000, 1_000, 1_000)
        assert bodies(world.receive("later", "billing")) == [b"a"]


async def test_a_message_damaged_in_its_bucket_is_counted_and_holds_nobody_up() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        await copied(world, delayed("a" * 40, 5 * HOUR_MS), delayed("b", 5 * HOUR_MS + 1))
        await wait(world, 4 * HOUR_MS, 1_000)
        (name,) = disk.names(DIRECTORY)
        content = disk.content(DIRECTORY / name)
        content[content.rindex(b"a" * 40)] ^= 1
        await wait(world, HOUR_MS, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"b"]
        assert world.broker.statistics().lost_messages == 1


async def test_a_start_that_knows_nothing_of_a_copy_finds_it_when_the_log_has_let_go() -> None:
    """Retention took the segment, then a crash the checkpoint that would have told of the copy."""
    disk = FaultyFiles()
    async with opened(disk) as world:
        await copied(world, delayed("a", 5 * HOUR_MS))
        world.kill()
        world.log.forget_messages()
        await wait(world, 5 * HOUR_MS, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"a"]
        assert world.broker.statistics().lost_messages == 0


async def test_a_bucket_stays_while_a_crash_can_take_its_fires_back() -> None:
    async with opened(FaultyFiles()) as world:
        await copied(world, delayed("a", 5 * HOUR_MS))
        # A checkpoint knows that it was copied; the log has it no more.
        await world.restart()
        world.log.forget_messages()
        await wait(world, 4 * HOUR_MS)
        world.log.holding = True
        await wait(world, HOUR_MS, 1, 2 * HOUR_MS, HOUR_MS)
        world.kill()
        world.log.forget_messages()
        await wait(world, 1, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"a"]
        assert world.broker.statistics().lost_messages == 0


async def test_what_is_due_waits_for_space() -> None:
    async with opened(FaultyFiles()) as world:
        world.broker.send("later", [delayed("a", 1_000)])
        await wait(world, 0)
        world.log.is_full = True
        await wait(world, 2_000, 1)
        assert world.receive("later", "billing") == []
        world.log.is_full = False
        await wait(world, 1_001, 1)
        assert bodies(world.receive("later", "billing")) == [b"a"]


async def test_what_is_due_for_a_topic_that_is_gone_is_gone_with_it() -> None:
    async with opened(FaultyFiles()) as world:
        world.broker.send("sooner", [delayed("a", 1_000)])
        world.broker.send("later", [delayed("b", 1_000)])
        world.broker.delete_topic("sooner")
        await wait(world, 2_000, 1)
        assert bodies(world.receive("later", "billing")) == [b"b"]
        assert world.broker.statistics().lost_messages == 0


async def test_recalled_messages_are_not_copied() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        (receipt,) = world.broker.send("later", [delayed("a", 5 * HOUR_MS)])
        world.broker.recall("later", receipt.recall_handle)
        await wait(world, 60_000)
        assert disk.names(DIRECTORY) == []


async def test_what_only_its_bucket_has_can_be_recalled() -> None:
    async with opened(FaultyFiles()) as world:
        (handle,) = await copied(world, delayed("a", 5 * HOUR_MS))
        assert world.broker.recall("later", handle) == "a"
        await world.settle()
        await wait(world, 5 * HOUR_MS, 1, 1)
        assert world.receive("later", "billing") == []
        assert world.broker.statistics().lost_messages == 0


async def test_what_comes_while_others_are_copied_is_copied_next() -> None:
    disk = SlowFiles()
    async with opened(disk) as world:
        world.broker.send("later", [delayed("a", 5 * HOUR_MS)])
        await world.settle()
        await world.later(60_000)
        world.broker.send("later", [delayed("b", 9 * HOUR_MS)])
        await world.settle()
        assert world.broker.is_copying
        disk.is_free.set()
        await idle(world)
        assert len(disk.names(DIRECTORY)) == 2


async def test_a_log_that_cannot_be_read_is_copied_later(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        world.broker.send("later", [delayed("a", 5 * HOUR_MS)])

        def refused(position: int) -> NoReturn:
            raise ReadFailed(f"the disk refuses position {position} now")

        with monkeypatch.context() as patch:
            patch.setattr(world.log, "read_position", refused)
            await wait(world, 60_000)
            assert disk.names(DIRECTORY) == []
        await wait(world, 1_000)
        assert len(disk.names(DIRECTORY)) == 1


async def test_after_a_failed_write_messages_stay_in_the_log() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        disk.fail_sync_after = 0
        world.broker.send("later", [delayed("a", 5 * HOUR_MS)])
        await wait(world, 60_000)
        disk.fail_sync_after = None
        world.broker.send("later", [delayed("b", 5 * HOUR_MS)])
        await wait(world, 60_000)
        assert world.broker.oldest_needed_position() < 1 << 40
        await wait(world, 4 * HOUR_MS, HOUR_MS, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"a", b"b"]


async def test_a_full_disk_holds_copies_up_until_there_is_space_again() -> None:
    disk = FaultyFiles()
    async with opened(disk) as world:
        world.broker.send("later", [delayed("a", 5 * HOUR_MS)])
        for bytes_left in (10, 40):
            # First not even for the head of a bucket, then not for the message.
            disk.bytes_max = bytes_left
            await wait(world, 60_000)
            assert world.broker.waiting().uncopied == 1
        disk.bytes_max = None
        await wait(world, 10_000)
        assert world.broker.waiting().uncopied == 0
        world.log.forget_messages()
        await wait(world, 4 * HOUR_MS, HOUR_MS, 1, 1)
        assert bodies(world.receive("later", "billing")) == [b"a"]


async def test_a_large_hour_is_loaded_a_piece_each_turn() -> None:
    async with opened(FaultyFiles()) as world:
        some = [delayed(str(number), 5 * HOUR_MS + number) for number in range(2_500)]
        await copied(world, *some)
        # These come to be loaded before they were copied.
        world.clocks.pass_ms(59_000)
        rest = [delayed(f"live {number}", 5 * HOUR_MS + number) for number in range(1_100)]
        world.broker.send("later", rest)
        await wait(world, 0, 4 * HOUR_MS, HOUR_MS + 3_000)
        found = []
        for _ in range(150):
            found += bodies(world.receive("later", "billing"))
            await wait(world, 1)
        assert len(set(found)) == len(found) == 3_600


async def test_a_bug_in_a_job_is_told_and_the_next_is_done() -> None:
    worker = BucketWorker()
    told: asyncio.Queue[object] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: told.put_nowait(context.get("exception"))
    )

    def bug() -> NoReturn:
        raise ZeroDivisionError

    worker.run(bug, told.put_nowait)
    assert isinstance(await told.get(), ZeroDivisionError)
    worker.run(lambda: "done", told.put_nowait)
    assert await told.get() == "done"
    worker.close()
