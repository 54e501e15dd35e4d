"""Which listener takes a topic's messages, and how many at a time.

                      ┌─ topic with a listener or limits of its own ─▶ its lane
    fetched messages ─┤
                      └─ every other topic ──────────────────────────▶ the common lane

A lane is a consume service with its calls: workers, threads and rate of its own, so that a topic
that is held back holds nobody else back. Changing a topic's limits retires its lane: what it
has not begun is given back and comes again through the new one.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cosmodrome._client.consume_service import (
    ConsumeContext,
    ConsumeService,
    FifoConsumeService,
    StandardConsumeService,
)
from cosmodrome._client.listening import EVERY_OTHER, Caller, Kind, Listener, ListenerCalls
from cosmodrome._client.orderly_service import NothingKept, OrderlyConsumeService
from cosmodrome._client.pacer import Pacer
from cosmodrome._client.tasks import Tasks
from cosmodrome._core.process_queue import ProcessQueue
from cosmodrome.errors import IllegalArgument
from cosmodrome.message import MessageView
from cosmodrome.orderly import ConsumeOrderlyContext, ConsumeOrderlyStatus
from cosmodrome.results import ConsumeResult, TopicLimits


@dataclass(frozen=True, slots=True)
class Options:
    """How a consumer's listeners are called.

    Attributes:
        concurrency: Calls of one lane at a time, where its topic does not say.
        accelerated: Message groups of an ordered fetch go side by side.
        timeout_s: How long a call may take; None for ever.
        close_timeout_s: How long a lane that ends waits for calls under way.
    """

    concurrency: int
    accelerated: bool
    timeout_s: float | None
    close_timeout_s: float


@dataclass(slots=True)
class _Lane:
    kind: Kind
    calls: ListenerCalls
    service: ConsumeService

    async def close(self, timeout_s: float) -> None:
        """End it: nothing more begins, what was not begun is given back."""
        self.calls.stop()
        await self.service.close(timeout_s)
        self.calls.close()


class Dispatch:
    """The lanes of one push consumer.

    Args:
        listeners: Topic → listener; "" for every other topic.
        limits: Topic → limits. Both are read whenever a lane is made.
        options: What holds where a topic says nothing.
        caller: On whose behalf listeners are called.
        context: What every consume service stands on, but for its calls.
        is_fifo: Whether the group is ordered now.
    """

    def __init__(
        self,
        listeners: Mapping[str, Listener],
        limits: Mapping[str, TopicLimits],
        *,
        options: Options,
        caller: Caller,
        context: Callable[[ListenerCalls], ConsumeContext],
        is_fifo: Callable[[], bool],
    ) -> None:
        self._listeners = listeners
        self._limits = limits
        self._options = options
        self._caller = caller
        self._context = context
        self._is_fifo = is_fifo
        self._lanes: dict[str, _Lane] = {}

    def check(self) -> None:
        """Whether the listeners fit the group.

        Raises:
            IllegalArgument: An orderly listener, and the group is not ordered.
        """
        if not self._is_fifo() and any(
            listener.kind is Kind.ORDERLY for listener in self._listeners.values()
        ):
            raise IllegalArgument(
                f"group {self._caller.group} is not ordered on the broker (its fifo flag is off); "
                "an orderly listener needs one that is"
            )

    def consume(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        """Take what one fetch brought; it is cached in `queue` already."""
        self._lane(queue.queue.topic).service.consume(queue, messages)

    async def verify(self, message: MessageView) -> bool:
        """Have the listener consume one message that is settled elsewhere; whether it could."""
        lane = self._lane(message.topic)
        if lane.kind is not Kind.ORDERLY:
            return (await lane.calls.call([message]))[0] is ConsumeResult.SUCCESS
        context = ConsumeOrderlyContext(message.topic, message.queue_id, 0, NothingKept())
        status = await lane.calls.call_orderly([message], context)
        return status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)

    def renew(self, tasks: Tasks, topic: str | None = None) -> None:
        """Retire a topic's lane, or all: the group's order, or a topic's limits, changed."""
        names = list(self._lanes) if topic is None else [topic]
        for name in names:
            lane = self._lanes.pop(name, None)
            if lane is not None:
                tasks.spawn(lane.close(self._options.close_timeout_s), "retire consume service")

    async def close(self) -> None:
        """End every lane."""
        lanes, self._lanes = list(self._lanes.values()), {}
        timeout_s = self._options.close_timeout_s
        await asyncio.gather(*(lane.close(timeout_s) for lane in lanes))

    def _lane(self, topic: str) -> _Lane:
        name = topic if topic in self._listeners or topic in self._limits else EVERY_OTHER
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = self._new_lane(name)
        return lane

    def _new_lane(self, name: str) -> _Lane:
        listener = self._listeners.get(name) or self._listeners[EVERY_OTHER]
        limits = self._limits.get(name, TopicLimits())
        concurrency = limits.concurrency or self._options.concurrency
        calls = ListenerCalls(
            listener,
            self._caller,
            threads=concurrency,
            timeout_s=self._options.timeout_s,
            pacer=Pacer(limits.rate) if limits.rate else None,
        )
        return _Lane(
            listener.kind, calls, self._new_service(self._context(calls), listener, concurrency)
        )

    def _new_service(
        self, context: ConsumeContext, listener: Listener, concurrency: int
    ) -> ConsumeService:
        if listener.kind is Kind.ORDERLY:
            return OrderlyConsumeService(context, concurrency=concurrency, batch=listener.batch)
        if self._is_fifo():
            accelerated = self._options.accelerated
            return FifoConsumeService(context, concurrency=concurrency, accelerated=accelerated)
        return StandardConsumeService(context, concurrency=concurrency, batch=listener.batch)
