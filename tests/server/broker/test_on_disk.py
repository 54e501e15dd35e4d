"""The broker on a real log: what it answered is there after any kind of stop."""

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cosmodrome_server.broker import checkpoints
from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.queries import ANY_QUEUE, MessageSearch, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store.checkpoint import FILE_NAME
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.key_index import KeyIndex
from cosmodrome_server.store.opening import SHARD_NAME, open_log
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.broker_world import bodies, new_message

SEGMENT_BYTES = 1 << 20


def opened(data: Path) -> LocalBroker:
    log = open_log(data, LogOptions(segment_bytes=SEGMENT_BYTES), SystemClock())
    files, directory = OsFiles(), data / SHARD_NAME
    attachments = Attachments(
        TimerBuckets(files, directory / "timer"), KeyIndex(files, directory, log.segments).find
    )
    settings = BrokerSettings(checkpoint_bytes=SEGMENT_BYTES)
    return LocalBroker(log, SystemClock(), settings, lambda _: None, attachments)


async def work(broker: LocalBroker) -> list[str]:
    """Some of everything, all of it durable; returns handles that are still good."""
    broker.create_topic(Topic("orders", queues=4))
    broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
    broker.create_topic(Topic("money", TopicType.TRANSACTION, queues=1))
    broker.create_group(Group("billing"))
    for number in range(40):
        messages = [new_message(b"%d-%d" % (number, each) + b"x" * 2_000) for each in range(32)]
        broker.send("orders", messages)
        if number % 5 == 0:
            await broker.drain()
    late = new_message(b"late", message_type=MessageType.DELAY)
    late.delivery_timestamp_ms = SystemClock().now_ms() + 3_600_000
    broker.send("later", [late])
    broker.send("money", [new_message(b"half", message_type=MessageType.TRANSACTION)])
    broker.send("money", [new_message(b"sure", message_type=MessageType.TRANSACTION)])
    broker.end_transaction("money", "sure", commit=True, from_check=False)
    await broker.drain()
    handles = []
    query = ReceiveQuery("billing", "orders", ANY_QUEUE, "c", 32, 600_000)
    for _ in range(10):
        deliveries = broker.receive(query)
        for delivery in deliveries[::2]:
            broker.ack("billing", "orders", delivery.receipt_handle)
        handles += [delivery.receipt_handle for delivery in deliveries[1::2]]
    await broker.drain()
    return handles


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for at in range(16, len(content), max(1, len(content) // 7)):
        content[at] ^= 0x10
    path.write_bytes(content)


DERIVED = {
    "checkpoint": [f"{FILE_NAME}*"],
    "indexes": ["*.idx", "*.key"],
    "all": [f"{FILE_NAME}*", "*.idx", "*.key"],
}


@pytest.mark.parametrize(
    "stop",
    ["clean", "killed", *(f"{what} {fate}" for what in DERIVED for fate in ("lost", "damaged"))],
)
def test_a_start_finds_the_state_there_was(tmp_path: Path, stop: str) -> None:
    async def scenario() -> None:
        broker = opened(tmp_path / "data")
        handles = await work(broker)
        before = broker.state_hash()
        data = tmp_path / "data"
        if stop == "clean":
            await broker.close()
        else:
            data = tmp_path / "copy"
            # Space taken in advance and files not yet in place come and go; they hold nothing.
            shutil.copytree(
                tmp_path / "data", data, ignore=shutil.ignore_patterns("spare*", "*.new")
            )
            await broker.close()
        what, _, fate = stop.partition(" ")
        for path in [
            path for each in DERIVED.get(what, ()) for path in (data / SHARD_NAME).glob(each)
        ]:
            if fate == "lost":
                path.unlink()
            elif fate == "damaged":
                damage(path)
        again = opened(data)
        assert again.state_hash() == before
        for handle in handles:
            again.ack("billing", "orders", handle)
        behind = again.accumulation("billing", "orders")
        assert (behind.ready, behind.inflight) == (1_280 - 320, 0)
        assert [one.message_id for one in again.scheduled("", 9)] == ["late"]
        assert [one.transaction_id for one in again.transactions("", 9)] == ["half"]
        query = ReceiveQuery("billing", "money", ANY_QUEUE, "c", 32, 600_000)
        assert bodies(again.receive(query)) == [b"sure"]
        await again.close()

    run(scenario)


def test_a_clean_stop_closes_the_log_also_where_copies_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: TimerBuckets) -> None:
        raise OSError(errno.EIO, "the disk fails")

    async def scenario() -> None:
        broker = opened(tmp_path)
        before = broker.state_hash()
        with monkeypatch.context() as patch:
            patch.setattr(TimerBuckets, "close", fail)
            with pytest.raises(OSError, match="the disk fails"):
                await broker.close()
        # It owns the directory no more, in this process either.
        again = opened(tmp_path)
        assert again.state_hash() == before
        await again.close()

    run(scenario)


def test_messages_are_found_by_their_ids_after_segments_were_sealed(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = opened(tmp_path)
        await work(broker)
        name = (b"3-7" + b"x" * 2_000).decode()
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        broker.find(MessageSearch("orders", name, 0, 0, 5), answer.set_result)
        found = await answer
        assert isinstance(found, list)
        assert [bytes(each.body[:3]) for each in found] == [b"3-7"]
        await broker.close()

    run(scenario)


def test_a_start_after_a_crash_replays_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        broker = opened(tmp_path / "data")
        await work(broker)
        (delivery, *_) = broker.receive(ReceiveQuery("billing", "orders", ANY_QUEUE, "c", 1, 9_000))
        handle = delivery.receipt_handle
        for _ in range(300):
            # Records without a message make the tail longer, too.
            handle = broker.change_invisible_duration(
                "billing", "orders", handle, 9_000, suspend=True
            )
            await broker.drain()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        await broker.close()
        log = open_log(tmp_path / "copy", LogOptions(segment_bytes=SEGMENT_BYTES), SystemClock())
        log.rows()
        assert len(list(log.replay())) < 200
        log.close()

    monkeypatch.setattr(checkpoints, "_RECORDS_MAX", 100)
    run(scenario)
