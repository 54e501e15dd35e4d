"""6.3 Delivery, in order: FIFO topics, FIFO groups, redelivery that keeps the order."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from tests.conformance.bench import Bench, scenario
from tests.conformance.client import Producer, everything
from tests.conformance.driver import Incoming, Outgoing
from tests.conformance.languages import PUSH
from tests.conformance.scenarios.delivery import collect, consumer_of


async def send_groups(
    producer: Producer, topic: str, groups: Iterable[str], each: int
) -> dict[str, list[bytes]]:
    """Send `each` numbered messages per message group, one after the other."""
    sent: dict[str, list[bytes]] = defaultdict(list)
    for number in range(each):
        for group in groups:
            body = f"{group} {number}".encode()
            await producer.send(Outgoing(topic, body, message_group=group))
            sent[group].append(body)
    return dict(sent)


def first_seen(received: Iterable[Incoming]) -> dict[str, list[bytes]]:
    """Bodies per message group in the order of their first delivery."""
    seen: dict[str, list[bytes]] = defaultdict(list)
    for message in received:
        assert message.message_group is not None
        if message.body not in seen[message.message_group]:
            seen[message.message_group].append(message.body)
    return dict(seen)


def succeeded(received: Iterable[Incoming]) -> dict[str, list[bytes]]:
    """Bodies per message group in the order in which the listener took them."""
    seen: dict[str, list[bytes]] = defaultdict(list)
    for message in received:
        if message.result == "success":
            assert message.message_group is not None
            seen[message.message_group].append(message.body)
    return dict(seen)


async def _in_order(bench: Bench, each: int) -> None:
    topic, group = await bench.topic("fifo"), await bench.group(is_fifo=True)
    consumer = await consumer_of(bench, group, topic)
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("a", "b"), each)
    received = await collect(consumer, 2 * each, within=60)
    assert len(received) == 2 * each
    assert first_seen(received) == sent


@scenario("O-1", "100 messages of 2 message groups keep their order in each")
async def order(bench: Bench) -> None:
    await _in_order(bench, 50)


@scenario("O-1s", "20 messages of 2 message groups keep their order in each", short=True)
async def order_shortly(bench: Bench) -> None:
    await _in_order(bench, 10)


@scenario("R-2", "a FIFO message that fails at first is tried again before what is behind it", PUSH)
async def order_with_failures(bench: Bench) -> None:
    topic, group = await bench.topic("fifo"), await bench.group(is_fifo=True)
    consumer = await bench.connection.push(group, everything(topic), fail_times=1)
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("a",), 5)
    received = await consumer.until(lambda seen: len(succeeded(seen).get("a", [])) == 5, 90)
    bodies = [message.body for message in received]
    assert bodies == [body for body in sent["a"] for _ in range(2)], bodies


@scenario("R-3", "FIFO with failures in 3 groups: each keeps the order", PUSH)
async def order_in_groups(bench: Bench) -> None:
    topic = await bench.topic("fifo")
    consumers = []
    for _ in range(3):
        group = await bench.group(is_fifo=True)
        consumers.append(await bench.connection.push(group, everything(topic), fail_times=1))
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("a", "b"), 3)

    def all_taken(seen: list[Incoming]) -> bool:
        return sum(map(len, succeeded(seen).values())) == 6

    for received in await asyncio.gather(*(c.until(all_taken, 90) for c in consumers)):
        assert succeeded(received) == sent, [(m.body, m.attempt, m.result) for m in received]
