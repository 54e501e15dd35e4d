"""A broker on a log in memory, with clocks that a test sets; stopped and started at will."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.no_buckets import NoBuckets
from cosmodrome_server.broker.operation_verbs import Finder
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.model.log import DelayedStore
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.wire import encode_bytes
from tests.support.memory_log import MemoryLog

Run = Callable[[Callable[["World"], Awaitable[None]]], None]
START_MS = 1_700_000_000_000


class Clocks:
    """Both clocks of a test."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.run_ms = 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.run_ms

    def pass_ms(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.run_ms += duration_ms


def new_message(
    body: bytes = b"x",
    *,
    message_type: MessageType = MessageType.NORMAL,
    tag: str = "",
    group: str = "",
    message_id: str = "",
    priority: int = -1,
) -> NewMessage:
    name = message_id or body.decode()
    system = encode_bytes(3, name.encode())
    if tag:
        system += encode_bytes(1, tag.encode())
    if group:
        system += encode_bytes(17, group.encode())
        message_type = MessageType.FIFO
    return NewMessage(name, message_type, tag, group, 0, 0, "", priority, system, b"", body)


class Replies:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        self.given += [token for token, _ in replies]


class World:
    """A broker under test, which can be stopped, killed and started again."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.clocks = Clocks()
        self._random = Random(8)
        self.fatal: list[Exception] = []
        self.settings = settings or BrokerSettings()
        self.buckets: DelayedStore = NoBuckets()
        self.finder: Finder | None = None
        self.start(MemoryLog())

    def start(self, log: MemoryLog) -> None:
        """Start a broker on a log."""
        self.log = log
        self.broker = LocalBroker(
            log,
            self.clocks,
            self.settings,
            self.fatal.append,
            Attachments(self.buckets, self.finder, self._random.randbytes),
        )

    async def restart(self) -> None:
        """Stop cleanly and start again."""
        await self.broker.close()
        self.start(self.log.crashed())

    def kill(self) -> None:
        """Lose what is not durable and start again."""
        self.broker.abandon()
        self.start(self.log.crashed())

    async def settle(self) -> None:
        """Let the loop do what is due: commits, wake-ups."""
        for _ in range(6):
            await asyncio.sleep(0)

    async def release(self) -> None:
        """Let a log that holds its frames write them."""
        self.log.holding = False
        self.log.release()
        await self.settle()

    async def send(self, topic: str, *messages: NewMessage) -> None:
        self.broker.send(topic, messages)
        await self.settle()

    def receive(
        self,
        topic: str,
        group: str,
        count: int = 32,
        *,
        invisible_ms: int = 10_000,
        queue_id: int = ANY_QUEUE,
        **options: Any,
    ) -> list[Delivery]:
        return self.broker.receive(
            ReceiveQuery(
                group,
                topic,
                queue_id,
                "client",
                count,
                invisible_ms,
                **options,
            )
        )

    async def later(self, duration_ms: int) -> None:
        """Let time pass, and the broker do what has become due."""
        self.clocks.pass_ms(duration_ms)
        self.broker.wake()
        await self.settle()


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [bytes(delivery.message.body) for delivery in deliveries]
