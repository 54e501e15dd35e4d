"""What a user of the SDK gets: sends with and without shared requests, push and simple receive."""

import asyncio
import time

import cosmodrome
from benchmarks.servers import Target

BODY = bytes(1024)
WAVE = 1_000


async def sends(target: Target, messages: int, *, shared: bool) -> float:
    """Messages a second from concurrent single `send()` calls."""
    topic = "sdk-shared" if shared else "sdk-single"
    target.topic(topic)
    batching = cosmodrome.Batching() if shared else cosmodrome.Batching(messages=1)
    async with cosmodrome.Producer(target.endpoint, topics=[topic], batching=batching) as producer:
        await _wave(producer, topic)
        started = time.perf_counter()
        for _ in range(messages // WAVE):
            await _wave(producer, topic)
        return messages / (time.perf_counter() - started)


async def push(target: Target, topic: str, messages: int) -> float:
    """Messages a second that one push consumer receives and acknowledges."""
    target.group("sdk-push")
    done, count = asyncio.Event(), 0

    async def listener(_: cosmodrome.MessageView) -> cosmodrome.ConsumeResult:
        nonlocal count
        count += 1
        if count == messages:
            done.set()
        return cosmodrome.ConsumeResult.SUCCESS

    started = time.perf_counter()
    async with cosmodrome.PushConsumer(
        target.endpoint, group="sdk-push", subscriptions={topic: "*"}, listener=listener
    ):
        async with asyncio.timeout(120):
            await done.wait()
        return messages / (time.perf_counter() - started)


async def simple(target: Target, topic: str, messages: int) -> float:
    """Messages a second that a simple consumer receives and acknowledges, 8 calls at a time."""
    target.group("sdk-simple")
    count = 0
    async with cosmodrome.SimpleConsumer(
        target.endpoint, group="sdk-simple", subscriptions={topic: "*"}
    ) as consumer:

        async def work() -> None:
            nonlocal count
            while count < messages:
                received = await consumer.receive(32, 60)
                count += len(received)
                await consumer.ack(received)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(8):
                workers.create_task(work())
        return count / (time.perf_counter() - started)


async def latency(target: Target, rate: int, seconds: int) -> dict[str, float]:
    """Milliseconds from send to answer and to the listener, at a fixed rate."""
    target.topic("sdk-latency")
    target.group("sdk-latency")
    sent: list[float] = []
    received: list[float] = []

    async def listener(message: cosmodrome.MessageView) -> cosmodrome.ConsumeResult:
        received.append((time.perf_counter() - float(message.body)) * 1000)
        return cosmodrome.ConsumeResult.SUCCESS

    async def one(producer: cosmodrome.Producer) -> None:
        started = time.perf_counter()
        await producer.send(cosmodrome.Message("sdk-latency", repr(started).encode()))
        sent.append((time.perf_counter() - started) * 1000)

    async with (
        cosmodrome.PushConsumer(
            target.endpoint,
            group="sdk-latency",
            subscriptions={"sdk-latency": "*"},
            listener=listener,
        ),
        cosmodrome.Producer(target.endpoint, topics=["sdk-latency"]) as producer,
    ):
        loop = asyncio.get_running_loop()
        begin = loop.time()
        async with asyncio.TaskGroup() as sending:
            for number in range(rate * seconds):
                await asyncio.sleep(max(0.0, begin + number / rate - loop.time()))
                sending.create_task(one(producer))
        await asyncio.sleep(1)
    return {
        "send p50 ms at 500/s": _quantile(sent, 0.5),
        "send p99 ms at 500/s": _quantile(sent, 0.99),
        "send-to-receive p50 ms at 500/s": _quantile(received, 0.5),
        "send-to-receive p99 ms at 500/s": _quantile(received, 0.99),
    }


async def _wave(producer: cosmodrome.Producer, topic: str) -> None:
    await asyncio.gather(
        *(producer.send(cosmodrome.Message(topic, BODY, tag="a")) for _ in range(WAVE))
    )


def _quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[int(len(values) * fraction)] if values else float("nan")
