"""From cached messages to settled ones: the standard service and the ordered one.

    standard   every message (or batch) is consumed on its own, up to `concurrency` at a time
               SUCCESS ─▶ ack        FAILURE ─▶ hidden for the policy's rest
    ordered    one after the other, the next only when the one before is settled
               FAILURE ─▶ the same again after the policy's rest, here; attempts used up ─▶
               dead letters      with `accelerated`, message groups of a batch go side by side

A message leaves its queue's cache when it is settled, so that slow acks hold fetching back.
What is not started when the queue is dropped or the consumer closes is given back at once,
as an attempt that never was (suspend).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from cosmodrome._client.listening import ListenerCalls
from cosmodrome._client.settling import Settler
from cosmodrome._client.tasks import Tasks
from cosmodrome._core.process_queue import ProcessQueue
from cosmodrome._core.retry import RetryPolicy
from cosmodrome.message import MessageView
from cosmodrome.results import ConsumeResult, Result, Suspend

_log = logging.getLogger("cosmodrome")
# How long something given back at shutdown rests: others may take it at once.
GIVE_BACK_MS = 0


@dataclass(slots=True)
class ConsumeContext:
    """What both services stand on."""

    calls: ListenerCalls
    settler: Settler
    tasks: Tasks
    policy: Callable[[], RetryPolicy]
    on_evicted: Callable[[ProcessQueue], None]
    on_corrupted: Callable[[MessageView], None]


class ConsumeService(ABC):
    """Consumes what is fetched."""

    is_fifo: bool

    def __init__(self, context: ConsumeContext) -> None:
        self._context = context
        self._is_closing = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @abstractmethod
    def consume(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        """Take what one fetch brought; it is cached in `queue` already."""

    async def close(self, timeout_s: float) -> None:
        """Start nothing more, give back what was not started, wait for what is being consumed.

        All within `timeout_s`: what a broker that is gone does not take back, it brings again.
        """
        self._is_closing = True
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(self._give_back_rest(), self._idle.wait())
        except TimeoutError:
            _log.warning("closed with %d listener calls under way", self._under_way)

    @abstractmethod
    async def _give_back_rest(self) -> None:
        """Give back what no listener has seen."""

    @abstractmethod
    def _wake(self) -> None:
        """Let what waits for its turn see that the service closes."""

    def _may_start(self, queue: ProcessQueue) -> bool:
        return not (self._is_closing or queue.is_dropped)

    def _began(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    def _evict(self, queue: ProcessQueue, message: MessageView) -> None:
        queue.evict(message)
        self._context.on_evicted(queue)

    async def _give_back(self, queue: ProcessQueue, messages: Iterable[MessageView]) -> None:
        for message in messages:
            settler = self._context.settler
            await settler.nack_for_sure(message, GIVE_BACK_MS, suspend=True)
            self._evict(queue, message)


@dataclass(slots=True)
class _Work:
    """Messages for one listener call."""

    queue: ProcessQueue
    messages: list[MessageView]


class StandardConsumeService(ConsumeService):
    """Consumes messages in any order, `concurrency` calls at a time, with fixed workers."""

    is_fifo = False

    def __init__(self, context: ConsumeContext, *, concurrency: int, batch: int) -> None:
        super().__init__(context)
        self._batch = batch
        self._work: deque[_Work] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        for number in range(concurrency):
            context.tasks.spawn(self._worker(), f"consume {number}")

    def consume(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        """See `ConsumeService`."""
        intact = []
        for message in messages:
            if message.is_corrupted:
                self._context.on_corrupted(message)
                self._discard(queue, message)
            else:
                intact.append(message)
        for start in range(0, len(intact), self._batch):
            self._work.append(_Work(queue, intact[start : start + self._batch]))
            self._wake_one()

    def _discard(self, queue: ProcessQueue, message: MessageView) -> None:
        rest_ms = self._context.policy().delay_ms(message.delivery_attempt)
        work = self._nack(queue, message, rest_ms, suspend=False)
        self._context.settler.begin(work, "discard")

    def _wake(self) -> None:
        while self._waiting:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _worker(self) -> None:
        while not self._is_closing:
            if not self._work:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter
                continue
            work = self._work.popleft()
            self._began()
            try:
                await self._do(work)
            finally:
                self._ended()

    async def _give_back_rest(self) -> None:
        rest, self._work = self._work, deque()
        await asyncio.gather(*(self._give_back(work.queue, work.messages) for work in rest))

    async def _do(self, work: _Work) -> None:
        if not self._may_start(work.queue):
            await self._give_back(work.queue, work.messages)
            return
        outcomes = await self._context.calls.call(work.messages)
        for message, outcome in zip(work.messages, outcomes, strict=True):
            self._settle(work.queue, message, outcome)

    def _settle(self, queue: ProcessQueue, message: MessageView, outcome: Result) -> None:
        if outcome is ConsumeResult.SUCCESS:
            self._context.settler.ack_then(message, partial(self._acked, queue, message))
            return
        if isinstance(outcome, Suspend):
            rest_ms = outcome.duration // timedelta(milliseconds=1)
        else:
            rest_ms = self._context.policy().delay_ms(message.delivery_attempt)
        suspend = isinstance(outcome, Suspend)
        work = self._nack(queue, message, rest_ms, suspend=suspend)
        self._context.settler.begin(work, "nack")

    def _acked(
        self, queue: ProcessQueue, message: MessageView, error: BaseException | None
    ) -> None:
        if error is None:
            self._evict(queue, message)
        elif not isinstance(error, asyncio.CancelledError):
            self._context.settler.begin(self._ack_again(queue, message), "ack again")

    async def _ack_again(self, queue: ProcessQueue, message: MessageView) -> None:
        await self._context.settler.ack_for_sure(message)
        self._evict(queue, message)

    async def _nack(
        self, queue: ProcessQueue, message: MessageView, rest_ms: int, *, suspend: bool
    ) -> None:
        await self._context.settler.nack_for_sure(message, rest_ms, suspend=suspend)
        self._evict(queue, message)


class FifoConsumeService(ConsumeService):
    """Consumes each fetch in order; fetches of one queue follow one another."""

    is_fifo = True

    def __init__(self, context: ConsumeContext, *, concurrency: int, accelerated: bool) -> None:
        super().__init__(context)
        self._slots = asyncio.Semaphore(concurrency)
        self._accelerated = accelerated
        self._tails: dict[int, asyncio.Future[None]] = {}
        self._closing = asyncio.Event()

    def consume(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        """See `ConsumeService`."""
        # Two fetches of one queue never overlap here, whatever the broker allows.
        before = self._tails.get(id(queue))
        after: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tails[id(queue)] = after
        self._began()
        self._context.tasks.spawn(self._fetch(queue, messages, before, after), "consume fifo")

    async def _give_back_rest(self) -> None:
        """Each fetch gives its own rest back, in order; `close` has waited for that."""

    def _wake(self) -> None:
        self._closing.set()

    async def _fetch(
        self,
        queue: ProcessQueue,
        messages: list[MessageView],
        before: "asyncio.Future[None] | None",
        after: "asyncio.Future[None]",
    ) -> None:
        try:
            if before is not None:
                await before
            if self._accelerated:
                groups: dict[str, list[MessageView]] = {}
                for message in messages:
                    groups.setdefault(message.message_group or message.lite_topic, []).append(
                        message
                    )
                async with asyncio.TaskGroup() as together:
                    for group in groups.values():
                        together.create_task(self._in_order(queue, group))
            else:
                await self._in_order(queue, messages)
        finally:
            if self._tails.get(id(queue)) is after:
                del self._tails[id(queue)]
            if not after.done():
                after.set_result(None)
            self._ended()

    async def _in_order(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        for index, message in enumerate(messages):
            if not self._may_start(queue):
                # The last one first, so that none can overtake another.
                await self._give_back(queue, reversed(messages[index:]))
                return
            if message.is_corrupted:
                self._context.on_corrupted(message)
                await self._give_up(message)
            else:
                await self._until_settled(queue, message)
            self._evict(queue, message)

    async def _until_settled(self, queue: ProcessQueue, message: MessageView) -> None:
        policy = self._context.policy()
        attempt = message.delivery_attempt
        while True:
            async with self._slots:
                this = (
                    message if attempt == message.delivery_attempt else at_attempt(message, attempt)
                )
                outcome = (await self._context.calls.call([this]))[0]
            if outcome is ConsumeResult.SUCCESS:
                await self._context.settler.ack_for_sure(message)
                return
            if isinstance(outcome, Suspend):
                rest_ms = outcome.duration // timedelta(milliseconds=1)
            else:
                if attempt >= policy.max_attempts:
                    await self._give_up(message)
                    return
                rest_ms = policy.delay_ms(attempt)
                attempt += 1
            await self._rest(rest_ms)
            if not self._may_start(queue):
                await self._context.settler.nack_for_sure(message, GIVE_BACK_MS, suspend=True)
                return

    async def _rest(self, rest_ms: int) -> None:
        """Rest without holding a slot; closing ends it early."""
        try:
            async with asyncio.timeout(rest_ms / 1000):
                await self._closing.wait()
        except TimeoutError:
            return

    async def _give_up(self, message: MessageView) -> None:
        await self._context.settler.forward_for_sure(message, self._context.policy().max_attempts)


def at_attempt(message: MessageView, attempt: int) -> MessageView:
    """The same message as a later attempt sees it; they share the receipt."""
    return replace(message, delivery_attempt=attempt)
