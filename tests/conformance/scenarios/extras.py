"""6.7 and issue text: what the catalogue of the reference does not have, under numbers E-n."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, refused, scenario, who
from tests.conformance.client import everything
from tests.conformance.driver import Filter, Incoming, Outgoing, Refused
from tests.conformance.languages import (
    LITE,
    LITE_OFFSET,
    LITE_SIMPLE,
    PRIORITY,
    PUSH,
    RECALL,
)
from tests.conformance.scenarios.delivery import QUIET_SECONDS, collect, consumer_of

EVERY_BYTE = bytes(range(256))
# One letter each: the Python client subscribes to the letters of a lite topic's name.
ROOM, OTHER_ROOM = "a", "b"


def sample(topic: str, author: str) -> Outgoing:
    """A message with everything that must survive the way through another client."""
    return Outgoing(
        topic,
        EVERY_BYTE + author.encode(),
        tag=f"tag-{author}",
        keys=(f"key-{author}", "订单-7"),
        properties={"author": author, "emoji": "🚀", "with space": "a = b; c"},
    )


def assert_same(received: Incoming, sent: Outgoing, message_id: str) -> None:
    assert received.message_id == message_id
    assert received.topic == sent.topic
    assert received.body == sent.body
    assert received.tag == sent.tag
    assert received.keys == tuple(sorted(sent.keys))
    assert received.properties == sent.properties


@scenario("E-1", "a message from every client is read, byte for byte", short=True)
async def every_message_is_read(bench: Bench) -> str:
    exchange = bench.exchange
    consumer = await bench.connection.simple(await bench.group(), everything(exchange.topic))
    producer = await bench.connection.producer(exchange.topic)
    mine = sample(exchange.topic, bench.language.name)
    receipt = await producer.send(mine)
    exchange.sent[bench.language.name].set_result((mine, receipt.message_id))
    sent = dict(zip(exchange.sent, await asyncio.gather(*exchange.sent.values()), strict=True))
    received = {m.properties["author"]: m for m in await consumer.take(len(sent), within=60)}
    assert sorted(received) == sorted(sent)
    for author, (message, message_id) in sent.items():
        assert_same(received[author], message, message_id)
    return "from " + ", ".join(sorted(sent))


@scenario("E-2", "a push consumer sees tag, keys and properties unchanged", PUSH, short=True)
async def push_sees_everything(bench: Bench) -> None:
    topic, group = await bench.topic(), await bench.group()
    consumer = await bench.connection.push(group, everything(topic))
    producer = await bench.connection.producer(topic)
    message = sample(topic, bench.language.name)
    receipt = await producer.send(message)
    (received,) = await consumer.deliveries(1, within=30)
    assert_same(received, message, receipt.message_id)
    assert received.attempt == 1
    assert abs((received.born_at_ms or 0) / 1000 - time.time()) < 60


@scenario(
    "E-3", "a delayed message is recalled before its time and never comes", RECALL, short=True
)
async def recalled(bench: Bench) -> None:
    topic, group = await bench.topic("delay"), await bench.group()
    consumer = await consumer_of(bench, group, topic)
    producer = await bench.connection.producer(topic)
    at = (int(time.time()) + 6) * 1000
    kept = await producer.send(Outgoing(topic, b"kept", delivery_at_ms=at))
    gone = await producer.send(Outgoing(topic, b"gone", delivery_at_ms=at))
    assert gone.recall_handle
    assert await producer.recall(topic, gone.recall_handle) == gone.message_id
    received = await collect(consumer, 1, within=20)
    received += await collect(consumer, 1, within=QUIET_SECONDS)
    assert [m.message_id for m in received] == [kept.message_id]


@scenario("E-33", "a message that was delivered cannot be recalled", RECALL)
async def recalled_too_late(bench: Bench) -> str:
    topic, group = await bench.topic("delay"), await bench.group()
    consumer = await consumer_of(bench, group, topic)
    producer = await bench.connection.producer(topic)
    at = (int(time.time()) + 2) * 1000
    receipt = await producer.send(Outgoing(topic, b"delivered", delivery_at_ms=at))
    assert receipt.recall_handle
    assert len(await collect(consumer, 1, within=20)) == 1
    return who(await refused(producer.recall(topic, receipt.recall_handle)))


@scenario("E-4", "the delivery timestamp is told to the consumer")
async def delivery_timestamp_is_told(bench: Bench) -> None:
    topic, group = await bench.topic("delay"), await bench.group()
    consumer = await bench.connection.simple(group, everything(topic))
    producer = await bench.connection.producer(topic)
    at = (int(time.time()) + 2) * 1000
    await producer.send(Outgoing(topic, b"when", delivery_at_ms=at))
    (received,) = await consumer.take(1, within=20)
    assert received.delivery_at_ms == at


@scenario("E-5", "of waiting messages the higher priority comes first", PRIORITY)
async def priority(bench: Bench) -> None:
    topic, group = await bench.topic("priority"), await bench.group()
    producer = await bench.connection.producer(topic)
    for level in (1, 4, 2, 3):  # the Node client takes a priority of 0 for none
        await producer.send(Outgoing(topic, f"level {level}".encode(), priority=level))
    consumer = await bench.connection.simple(group, everything(topic))
    received = await consumer.take(4, within=60, max_messages=1)
    assert sorted(m.body for m in received) == [b"level 1", b"level 2", b"level 3", b"level 4"]
    if bench.broker.is_ours:
        assert [m.body for m in received] == [b"level 4", b"level 3", b"level 2", b"level 1"]


@scenario("E-6", "lite topics: a push consumer gets what it subscribed to, and no more", LITE)
async def lite_push(bench: Bench) -> None:
    topic = await bench.topic("lite")
    group = await bench.group(lite_topic_of=topic)
    consumer = await bench.connection.lite_push(group, topic)
    await consumer.subscribe_lite(ROOM)
    producer = await bench.connection.producer(topic)
    for room in (ROOM, OTHER_ROOM, ROOM):
        await producer.send(Outgoing(topic, f"to {room}".encode(), lite_topic=room))
    received = await consumer.deliveries(2, within=60)
    received += await consumer.deliveries(1, within=QUIET_SECONDS)
    bodies = [m.body for m in received]
    assert bodies == [b"to a"] * 2, bodies
    assert {m.lite_topic for m in received} == {ROOM}


@scenario("E-7", "lite topics: a simple consumer receives and acks", LITE_SIMPLE)
async def lite_simple(bench: Bench) -> None:
    topic = await bench.topic("lite")
    group = await bench.group(lite_topic_of=topic)
    consumer = await bench.connection.lite_simple(group, topic)
    await consumer.subscribe_lite(ROOM)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"hello", lite_topic=ROOM))
    received = await consumer.take(1, within=60)
    received += await consumer.take(1, within=QUIET_SECONDS)
    assert [(m.body, m.lite_topic) for m in received] == [(b"hello", ROOM)]


@scenario(
    "E-8", "lite topics: subscribed from the first message, what was there comes", LITE_OFFSET
)
async def lite_from_the_start(bench: Bench) -> None:
    topic = await bench.topic("lite")
    group = await bench.group(lite_topic_of=topic)
    producer = await bench.connection.producer(topic)
    for number in range(3):
        await producer.send(Outgoing(topic, f"early {number}".encode(), lite_topic=ROOM))
    consumer = await bench.connection.lite_push(group, topic)
    await consumer.subscribe_lite(ROOM, from_start=True)
    received = await consumer.deliveries(3, within=60)
    bodies = [m.body for m in received]
    assert sorted(bodies) == [b"early 0", b"early 1", b"early 2"], bodies


@scenario("E-10", "a subscription added while running is delivered", PUSH)
async def subscribed_later(bench: Bench) -> str:
    first, second = await bench.topic(), await bench.topic()
    consumer = await bench.connection.push(await bench.group(), everything(first))
    producer = await bench.connection.producer(first, second)
    await consumer.subscribe({second: Filter()})
    started = asyncio.get_running_loop().time()
    await producer.send(Outgoing(second, b"to the second topic"))
    (received,) = await consumer.deliveries(1, within=45)
    assert received.topic == second
    return f"after {received.at - started:.1f} s"


@scenario("E-11", "a listener slower than the lease keeps its message", PUSH, seconds_max=240)
async def slow_listener(bench: Bench) -> None:
    topic, group = await bench.topic(), await bench.group()
    consumer = await bench.connection.push(group, everything(topic), slow_ms=75_000)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"takes longer than a minute"))
    received = await consumer.deliveries(2, within=100)
    assert [m.attempt for m in received] == [1]


async def _in_the_end(send: Callable[[], Awaitable[object]]) -> int:
    """Repeat a call until the server takes it; how often it was refused."""
    for refusals in range(100):
        try:
            await send()
        except Refused as refusal:
            if refusal.code not in {None, code.TOO_MANY_REQUESTS}:
                raise
            await asyncio.sleep(0.1)
        else:
            return refusals
    raise AssertionError("a hundred refusals in a row")


@scenario("E-34", "a producer above its topic's rate: told so, and nothing is lost or doubled")
async def limited_producer(bench: Bench) -> str:
    async with bench.own_server("--dev", "--set", "flow.topic_sends_per_s=5") as own:
        topic = own.name("topic")
        producer = await own.connection.producer(topic)
        bodies = [b"%d" % number for number in range(15)]
        refusals = [
            await _in_the_end(partial(producer.send, Outgoing(topic, body))) for body in bodies
        ]
        consumer = await own.connection.simple(own.name("group"), everything(topic))
        received = await consumer.take(len(bodies), within=60)
        received += await consumer.take(1, within=QUIET_SECONDS)
        assert sorted(m.body for m in received) == sorted(bodies)
        return f"told {sum(refusals)} times"


@scenario("E-35", "a push consumer above its group's rate gets everything, later", PUSH)
async def limited_push_consumer(bench: Bench) -> str:
    async with bench.own_server("--dev", "--set", "flow.group_receives_per_s=2") as own:
        topic, group = await own.topic(), await own.group()
        consumer = await own.connection.push(group, everything(topic))
        producer = await own.connection.producer(topic)
        started = asyncio.get_running_loop().time()
        for number in range(20):
            await producer.send(Outgoing(topic, b"%d" % number))
        received = await consumer.deliveries(20, within=90)
        assert sorted(int(m.body) for m in received) == list(range(20))
        assert await consumer.deliveries(1, within=QUIET_SECONDS) == []
        return f"after {asyncio.get_running_loop().time() - started:.1f} s"


@scenario("E-36", "a producer of four topics starts, and sends to each")
async def many_topics(bench: Bench) -> None:
    topics = [await bench.topic() for _ in range(4)]
    producer = await bench.connection.producer(*topics)
    for topic in topics:
        await producer.send(Outgoing(topic, b"x"))
