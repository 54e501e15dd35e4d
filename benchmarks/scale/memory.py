"""What queues, delayed messages and messages in flight weigh in memory.

Each in a process of its own: anonymous memory before and after, and per piece. Queues and what
is in flight once more by Python's living objects: malloc, SQLite's cache and the places others
left move the first by some MiB, which is as much as there is to be measured.

    queues     100,000 with a message each, read by one group      nothing of RocketMQ's file each
    delayed    1,000,000 over 40 days, and 1,000,000 in one hour   24 bytes each of this hour
    inflight   100,000, received 32 and 1 at a time                20 bytes each, 24 one by one
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.scale.world import OS, held_bytes, messages, opened, wanted
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.topic import Topic, TopicType

Figures = dict[str, float]
_HOUR_MS, _DAYS = 3_600_000, 40
_QUEUES, _DELAYED, _INFLIGHT = 100_000, 1_000_000, 100_000
_QUEUES_PER_TOPIC = 1_000
_KNOWN_BY_HEART = 20_000
_HANDLES_BY_HEART = 16_384
_BATCH = 1_000
_BODY = b"x" * 100


async def queues(data: Path) -> Figures:
    """100,000 queues that each got a message, before and after all of it was consumed.

    Restarted is all that 120,000 queues take.
    """
    broker = opened(data, OS)
    empty = held_bytes()
    broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    # Some thousand queues are awake, 4 MiB of messages and 16,384 handles are known by heart,
    # however many queues there are: that is not to be measured.
    first = [f"first-{number}" for number in range(_KNOWN_BY_HEART // _QUEUES_PER_TOPIC)]
    await _fill(broker, first)
    await _empty(broker, first)
    before = held_bytes()
    topics = [f"topic-{number}" for number in range(_QUEUES // _QUEUES_PER_TOPIC)]
    await _fill(broker, topics)
    sent = held_bytes()
    await _empty(broker, topics)
    consumed = held_bytes()
    await broker.close()
    # A process that held it before is no measure of what a start needs.
    command = [sys.executable, "-m", "benchmarks.scale.memory", "queues again", str(data)]
    again = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    restarted, _ = await again.communicate()
    return {
        "bounded_mib": (before - empty) / 2**20,
        "sent": (sent - before) / _QUEUES,
        "consumed": (consumed - before) / _QUEUES,
        "restarted_mib": float(json.loads(restarted)["mib"]),
    }


async def queues_again(data: Path) -> Figures:
    """What a start takes for the queues an earlier process left."""
    before = held_bytes()
    broker = opened(data, OS)
    held = held_bytes() - before
    await broker.close()
    return {"mib": held / 2**20}


async def _fill(broker: LocalBroker, topics: list[str]) -> None:
    """Send a message to each of all queues."""
    for topic in topics:
        broker.create_topic(Topic(topic, queues=_QUEUES_PER_TOPIC))
        for number in range(_QUEUES_PER_TOPIC):
            # One after the other: each send takes the next queue.
            broker.send(topic, messages(number, 1, _BODY))
        await broker.drain()


async def _empty(broker: LocalBroker, topics: list[str]) -> None:
    """Receive and acknowledge all."""
    for topic in topics:
        while deliveries := broker.receive(wanted(topic, "billing")):
            for delivery in deliveries:
                broker.ack("billing", topic, delivery.receipt_handle)
        await broker.drain()


async def spread(data: Path) -> Figures:
    """1,000,000 delayed messages over 40 days."""
    return await _delayed(data, _DAYS * 24 * _HOUR_MS)


async def crowded(data: Path) -> Figures:
    """1,000,000 delayed messages of one hour."""
    return await _delayed(data, _HOUR_MS)


async def _delayed(data: Path, span_ms: int) -> Figures:
    broker = opened(data, OS)
    broker.create_topic(Topic("later", TopicType.DELAY, queues=8))
    await broker.drain()
    before = held_bytes()
    first_ms = SystemClock().now_ms() + 2 * _HOUR_MS
    for first in range(0, _DELAYED, _BATCH):
        batch = messages(first, _BATCH, _BODY, MessageType.DELAY)
        for number, message in enumerate(batch, first):
            message.delivery_timestamp_ms = first_ms + number * span_ms // _DELAYED
        broker.send("later", batch)
        await broker.drain()
        await _copied(broker)
    for _ in range(100):
        await _copied(broker)
    copied = held_bytes()
    await broker.close()
    again = opened(data, OS)
    for _ in range(100):
        await _copied(again)
    restarted = held_bytes()
    await again.close()
    return {
        "mib": (copied - before) / 2**20,
        "bytes_each": (copied - before) / _DELAYED,
        "restarted_mib": (restarted - before) / 2**20,
    }


async def _copied(broker: LocalBroker) -> None:
    """Let what waits to be copied into its bucket be copied."""
    await asyncio.sleep(0)
    while broker.is_copying:  # noqa: ASYNC110  # nothing says when
        await asyncio.sleep(0.001)


async def inflight_batches(data: Path) -> Figures:
    """100,000 messages in flight, received 32 at a time."""
    return await _inflight(data, 32)


async def inflight_singles(data: Path) -> Figures:
    """100,000 messages in flight, received one by one."""
    return await _inflight(data, 1)


async def _inflight(data: Path, count: int) -> Figures:
    broker = opened(data, OS)
    broker.create_topic(Topic("orders", queues=8))
    broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    for first in range(0, 2 * _INFLIGHT, _BATCH):
        broker.send("orders", messages(first, _BATCH, _BODY))
        await broker.drain()
    await _receive(broker, _KNOWN_BY_HEART, 1, settle=True)
    before = held_bytes()
    receives = await _receive(broker, _INFLIGHT, count)
    # Handles the broker knows by heart, forgotten at so many, are not to be measured: as many
    # after it as before.
    await _receive(broker, -receives % _HANDLES_BY_HEART, 1, settle=True)
    held = held_bytes() - before
    await broker.close()
    return {"mib": held / 2**20, "bytes_each": held / _INFLIGHT}


async def _receive(broker: LocalBroker, total: int, count: int, *, settle: bool = False) -> int:
    """Receive so many messages; in how many receives."""
    received = receives = 0
    while received < total:
        deliveries = broker.receive(wanted("orders", "billing", count))
        receives += 1
        received += len(deliveries)
        for delivery in deliveries if settle else ():
            broker.ack("billing", "orders", delivery.receipt_handle)
        if received % 3_200 < count:
            await broker.drain()
    await broker.drain()
    return receives


_STEPS: dict[str, Callable[[Path], Awaitable[Figures]]] = {
    "queues": queues,
    "delayed over 40 days": spread,
    "delayed in an hour": crowded,
    "in flight by 32": inflight_batches,
    "in flight by 1": inflight_singles,
}


_LIVING = " (living objects)"
_COUNTED = {f"{step}{_LIVING}": _STEPS[step] for step in _STEPS if not step.startswith("delayed")}


def measured(directory: Path | None) -> dict[str, object]:
    """Every step, each in a process of its own."""
    found: dict[str, object] = {}
    for step in (*_STEPS, *_COUNTED):
        with tempfile.TemporaryDirectory(dir=directory) as data:
            command = [sys.executable, "-m", "benchmarks.scale.memory", step, data]
            found[step] = json.loads(subprocess.run(command, stdout=-1, check=True).stdout)
    return found


def main(step: str, data: Path) -> None:
    """One step; prints its figures."""

    async def run() -> Figures:
        return await {**_STEPS, **_COUNTED, "queues again": queues_again}[step](data)

    if step in _COUNTED:
        tracemalloc.start()
    print(json.dumps(asyncio.run(run())))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
