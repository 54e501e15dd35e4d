"""What a user of the SDK gets: sends with and without shared requests, push and simple receive."""

import asyncio
import time

import cosmodrome
from benchmarks.servers import Target

BODY = bytes(1024)
TASKS = 1_000


async def sends(target: Target, messages: int, *, shared: bool) -> float:
    """Messages a second from single `send()` calls of tasks that each send one after another."""
    topic = "sdk-shared" if shared else "sdk-single"
    async with _producer(target, topic, shared=shared) as producer:

        async def work(count: int) -> None:
            for _ in range(count):
                await producer.send(cosmodrome.Message(topic, BODY, tag="a"))

        await _wave(producer, topic)
        started = time.perf_counter()
        each = messages // TASKS
        await asyncio.gather(*(work(each) for _ in range(TASKS)))
        return each * TASKS / (time.perf_counter() - started)


async def waves(target: Target, messages: int) -> float:
    """Messages a second from single `send()` calls begun together, and all waited for."""
    async with _producer(target, "sdk-waves", shared=True) as producer:
        await _wave(producer, "sdk-waves")
        started = time.perf_counter()
        count = messages // TASKS
        for _ in range(count):
            await _wave(producer, "sdk-waves")
        return count * TASKS / (time.perf_counter() - started)


def _producer(target: Target, topic: str, *, shared: bool) -> cosmodrome.Producer:
    target.topic(topic)
    batching = cosmodrome.Batching() if shared else cosmodrome.Batching(messages=1)
    return cosmodrome.Producer(target.endpoint, topics=[topic], batching=batching)


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
        *(producer.send(cosmodrome.Message(topic, BODY, tag="a")) for _ in range(TASKS))
    )


def _quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[int(len(values) * fraction)] if values else float("nan")
