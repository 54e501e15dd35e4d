"""Endless traffic for a look at the dashboards: `traffic.py produce` or `traffic.py consume`.

COSMODROME_ENDPOINT says where the broker is, TRAFFIC_RATE how many messages a second. Needs a
broker that creates topics on first use (`--dev`). SIGTERM ends it.
"""

import asyncio
import os
import signal
import sys

from cosmodrome import (
    ClientConfiguration,
    ConsumeResult,
    Message,
    MessageView,
    Producer,
    PushConsumer,
)

TOPIC, GROUP = "traffic", "commuters"


async def produce(configuration: ClientConfiguration, stop: asyncio.Event) -> None:
    rate = float(os.environ.get("TRAFFIC_RATE", "100"))
    sent = 0
    async with Producer(configuration, topics=[TOPIC]) as producer:
        while not stop.is_set():
            await producer.send(Message(TOPIC, f"message {sent}".encode(), keys=str(sent)))
            sent += 1
            await asyncio.sleep(1 / rate)
    print(f"sent {sent} messages", flush=True)


async def consume(configuration: ClientConfiguration, stop: asyncio.Event) -> None:
    async def listener(message: MessageView) -> ConsumeResult:
        # One in a hundred stumbles at first, so that retries are seen, too.
        fails = message.queue_offset % 100 == 99 and message.delivery_attempt == 1
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    consumer = PushConsumer(
        configuration, group=GROUP, subscriptions={TOPIC: "*"}, listener=listener
    )
    async with consumer:
        await stop.wait()
        print(f"consumed {consumer.statistics().consumed_ok} messages", flush=True)


async def main(kind: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work = produce if kind == "produce" else consume
    await work(ClientConfiguration.from_environment(), stop)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("produce", "consume"):
        raise SystemExit("usage: traffic.py produce|consume")
    asyncio.run(main(sys.argv[1]))
