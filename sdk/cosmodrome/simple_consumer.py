"""The simple consumer: receive when you want, settle each message yourself.

    async with SimpleConsumer("127.0.0.1:8081", group="audit", subscriptions={"orders": "*"}) as c:
        for message in await c.receive(max_messages=16, invisible=30):
            ...
            await c.ack(message)

`async for message in consumer` receives for ever; `async with consumer.processing(message)`
acks when the block ends well and gives the message back when it does not.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Self

from cosmodrome._client import meters
from cosmodrome._client.client import State
from cosmodrome._client.consumer import Consumer, invisible, seconds_or_delta
from cosmodrome._client.patience import give_back, received
from cosmodrome._client.tasks import completed, end
from cosmodrome._core.route import MessageQueue
from cosmodrome.builders import SimpleConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import IllegalArgument, NotFound, NotRunning
from cosmodrome.filters import Filter, Subscriptions
from cosmodrome.interceptors import HookContext, HookPoint, Interceptor
from cosmodrome.message import MessageView
from cosmodrome_proto import definition_pb2 as pb

# What the reference's brokers take; ours too.
INVISIBLE_MIN, INVISIBLE_MAX = timedelta(seconds=10), timedelta(hours=12)
# Brokers refuse a call whose deadline leaves less than they wait.
POLLING_MIN_S = 5.0
INVISIBLE_DEFAULT = timedelta(seconds=30)
# How long a receive may go on that was cancelled: a way there and back, and a slow disk.
HAND_BACK_S = 0.5


class SimpleConsumer(Consumer):
    """Receives on demand.

    Args:
        configuration: Where the broker is; an address or URL will do.
        group: The consumer group.
        subscriptions: Topic → tag expression, or `Filter`.
        await_duration: How long a receive waits when there is nothing; brokers wait 5 s at least.
        interceptors: Hooks.
    """

    client_type: int = pb.SIMPLE_CONSUMER

    def __init__(
        self,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        await_duration: timedelta | float = 20,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        super().__init__(
            configuration,
            group=group,
            subscriptions=subscriptions or {},
            await_duration=seconds_or_delta(await_duration),
            interceptors=interceptors,
        )
        self._topic_turn = count()
        self._queue_turn = count()
        self._receiving: set[asyncio.Task[list[MessageView]]] = set()

    @classmethod
    def builder(cls) -> "SimpleConsumerBuilder[Self]":
        """Build step by step, as Java does."""
        return SimpleConsumerBuilder(cls)

    async def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic from now on; replaces what was wanted of it.

        Raises:
            StatusError: The topic does not exist.
        """
        self._check_running()
        route = await self._route(topic)
        wanted = expression if isinstance(expression, Filter) else Filter(expression)
        self._subscriptions[topic] = wanted
        await self._open_sessions(route.endpoints)
        await self._sync()

    async def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""
        self._check_running()
        self._subscriptions.pop(topic, None)
        await self._sync()

    async def receive(
        self, max_messages: int = 32, invisible: timedelta | float = INVISIBLE_DEFAULT
    ) -> list[MessageView]:
        """Receive up to `max_messages` of one topic, waiting for the first.

        Topics take turns. Where a topic lies on several brokers all are asked at once, so that a
        message on one is not late because another had none.

        Args:
            max_messages: At most; brokers give 32 at a time.
            invisible: How long they are hidden from others; seconds or a timedelta.

        Returns:
            The messages; none when nothing came in time.

        Raises:
            IllegalArgument: No subscription, or numbers out of bounds.
            NotRunning: The consumer was closed meanwhile.
            StatusError, TransportError: As said.
        """
        self._check_running()
        duration = seconds_or_delta(invisible)
        if max_messages < 1:
            raise IllegalArgument(f"max_messages is at least 1, not {max_messages}")
        if not INVISIBLE_MIN <= duration <= INVISIBLE_MAX:
            raise IllegalArgument(f"invisible is {INVISIBLE_MIN} to {INVISIBLE_MAX}")
        topics = list(self._subscriptions)
        if not topics:
            raise IllegalArgument("nothing is subscribed to")
        topic = topics[next(self._topic_turn) % len(topics)]
        context = HookContext(HookPoint.RECEIVE, self._client_id, topic, self._group)
        with self._interceptors.around(context):
            context.messages = await self._until_closed(topic, max_messages, duration)
        return context.messages

    async def ack(self, message: MessageView | Sequence[MessageView]) -> None:
        """Acknowledge; concurrent acks share requests.

        Raises:
            InvalidReceiptHandle: The delivery is over: it comes, or came, again.
            StatusError, TransportError: As said; the message may come again.
        """
        self._check_running()
        messages = [message] if isinstance(message, MessageView) else list(message)
        futures = [self._settler.ack(one) for one in messages]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def change_invisible_duration(
        self, message: MessageView, invisible: timedelta | float
    ) -> None:
        """Hide a message for so long from now; 0 gives it back at once.

        What was begun is carried out, also if the caller is cancelled.

        Raises:
            InvalidReceiptHandle: The delivery is over.
            StatusError, TransportError: As said.
        """
        self._check_running()
        duration_ms = seconds_or_delta(invisible) // timedelta(milliseconds=1)
        await self._settler.hide(message, duration_ms)

    @asynccontextmanager
    async def processing(
        self, message: MessageView, *, retry_after: timedelta | float = 0
    ) -> AsyncIterator[MessageView]:
        """Ack when the block ends well; give back after `retry_after` when it raises."""
        try:
            yield message
        except BaseException:
            await asyncio.shield(give_back(self, message, retry_after))
            raise
        await self.ack(message)

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Receive for ever, message by message, until the consumer is closed.

        What may succeed later is tried again in a second: it outlives a broker that restarts.
        """
        while self.is_running:
            for message in await received(self):
                yield message

    async def _until_closed(
        self, topic: str, max_messages: int, duration: timedelta
    ) -> list[MessageView]:
        """Receive in a task that `close` can end: channels may outlive this client."""
        work = self._receive(topic, max_messages, duration)
        task = asyncio.get_running_loop().create_task(work, name=f"receive {topic}")
        self._receiving.add(task)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        if self._state is not State.RUNNING:
            self._abandon(task)
            raise NotRunning("the consumer was closed while it waited for messages")
        self._receiving.discard(task)
        return task.result()

    def _abandon(self, task: asyncio.Task[list[MessageView]]) -> None:
        """Nobody waits for a receive any more."""
        if task in self._receiving:
            self._receiving.discard(task)
            self._settler.begin(self._hand_back(task), "hand back")

    async def _hand_back(self, task: asyncio.Task[list[MessageView]]) -> None:
        """End a receive, leaving no message hidden.

        Messages that are on their way when its stream is cancelled stay hidden for their time:
        the broker has seen them off. So it may end by itself for a moment.
        """
        try:
            await asyncio.wait([task], timeout=HAND_BACK_S)
        finally:
            await end([task])
            if not task.cancelled() and task.exception() is None:
                self._settler.give_back(task.result())

    async def _receive(
        self, topic: str, max_messages: int, duration: timedelta
    ) -> list[MessageView]:
        readable = (await self._route(topic)).readable
        if not readable:
            raise NotFound(f"topic {topic} has no queue that gives messages")
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in readable:
            by_broker.setdefault(str(queue.endpoints), []).append(queue)
        turn = next(self._queue_turn)
        chosen = [queues[turn % len(queues)] for queues in by_broker.values()]
        if len(chosen) == 1:
            return await self._receive_from(chosen[0], max_messages, duration)
        return await self._receive_from_all(chosen, max_messages, duration)

    async def _receive_from(
        self, queue: MessageQueue, max_messages: int, duration: timedelta
    ) -> list[MessageView]:
        wanted = self._subscriptions.get(queue.topic, Filter())
        request = self._receive_request(queue, wanted, max_messages)
        invisible(request, duration)
        timeout_s = max(self._receive_timeout_s, POLLING_MIN_S + 1)
        received = await self._receive_once(queue, request, timeout_s)
        if self._meters.is_on and received.messages and received.transport_ms is not None:
            latency_ms = max(0.0, received.transport_ms)
            self._meters.take(meters.DELIVERY_LATENCY, queue.topic, latency_ms)
        return self._leave_out(received.messages, wanted)

    async def _receive_from_all(
        self, queues: list[MessageQueue], max_messages: int, duration: timedelta
    ) -> list[MessageView]:
        """Ask every broker; the first with messages wins, what others have is handed back."""
        loop = asyncio.get_running_loop()
        waits = {
            loop.create_task(self._receive_from(queue, max_messages, duration)) for queue in queues
        }
        failure: BaseException | None = None
        found: list[MessageView] = []
        try:
            while waits and not found:
                done, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in done:
                    failure = wait.exception() or failure
                    found += [] if wait.exception() else wait.result()
        finally:
            for wait in waits:
                self._settler.begin(self._hand_back(wait), "hand back")
        if failure is not None and not found:
            raise failure
        return found

    def _take_settings(self, told: pb.Settings) -> None:
        """How long a receive waits is the caller's choice, whatever brokers would like."""
        super()._take_settings(told)
        self._told = replace(self._told, long_polling_ms=self._await_ms)

    async def _on_closing(self) -> None:
        for task in list(self._receiving):
            self._abandon(task)
        await completed(self._flush_acks())
