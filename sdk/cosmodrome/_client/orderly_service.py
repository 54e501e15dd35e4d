"""The consume service of orderly listeners: one queue after the other, acknowledged on commit.

    fetch ─▶ batch ─▶ listener ─ SUCCESS ─▶ kept ──┐   COMMIT ─▶ kept and batch are acknowledged
               ▲          │                        │
               └ SUSPEND ◀┘ (this batch again)     └─▶ ROLLBACK: kept and batch come again

`cosmodrome.orderly` has the whole table. Repeating happens here, as in RocketMQ 4: the broker is
asked for nothing, and the messages keep their lease. A queue that is dropped gives back everything
unacknowledged, the last one first.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cosmodrome._client.consume_service import ConsumeContext, FifoConsumeService, at_attempt
from cosmodrome._client.settling import Settler
from cosmodrome._core.process_queue import ProcessQueue
from cosmodrome.message import MessageView
from cosmodrome.orderly import SUSPEND_DEFAULT, ConsumeOrderlyContext, ConsumeOrderlyStatus

_log = logging.getLogger("cosmodrome")
Status = ConsumeOrderlyStatus
# What a fetch leaves uncommitted is rolled back after so long: its queue is stuck till then.
COMMIT_WAIT_S = 60.0


class Kept:
    """What was consumed of one fetch and not acknowledged; see `orderly.Uncommitted`."""

    def __init__(self, settler: Settler, evict: Callable[[MessageView], None]) -> None:
        self._settler = settler
        self._evict = evict
        self.messages: list[MessageView] = []
        self.is_rolled_back = False
        self.changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self.messages)

    async def commit(self) -> None:
        """Acknowledge all of it; returns when it is done."""
        messages, self.messages = self.messages, []
        await asyncio.gather(*(self._settler.ack_for_sure(message) for message in messages))
        for message in messages:
            self._evict(message)
        self.changed.set()

    async def rollback(self) -> None:
        """Let all of it come again."""
        self.is_rolled_back = True
        self.changed.set()

    def take_back(self) -> list[MessageView]:
        """What a rollback brings again."""
        messages, self.messages, self.is_rolled_back = self.messages, [], False
        return messages


class NothingKept:
    """Of a message that is acknowledged elsewhere."""

    def __len__(self) -> int:
        return 0

    async def commit(self) -> None:
        """There is nothing."""

    async def rollback(self) -> None:
        """There is nothing."""


@dataclass(slots=True)
class _Fetch:
    """One fetch on its way through the listener."""

    queue: ProcessQueue
    rest: deque[MessageView]
    kept: Kept
    failures: int = 0

    def batch(self, most: int) -> list[MessageView]:
        """The next messages for one call; damaged ones come alone."""
        found: list[MessageView] = []
        while self.rest and len(found) < most and not self.rest[0].is_corrupted:
            found.append(self.rest.popleft())
        return found

    def again(self, messages: Sequence[MessageView]) -> None:
        """Put messages back to the front, in their order."""
        self.rest.extendleft(reversed(messages))


class OrderlyConsumeService(FifoConsumeService):
    """Consumes each fetch in order by an orderly listener."""

    def __init__(self, context: ConsumeContext, *, concurrency: int, batch: int) -> None:
        super().__init__(context, concurrency=concurrency, accelerated=False)
        self._batch = batch

    async def _in_order(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        kept = Kept(self._context.settler, lambda message: self._evict(queue, message))
        fetch = _Fetch(queue, deque(messages), kept)
        while fetch.rest or kept.messages:
            if not self._may_start(queue):
                await self._give_back(queue, reversed([*kept.take_back(), *fetch.rest]))
                return
            if kept.is_rolled_back:
                fetch.again(kept.take_back())
                await self._rest(int(SUSPEND_DEFAULT.total_seconds() * 1000))
            elif not fetch.rest:
                await self._wait_for_commit(queue, kept)
            elif batch := fetch.batch(self._batch):
                await self._call(fetch, batch)
            else:
                damaged = fetch.rest.popleft()
                self._context.on_corrupted(damaged)
                await self._give_up(damaged)
                self._evict(queue, damaged)

    async def _call(self, fetch: _Fetch, batch: list[MessageView]) -> None:
        place = fetch.queue.queue
        context = ConsumeOrderlyContext(place.topic, place.queue_id, len(fetch.rest), fetch.kept)
        failures = fetch.failures
        views = [at_attempt(one, one.delivery_attempt + failures) for one in batch]
        async with self._slots:
            status = await self._context.calls.call_orderly(views, context)
        if status is None:
            await self._failed(fetch, batch, context)
            return
        fetch.failures = 0
        if status is Status.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            await self._suspend(fetch, batch, context)
            return
        if context.auto_commit and status is not Status.SUCCESS:
            _log.warning("the orderly listener returned %s with auto_commit on", status.name)
        fetch.kept.messages += batch
        if context.auto_commit or status is Status.COMMIT:
            await fetch.kept.commit()
        elif status is Status.ROLLBACK:
            await self._suspend(fetch, fetch.kept.take_back(), context)

    async def _failed(
        self, fetch: _Fetch, batch: list[MessageView], context: ConsumeOrderlyContext
    ) -> None:
        fetch.failures += 1
        most = self._context.policy().max_attempts
        if batch[0].delivery_attempt + fetch.failures <= most:
            await self._suspend(fetch, batch, context)
            return
        fetch.failures = 0
        for message in batch:
            await self._give_up(message)
            self._evict(fetch.queue, message)

    async def _suspend(
        self, fetch: _Fetch, messages: list[MessageView], context: ConsumeOrderlyContext
    ) -> None:
        fetch.again(messages)
        await self._rest(int(context.suspend.total_seconds() * 1000))

    async def _wait_for_commit(self, queue: ProcessQueue, kept: Kept) -> None:
        """The fetch is consumed and not committed: somebody may still do it."""
        place = queue.queue
        _log.info(
            "%d messages of %s %d await their commit; nothing behind them comes till then",
            len(kept),
            place.topic,
            place.queue_id,
        )
        loop = asyncio.get_running_loop()
        waits = [loop.create_task(kept.changed.wait()), loop.create_task(self._closing.wait())]
        kept.changed.clear()
        try:
            done, _ = await asyncio.wait(
                waits, timeout=COMMIT_WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for wait in waits:
                wait.cancel()
        if not done:
            _log.warning("nobody committed %s %d: rolled back", place.topic, place.queue_id)
            await kept.rollback()
