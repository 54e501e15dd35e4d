"""6.3 and 6.5, failures: retries of a push consumer, and the dead letters at the end of them."""

import asyncio

from tests.conformance.bench import Bench, scenario
from tests.conformance.client import everything
from tests.conformance.driver import Incoming, Outgoing, Refused
from tests.conformance.languages import CHANGE_INVISIBLE, PUSH
from tests.conformance.scenarios.delivery import QUIET_SECONDS


@scenario(
    "R-1", "a normal message that fails at first is delivered again, attempt 2", PUSH, short=True
)
async def retried(bench: Bench) -> str:
    topic, group = await bench.topic(), await bench.group()
    consumer = await bench.connection.push(group, everything(topic), fail_times=1)
    producer = await bench.connection.producer(topic)
    receipt = await producer.send(Outgoing(topic, b"flaky", tag="t", keys=("k",)))
    first, second = await consumer.deliveries(2, within=30)
    assert first.message_id == second.message_id == receipt.message_id
    assert (first.attempt, second.attempt) == (1, 2)
    assert (second.body, second.tag, second.keys) == (b"flaky", "t", ("k",))
    assert await consumer.deliveries(1, within=QUIET_SECONDS) == []
    return f"after {second.at - first.at:.1f} s"


@scenario("A-18", "after the group's 3 attempts a message is in %DLQ%group, and nowhere else", PUSH)
async def dead_letter(bench: Bench) -> None:
    topic, group = await bench.topic(), await bench.group(max_attempts=3)
    consumer = await bench.connection.push(group, everything(topic), fail_times=100)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"poison", tag="t", keys=("k",)))
    tried = await consumer.deliveries(3, within=60)
    assert [m.attempt for m in tried] == [1, 2, 3]
    letters = await _dead_letters(bench, group)
    assert [m.body for m in letters] == [b"poison"]
    assert letters[0].keys == ("k",)
    assert letters[0].tag == "t"
    assert await consumer.deliveries(1, within=QUIET_SECONDS) == []


@scenario("E-31", "FIFO: the dead letter unblocks what is behind it", PUSH)
async def fifo_dead_letter(bench: Bench) -> None:
    topic, group = await bench.topic("fifo"), await bench.group(is_fifo=True, max_attempts=2)
    consumer = await bench.connection.push(group, everything(topic), fail_times=2)
    producer = await bench.connection.producer(topic)
    for body in (b"first", b"second"):
        await producer.send(Outgoing(topic, body, message_group="g"))
    tried = await consumer.deliveries(4, within=60)
    seen = [(m.body, m.attempt) for m in tried]
    assert [body for body, _ in seen] == [b"first"] * 2 + [b"second"] * 2, seen
    letters = await _dead_letters(bench, group, 2)
    assert sorted(m.body for m in letters) == [b"first", b"second"]


@scenario("E-32", "a simple consumer's nacks count as attempts, then dead letter", CHANGE_INVISIBLE)
async def nacked_to_dead_letters(bench: Bench) -> None:
    topic, group = await bench.topic(), await bench.group(max_attempts=2)
    consumer = await bench.connection.simple(group, everything(topic))
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"refused twice"))
    for attempt in (1, 2):
        (message,) = await consumer.take(1, within=20, ack=False)
        assert message.attempt == attempt
        await consumer.change_invisible(message, 1_000)
    assert await consumer.take(1, within=QUIET_SECONDS) == []
    assert [m.body for m in await _dead_letters(bench, group)] == [b"refused twice"]


async def _dead_letters(bench: Bench, group: str, count: int = 1) -> list[Incoming]:
    """The first dead letters of `group`; its topic comes into being with it."""
    topic, own_group = f"%DLQ%{group}", await bench.group()
    async with asyncio.timeout(60):
        while True:
            try:
                reader = await bench.connection.simple(own_group, everything(topic))
                return await reader.take(count, within=30)
            except Refused:
                await asyncio.sleep(1)
