"""A tour in one minute: a broker on a fresh directory, 1,000 messages, a redelivery, a dead letter.

make demo        or        python examples/demo.py
"""

import asyncio
import re
import sys
import tempfile
import time
from pathlib import Path

from cosmodrome import (
    AdminClient,
    ClientConfiguration,
    ConsumeResult,
    Message,
    MessageView,
    Producer,
    PushConsumer,
)

MESSAGES = 1_000
TOPIC, GROUP = "demo", "tour"


class Tour:
    """A listener that fails once on one message and always on another."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.all_seen = asyncio.Event()
        self.redelivered = asyncio.Event()

    async def __call__(self, message: MessageView) -> ConsumeResult:
        """Take one message."""
        if message.body == b"poison":
            return ConsumeResult.FAILURE
        if message.body == b"stumble" and message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        if message.body == b"stumble":
            print(f"redelivered: {message.message_id}, attempt {message.delivery_attempt}")
            self.redelivered.set()
            return ConsumeResult.SUCCESS
        self.seen.add(message.message_id)
        if len(self.seen) == MESSAGES:
            self.all_seen.set()
        return ConsumeResult.SUCCESS


async def serve(data: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start the real command; returns when it says that it is ready."""
    command = str(Path(sys.executable).with_name("cosmodrome"))
    flags = ["--dev", "--port", "0", "--metrics-port", "0", "--data", data]
    process = await asyncio.create_subprocess_exec(
        command, "serve", *flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if ready := re.search(r"ready: .* at (\S+:\d+)", line):
            print(line.strip())
            return process, ready[1].replace("0.0.0.0", "127.0.0.1")
    raise SystemExit(f"the broker did not start: exit code {await process.wait()}")


async def tour(endpoint: str) -> None:
    configuration = ClientConfiguration.builder().endpoints(endpoint).build()
    listener = Tour()
    async with AdminClient(configuration) as admin:
        await admin.create_topic(TOPIC)
        await admin.create_group(GROUP, max_attempts=2)
        consumer = (
            PushConsumer.builder()
            .client_configuration(configuration)
            .consumer_group(GROUP)
            .subscription_expressions({TOPIC: "*"})
            .message_listener(listener)
            .build()
        )
        producer = Producer.builder().client_configuration(configuration).topics(TOPIC).build()
        async with consumer, producer, asyncio.timeout(60):
            began = time.perf_counter()
            sends = (producer.send(Message(TOPIC, f"{n}".encode())) for n in range(MESSAGES))
            await asyncio.gather(*sends)
            sent_s = time.perf_counter() - began
            await listener.all_seen.wait()
            seen_s = time.perf_counter() - began
            print(f"sent {MESSAGES} messages: {MESSAGES / sent_s:,.0f} a second")
            print(f"consumed all of them: {MESSAGES / seen_s:,.0f} a second, sends included")
            await producer.send(Message(TOPIC, b"stumble"))
            await producer.send(Message(TOPIC, b"poison"))
            await listener.redelivered.wait()
            dead = await admin.topics(f"%DLQ%{GROUP}")
            while not dead or not dead[0].messages:  # nobody is told when a letter dies: look
                await asyncio.sleep(0.1)
                dead = await admin.topics(f"%DLQ%{GROUP}")
            print(f"dead letters of {GROUP}: {dead[0].messages} in {dead[0].name}")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cosmodrome-demo-") as data:
        broker, endpoint = await serve(data)
        try:
            await tour(endpoint)
        finally:
            broker.terminate()
            code = await broker.wait()
        print(f"the broker stopped with exit code {code}")


if __name__ == "__main__":
    asyncio.run(main())
