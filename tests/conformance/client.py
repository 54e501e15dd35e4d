"""What a scenario holds of an official client: producers and consumers, over the line protocol."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from tests.conformance.driver import Driver, Filter, Incoming, Outgoing, Receipt, Subscriptions

INVISIBLE_MS = 30_000
# The server waits 5 s at least, and the Rust client has no margin above what it asks for.
AWAIT_MS = 6_000
_names = itertools.count(1)


class Client:
    """Anything that can be closed. Closing twice is nothing."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self.driver.call("close", client=self.name)

    async def call(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.driver.call(op, client=self.name, **fields)


Kind = TypeVar("Kind", bound=Client)


class Producer(Client):
    async def send(
        self, message: Outgoing, *, transaction: str | None = None, asynchronous: bool | None = None
    ) -> Receipt:
        told = await self.call(
            "send", message=message.line(), transaction=transaction, asynchronous=asynchronous
        )
        return Receipt(told["message_id"], told.get("transaction_id"), told.get("recall_handle"))

    async def recall(self, topic: str, recall_handle: str) -> str:
        told = await self.call("recall", topic=topic, recall_handle=recall_handle)
        return str(told["message_id"])

    async def check(self, within: float) -> Incoming:
        """The next half message that the server asked this producer about."""
        return await asyncio.wait_for(self.driver.listen(self.name).get(), within)


class SimpleConsumer(Client):
    async def receive(
        self, max_messages: int = 16, invisible_ms: int = INVISIBLE_MS, **fields: Any
    ) -> list[Incoming]:
        told = await self.call(
            "receive", max_messages=max_messages, invisible_ms=invisible_ms, **fields
        )
        at = asyncio.get_running_loop().time()
        return [Incoming.of(line, at) for line in told["messages"]]

    async def ack(self, message: Incoming, *, asynchronous: bool | None = None) -> None:
        await self.call("ack", handle=message.handle, asynchronous=asynchronous)

    async def change_invisible(self, message: Incoming, invisible_ms: int) -> None:
        await self.call("change_invisible", handle=message.handle, invisible_ms=invisible_ms)

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        await self.call("subscribe", subscriptions=lines(subscriptions))

    async def take(
        self,
        count: int,
        within: float,
        *,
        ack: bool = True,
        invisible_ms: int = INVISIBLE_MS,
        max_messages: int = 16,
    ) -> list[Incoming]:
        """Receive until `count` messages are there or `within` seconds are over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        taken: list[Incoming] = []
        while len(taken) < count and loop.time() < deadline:
            for message in await self.receive(max_messages, invisible_ms):
                taken.append(message)
                if ack:
                    await self.ack(message)
        return taken


class PushConsumer(Client):
    async def deliveries(self, count: int, within: float) -> list[Incoming]:
        """The next `count` deliveries, or those that came `within` seconds."""
        return await self.until(lambda seen: len(seen) >= count, within)

    async def until(
        self, enough: Callable[[list[Incoming]], bool], within: float
    ) -> list[Incoming]:
        """Collect deliveries until `enough` of them came, or `within` seconds are over."""
        queue = self.driver.listen(self.name)
        deadline = asyncio.get_running_loop().time() + within
        seen: list[Incoming] = []
        while not enough(seen):
            left = deadline - asyncio.get_running_loop().time()
            try:
                seen.append(await asyncio.wait_for(queue.get(), max(left, 0.001)))
            except TimeoutError:
                break
        return seen

    async def subscribe(self, subscriptions: Subscriptions) -> None:
        await self.call("subscribe", subscriptions=lines(subscriptions))

    async def subscribe_lite(self, lite_topic: str, *, from_start: bool | None = None) -> None:
        await self.call("subscribe_lite", lite_topic=lite_topic, from_start=from_start)


class LiteSimpleConsumer(SimpleConsumer):
    async def subscribe_lite(self, lite_topic: str) -> None:
        await self.call("subscribe_lite", lite_topic=lite_topic)


class Connection:
    """How clients of one driver reach the server; None leaves a matter to the client's default."""

    def __init__(
        self,
        driver: Driver,
        endpoint: str,
        *,
        tls: bool | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.driver = driver
        self._fields: dict[str, Any] = {"endpoint": endpoint, "tls": tls}
        if credentials is not None:
            self._fields |= {"access_key": credentials[0], "secret_key": credentials[1]}
        self._open: list[Client] = []

    async def producer(
        self,
        *topics: str,
        checker: str | None = None,
        max_attempts: int | None = None,
    ) -> Producer:
        fields = {"topics": list(topics), "checker": checker, "max_attempts": max_attempts}
        return await self._made(Producer, "producer", fields)

    async def simple(
        self, group: str, subscriptions: Subscriptions, *, await_ms: int = AWAIT_MS
    ) -> SimpleConsumer:
        fields = {
            "group": group,
            "subscriptions": lines(subscriptions),
            "await_ms": await_ms,
        }
        return await self._made(SimpleConsumer, "simple", fields)

    async def push(
        self,
        group: str,
        subscriptions: Subscriptions,
        *,
        fail_times: int = 0,
        slow_ms: int = 0,
    ) -> PushConsumer:
        fields = {
            "group": group,
            "subscriptions": lines(subscriptions),
            "fail_times": fail_times,
            "slow_ms": slow_ms,
        }
        return await self._made(PushConsumer, "push", fields)

    async def lite_push(self, group: str, bind_topic: str, *, fail_times: int = 0) -> PushConsumer:
        fields = {"group": group, "bind_topic": bind_topic, "fail_times": fail_times}
        return await self._made(PushConsumer, "lite_push", fields)

    async def lite_simple(self, group: str, bind_topic: str) -> LiteSimpleConsumer:
        fields = {"group": group, "bind_topic": bind_topic, "await_ms": AWAIT_MS}
        return await self._made(LiteSimpleConsumer, "lite_simple", fields)

    async def close(self) -> None:
        """Close what is open, however each of them ends."""
        await asyncio.gather(*(client.close() for client in self._open), return_exceptions=True)
        self._open.clear()

    async def _made(self, kind: type[Kind], op: str, fields: dict[str, Any]) -> Kind:
        name = f"{op}-{next(_names)}"
        await self.driver.call(op, client=name, **self._fields, **fields)
        client = kind(self.driver, name)
        self._open.append(client)
        return client


def lines(subscriptions: Subscriptions) -> dict[str, dict[str, str]]:
    return {
        topic: {"expression": each.expression, "type": each.type}
        for topic, each in subscriptions.items()
    }


def everything(*topics: str) -> Subscriptions:
    """A subscription to all messages of each topic."""
    return {topic: Filter() for topic in topics}
