"""6.5 Simple consumer: receive, ack, leases that end, handles that are stale."""

import asyncio
import itertools

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, refused, scenario, who
from tests.conformance.client import SimpleConsumer, everything
from tests.conformance.driver import Incoming, Outgoing
from tests.conformance.languages import CHANGE_INVISIBLE
from tests.conformance.scenarios.delivery import QUIET_SECONDS, send_numbered
from tests.conformance.scenarios.ordered import send_groups

SHORTEST_MS = 10_000
LATENESS_SECONDS_MAX = 6.0  # a long poll that just began may be what finds it


async def _start(bench: Bench, kind: str = "normal") -> tuple[str, SimpleConsumer]:
    topic = await bench.topic(kind)
    group = await bench.group(is_fifo=kind == "fifo")
    return topic, await bench.connection.simple(group, everything(topic))


async def _all_once(bench: Bench, *, receive_async: bool, ack_async: bool) -> None:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    sent = await send_numbered(producer, topic, 20)
    received: list[Incoming] = []
    async with asyncio.timeout(60):
        while len(received) < 20:
            for message in await consumer.receive(asynchronous=receive_async):
                received.append(message)
                await consumer.ack(message, asynchronous=ack_async)
    assert sorted(m.message_id for m in received) == sorted(sent)
    assert await consumer.take(1, within=QUIET_SECONDS) == []


@scenario("A-1", "20 messages, received and acked: all, once", short=True)
async def all_once(bench: Bench) -> None:
    await _all_once(bench, receive_async=False, ack_async=False)


@scenario("A-2/3/4", "the same with the client's asynchronous calls, where the driver has them")
async def all_once_asynchronously(bench: Bench) -> None:
    await _all_once(bench, receive_async=True, ack_async=True)


@scenario("A-5", "20 FIFO messages are received in order")
async def fifo_in_order(bench: Bench) -> None:
    topic, consumer = await _start(bench, "fifo")
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("g",), 20)
    received = await consumer.take(20, within=60)
    assert [m.body for m in received] == sent["g"]


@scenario("A-6", "FIFO, one message group, no ack: stuck at the first")
async def fifo_is_stuck(bench: Bench) -> None:
    topic, consumer = await _start(bench, "fifo")
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("g",), 5)
    (first,) = await consumer.take(1, within=20, ack=False, max_messages=1)
    assert first.body == sent["g"][0]
    assert await consumer.take(1, within=QUIET_SECONDS, ack=False, max_messages=1) == []


@scenario("A-7", "FIFO, 8 message groups, no ack: the first of each comes again and again")
async def fifo_first_of_each(bench: Bench) -> str:
    topic, consumer = await _start(bench, "fifo")
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, [f"g{n}" for n in range(8)], 2)
    firsts = {bodies[0] for bodies in sent.values()}
    seen: dict[bytes, int] = {}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 60
    while loop.time() < deadline and (len(seen) < 8 or min(seen.values()) < 2):
        for message in await consumer.receive(1, SHORTEST_MS):
            seen[message.body] = seen.get(message.body, 0) + 1
    assert set(seen) <= firsts, set(seen) - firsts
    again = sum(times > 1 for times in seen.values())
    assert again, "none came again"
    if bench.broker.is_ours:
        assert set(seen) == firsts
    return f"{len(seen)} of 8 groups, {again} again"


@scenario("A-8", "FIFO, receive 3, ack all but the first: it comes again, in order, attempt 2")
async def fifo_first_not_acked(bench: Bench) -> str:
    topic, consumer = await _start(bench, "fifo")
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("g",), 3)
    received = await _take_together(consumer, 3)
    assert [m.body for m in received] == sent["g"]
    for message in received[1:]:
        await consumer.ack(message)
    again = await consumer.take(1, within=SHORTEST_MS / 1000 + 15)
    again += await consumer.take(2, within=QUIET_SECONDS)
    assert again[0].body == sent["g"][0]
    assert all(m.attempt > 1 for m in again), [m.attempt for m in again]
    bodies = [m.body for m in again]
    assert bodies == [body for body in sent["g"] if body in bodies]
    return f"{len(again)} came again"


@scenario("A-9", "FIFO, receive 3, ack only the first: the rest comes again in order")
async def fifo_first_acked(bench: Bench) -> None:
    topic, consumer = await _start(bench, "fifo")
    producer = await bench.connection.producer(topic)
    sent = await send_groups(producer, topic, ("g",), 3)
    received = await _take_together(consumer, 3)
    await consumer.ack(received[0])
    again = await consumer.take(2, within=SHORTEST_MS / 1000 + 20)
    assert [m.body for m in again] == sent["g"][1:]


async def _take_together(consumer: SimpleConsumer, count: int) -> list[Incoming]:
    async with asyncio.timeout(30):
        while not (received := await consumer.receive(count, SHORTEST_MS)):
            pass
    assert len(received) == count
    return received


@scenario("A-12", "an ack after the lease ended is refused, the message comes again and is acked")
async def late_ack(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"slow"))
    (first,) = await consumer.take(1, within=20, ack=False, invisible_ms=SHORTEST_MS)
    await asyncio.sleep(SHORTEST_MS / 1000 + 1)  # the lease runs out in real time
    refusal = await refused(consumer.ack(first), code.INVALID_RECEIPT_HANDLE)
    (again,) = await consumer.take(1, within=20)
    assert again.message_id == first.message_id
    assert again.attempt == 2, again.attempt
    return who(refusal)


@scenario("A-13", "three redeliveries are a lease of 10 s apart, then the ack ends it")
async def redeliveries(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"again"))
    seen: list[Incoming] = []
    async with asyncio.timeout(90):
        while len(seen) < 4:
            seen += await consumer.receive(1, SHORTEST_MS)
    await consumer.ack(seen[-1])
    assert [m.attempt for m in seen] == [1, 2, 3, 4]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(seen)]
    # What a busy machine is late to see one, it takes from the gap behind it.
    assert all(9 <= gap <= 10 + LATENESS_SECONDS_MAX for gap in gaps), gaps
    assert sum(gaps) >= 29, gaps
    assert await consumer.take(1, within=SHORTEST_MS / 1000 + 3) == []
    return "gaps " + " ".join(f"{gap:.1f}" for gap in gaps)


@scenario("A-14", "changed to 20 s, the next delivery is 20 to 30 s later", CHANGE_INVISIBLE)
async def changed(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"longer"))
    (first,) = await consumer.take(1, within=20, ack=False, invisible_ms=SHORTEST_MS)
    loop = asyncio.get_running_loop()
    changed_at = loop.time()
    await consumer.change_invisible(first, 20_000)
    (again,) = await consumer.take(1, within=45)
    waited = again.at - changed_at
    assert 19.8 <= waited <= 30, waited
    assert again.attempt == 2, again.attempt
    return f"{waited:.1f} s"


@scenario(
    "E-30", "a nack: changed to 1 s, the message comes again soon", CHANGE_INVISIBLE, short=True
)
async def nacked(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"not now"))
    (first,) = await consumer.take(1, within=20, ack=False)
    started = asyncio.get_running_loop().time()
    await consumer.change_invisible(first, 1_000)
    (again,) = await consumer.take(1, within=20)
    assert again.message_id == first.message_id
    assert again.attempt == 2, again.attempt
    assert again.at - started >= 0.9
    return f"{again.at - started:.1f} s"


@scenario("A-15", "changing the invisible duration after the ack is refused", CHANGE_INVISIBLE)
async def changed_after_ack(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await producer.send(Outgoing(topic, b"done"))
    (message,) = await consumer.take(1, within=20)
    change = consumer.change_invisible(message, 20_000)
    return who(await refused(change, code.INVALID_RECEIPT_HANDLE))


@scenario("A-16", "300 messages by receive(30): at most 32 a time, none twice")
async def many(bench: Bench) -> str:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    sent = await send_numbered(producer, topic, 300)
    received: list[Incoming] = []
    largest = 0
    async with asyncio.timeout(120):
        while len(received) < 300:
            batch = await consumer.receive(30)
            largest = max(largest, len(batch))
            await asyncio.gather(*map(consumer.ack, batch))
            received += batch
    assert sorted(m.message_id for m in received) == sorted(sent)
    assert largest <= 32
    return f"largest {largest}"


@scenario("A-17", "receive(50) over 20, ack all but the first: the acked never come again")
async def acked_never_again(bench: Bench) -> None:
    topic, consumer = await _start(bench)
    producer = await bench.connection.producer(topic)
    await send_numbered(producer, topic, 20)
    received = await consumer.take(
        20, within=40, ack=False, invisible_ms=SHORTEST_MS + 5_000, max_messages=50
    )
    assert len(received) == 20
    kept = received[0]
    await asyncio.gather(*map(consumer.ack, received[1:]))
    again = await consumer.take(1, within=SHORTEST_MS / 1000 + 25)
    again += await consumer.take(1, within=QUIET_SECONDS)
    assert [m.message_id for m in again] == [kept.message_id]
