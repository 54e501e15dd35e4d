"""The data directory of each release, with everything a broker keeps: read by this one.

A release adds its own, once, and never changes it:

    python -m tests.server.broker.test_golden tests/server/broker/golden/VERSION
"""

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model import wire
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, Group
from cosmodrome_server.model.lite import LiteAction, LiteChange, LiteStart
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType, dead_letter_topic
from cosmodrome_server.store.checkpoint import FILE_NAME
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.opening import SHARD_NAME, open_log
from cosmodrome_server.store.platform import LogOptions
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.broker_world import START_MS, Clocks, bodies, new_message

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = LogOptions(segment_bytes=16 << 10, reserve_bytes=4_096, retention_ms=0, scrub_bytes_s=0)
HOUR_MS = 3_600_000
TOPICS = {
    "orders": TopicType.NORMAL,
    "steps": TopicType.FIFO,
    "later": TopicType.DELAY,
    "deals": TopicType.TRANSACTION,
    "chat": TopicType.LITE,
    "alarms": TopicType.PRIORITY,
}
# A handle of a delivery that was in flight when the directory was left.
HANDLE = "handle.txt"


class Stored:
    """A broker on a directory, with clocks that a test sets."""

    def __init__(self, data: Path, clocks: Clocks, settings: BrokerSettings | None = None) -> None:
        self.clocks = clocks
        log = open_log(data, OPTIONS, clocks)
        buckets = TimerBuckets(OsFiles(), data / SHARD_NAME / "timer")
        self.broker = LocalBroker(
            log, clocks, settings or BrokerSettings(), _fatal, Attachments(buckets)
        )

    async def send(self, topic: str, *messages: NewMessage) -> list[str]:
        receipts = self.broker.send(topic, messages)
        await self.broker.drain()
        return [receipt.recall_handle for receipt in receipts]

    async def later(self, duration_ms: int) -> None:
        self.clocks.pass_ms(duration_ms)
        for _ in range(1_000):
            self.broker.wake()
            await self.broker.drain()
            if not self.broker.is_copying:
                return
            await asyncio.sleep(0.001)

    def receive(self, topic: str, group: str, count: int = 32, client: str = "c") -> list[Delivery]:
        return self.broker.receive(ReceiveQuery(group, topic, ANY_QUEUE, client, count, 60_000))

    async def ack(self, topic: str, group: str, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.broker.ack(group, topic, delivery.receipt_handle)
        await self.broker.drain()

    async def drained(self, topic: str, group: str) -> list[bytes]:
        """The bodies of everything there is, acknowledged."""
        found = []
        while deliveries := self.receive(topic, group):
            found += bodies(deliveries)
            await self.ack(topic, group, deliveries)
        return sorted(found)


def _fatal(error: Exception) -> None:
    raise AssertionError(error)


def _names(first: int, end: int) -> list[bytes]:
    return [b"%02d" % number for number in range(first, end)]


def _delayed(name: str, delay_ms: int) -> NewMessage:
    message = new_message(name.encode(), message_type=MessageType.DELAY)
    message.delivery_timestamp_ms = START_MS + delay_ms
    return message


def _lite(body: bytes) -> NewMessage:
    message = new_message(body, message_type=MessageType.LITE)
    message.lite_topic = "room 1"
    message.system += wire.encode_bytes(wire.LITE_TOPIC, b"room 1")
    return message


def _read_room(stored: Stored) -> None:
    change = LiteChange(
        "c", "room", "chat", LiteAction.PARTIAL_ADD, ("room 1",), 0, LiteStart.LAST, 0
    )
    stored.broker.sync_lite_subscription(change)


def _create(stored: Stored) -> None:
    for name, topic_type in TOPICS.items():
        stored.broker.create_topic(Topic(name, topic_type, queues=1, attributes={"team": "a"}))
    backoff = CustomizedBackoff((1_000,))
    for group in (
        Group("billing", max_attempts=3, backoff=backoff, consume_from=ConsumeFrom.FIRST),
        Group("once", max_attempts=1, backoff=backoff, consume_from=ConsumeFrom.FIRST),
        Group("ledger", is_fifo=True, max_attempts=3, consume_from=ConsumeFrom.FIRST),
        Group("room", lite_bind_topic="chat", consume_from=ConsumeFrom.FIRST),
    ):
        stored.broker.create_group(group)


async def _written(data: Path) -> None:
    stored = Stored(data, Clocks())
    _create(stored)
    for name in _names(0, 40):
        await stored.send("orders", new_message(name))
    await stored.ack("orders", "billing", stored.receive("orders", "billing", 20)[::2])
    (letter,) = stored.receive("orders", "once", 1)
    assert letter.message.body == b"00"
    for name in _names(0, 6):
        await stored.send("steps", new_message(name, group="ab"[int(name) % 2]))
    await stored.ack("steps", "ledger", stored.receive("steps", "ledger", 1))
    handles = await stored.send(
        "later", *(_delayed(str(hours), hours * HOUR_MS) for hours in (3, 30, 31))
    )
    # Leases expire, one dead letter; what is delayed goes into its buckets.
    await stored.later(60_001)
    stored.broker.recall("later", handles[2])
    await stored.send("later", _delayed("4", 4 * HOUR_MS))
    for deal in ("committed", "rolled back", "open"):
        half = new_message(deal.encode(), message_type=MessageType.TRANSACTION)
        await stored.send("deals", half)
        if deal != "open":
            is_commit = deal == "committed"
            stored.broker.end_transaction("deals", deal, commit=is_commit, from_check=False)
    _read_room(stored)
    await stored.send("chat", _lite(b"hello"), _lite(b"again"))
    (first, *_) = stored.receive("chat", "room")
    await stored.ack("chat", "room", [first])
    await stored.send("alarms", new_message(b"fire", message_type=MessageType.PRIORITY, priority=0))
    stored.broker.commit_offset("billing", "alarms", 0, 1)
    await _fill_segments(stored)
    # Those that wait for their second attempt, and again so many of the others: in flight.
    held = stored.receive("orders", "billing", 15)
    (data / HANDLE).write_text(held[0].receipt_handle)
    await stored.broker.close()
    for empty in (
        data / "LOCK",
        *(data / SHARD_NAME).glob("spare-*"),
        data / SHARD_NAME / "reserve",
    ):
        empty.unlink()


async def _fill_segments(stored: Stored, topic: str = "filler") -> None:
    """Let the log begin new segments, which begin with all of the state."""
    stored.broker.create_topic(Topic(topic, queues=1))
    log = stored.broker._log
    assert isinstance(log, CommitLog)
    first = len(log.segments())
    for number in range(200):
        await stored.send(topic, new_message(b"%d" % number * 300))
        log._platform.background.submit(log._space.prepare)
        await asyncio.sleep(0.002)
        if len(log.segments()) > first + 1:
            return


def _opened(version: Path, tmp_path: Path) -> tuple[Path, str]:
    data = tmp_path / "data"
    shutil.copytree(version, data)
    handle = (data / HANDLE).read_text()
    return data, handle


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("version", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_a_broker_finds_what_a_release_left(
    version: Path, has_checkpoint: bool, tmp_path: Path
) -> None:
    data, handle = _opened(version, tmp_path)
    if not has_checkpoint:
        for name in (FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"):
            (data / SHARD_NAME / name).unlink(missing_ok=True)

    async def scenario() -> None:
        clocks = Clocks()
        clocks.pass_ms(61_000)
        stored = Stored(data, clocks)
        await _check_catalogue(stored)
        await _check_consumption(stored, handle)
        await _check_timers_and_transactions(stored)
        await stored.broker.close()

    run(scenario)


async def _check_catalogue(stored: Stored) -> None:
    broker = stored.broker
    names = {topic.name: topic.topic_type for topic in broker.topics()}
    assert {name: names.get(name) for name in TOPICS} == TOPICS
    assert broker.topic("orders").attributes == {"team": "a"}
    assert broker.group("billing").backoff == CustomizedBackoff((1_000,))
    assert broker.group("ledger").is_fifo
    assert broker.group("room").lite_bind_topic == "chat"


async def _check_consumption(stored: Stored, handle: str) -> None:
    broker = stored.broker
    # In flight when the broker stopped, and still.
    assert broker.accumulation("billing", "orders").inflight == 15
    broker.ack("billing", "orders", handle)
    broker.ack("billing", "orders", handle)
    assert broker.accumulation("billing", "orders").inflight == 14
    found = await stored.drained("orders", "billing")
    await stored.later(60_001)
    again = stored.receive("orders", "billing")
    assert {delivery.attempt for delivery in again} <= {2, 3}
    await stored.ack("orders", "billing", again)
    odd = [name for name in _names(0, 20) if int(name) % 2]
    all_left = [*odd, *_names(20, 40)]
    assert len(found) + len(again) + 1 == len(all_left)
    assert set(found) | set(bodies(again)) < set(all_left)
    with pytest.raises(InvalidReceiptHandle):
        broker.ack("billing", "steps", handle)
    # The dead letter of the group that tries once.
    broker.create_group(Group("letters", consume_from=ConsumeFrom.FIRST))
    assert await stored.drained(dead_letter_topic("once"), "letters") == [b"00"]
    assert await stored.drained("orders", "once") == _names(1, 40)
    assert await stored.drained("steps", "ledger") == _names(1, 6)
    assert broker.committed_offset("billing", "alarms", 0) == 1
    _read_room(stored)
    await stored.later(60_001)
    assert await stored.drained("chat", "room") == [b"again"]


async def _check_timers_and_transactions(stored: Stored) -> None:
    broker = stored.broker
    assert [(found.topic, found.due_ms) for found in broker.scheduled("", 9)] == [
        ("later", START_MS + hours * HOUR_MS) for hours in (3, 4, 30)
    ]
    assert [half.transaction_id for half in broker.transactions("", 9)] == ["open"]
    broker.end_transaction("deals", "committed", commit=True, from_check=False)
    broker.end_transaction("deals", "open", commit=True, from_check=False)
    await broker.drain()
    assert await stored.drained("deals", "billing") == [b"committed", b"open"]
    for _ in range(6):
        await stored.later(HOUR_MS)
    assert await stored.drained("later", "billing") == [b"3", b"4"]
    for _ in range(30):
        await stored.later(HOUR_MS)
    assert await stored.drained("later", "billing") == [b"30"]


if __name__ == "__main__":
    asyncio.run(_written(Path(sys.argv[1])))
