"""Fetching one assigned queue, over and over, while there is room for what it brings.

    room? ──no──▶ wait for the low-water mark
      │yes
      ▼
    receive ──messages──▶ cache, hand to the consume service, new attempt id, again at once
      ├── nothing ──▶ again at once (the broker waited for us)
      ├── TOO_MANY_REQUESTS ──▶ again in 20 ms
      └── any other failure ──▶ again in 1 s, the same attempt id

The attempt id names a fetch to the broker: repeated after a failure it gets the same messages
of an ordered queue back, which is what makes a lost answer harmless.

A standard group has one queue to fetch, "any", so one receive at a time leaves the broker idle
while its messages are taken in, and us while the next are looked for. So a receive that brought
all it asked for lets another one begin beside it, which goes on until it brings less; of an ordered
group never.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from cosmodrome._client.receiving import Received
from cosmodrome._client.tasks import Tasks
from cosmodrome._core.process_queue import ProcessQueue, Thresholds
from cosmodrome.errors import CosmodromeError, TooManyRequests
from cosmodrome.message import MessageView

_log = logging.getLogger("cosmodrome")
THROTTLED_S = 0.02
FAILED_S = 1.0
# Receives beside the first one while there is a backlog: 8 of 32 together outlast a slow disk.
BESIDE_MAX = 7


@dataclass(slots=True)
class ReceiveLoop:
    """One loop.

    Attributes:
        queue: What is fetched.
        fetch: Makes one receive of at most so many messages, under an attempt id.
        batch: How many messages one receive asks for at most.
        thresholds: How much the queue may hold now.
        deliver: Takes what was received.
        allowed: Set while fetching is allowed.
        evicted: Set whenever something left the queue's cache.
        is_ordered: Whether the group is ordered now.
    """

    queue: ProcessQueue
    fetch: Callable[[ProcessQueue, int, str], Awaitable[Received]]
    batch: Callable[[], int]
    thresholds: Callable[[], Thresholds]
    deliver: Callable[[ProcessQueue, list[MessageView]], None]
    allowed: asyncio.Event
    evicted: asyncio.Event
    is_ordered: Callable[[], bool]
    _beside: Tasks = field(default_factory=Tasks)
    _is_failing: bool = False

    async def run(self) -> None:
        """Fetch until the queue is dropped or the task cancelled."""
        queue = self.queue
        try:
            while not queue.is_dropped:
                queue.attempt_id = queue.attempt_id or str(uuid.uuid4())
                received = await self._received(queue.attempt_id)
                if received.messages:
                    queue.attempt_id = ""
        finally:
            await self._beside.close()

    async def _while_full(self) -> None:
        while not self.queue.is_dropped:
            received = await self._received(str(uuid.uuid4()))
            if not received.is_full:
                return

    async def _received(self, attempt_id: str) -> Received:
        """Receive once, when there is room; what came is handed on. Nothing, for a failure."""
        queue = self.queue
        await self.allowed.wait()
        wanted = min(await self._room(), self.batch())
        if queue.is_dropped:
            return Received()
        queue.active_s = _now_s()
        queue.reserve(wanted)
        try:
            received = await self.fetch(queue, wanted, attempt_id)
        except TooManyRequests:
            await asyncio.sleep(THROTTLED_S)
            return Received()
        except CosmodromeError as error:
            # Said once, not every second: nobody else tells that nothing comes.
            level = logging.INFO if self._is_failing else logging.WARNING
            self._is_failing = True
            _log.log(level, "receive of %s fails, again in 1 s: %s", queue.queue.topic, error)
            await asyncio.sleep(FAILED_S)
            return Received()
        finally:
            queue.reserve(-wanted)
        self._is_failing = False
        queue.active_s = _now_s()
        if received.messages:
            queue.cache(received.messages)
            self.deliver(queue, received.messages)
        if received.is_full and len(self._beside) < BESIDE_MAX and not self.is_ordered():
            self._beside.spawn(self._while_full(), "receive beside")
        return received

    async def _room(self) -> int:
        """How much to fetch; waits while the queue is full."""
        queue = self.queue
        room = queue.room(self.thresholds())
        while not room and not queue.is_dropped:
            queue.full_s = _now_s()
            self.evicted.clear()
            await self.evicted.wait()
            if queue.has_low_water(self.thresholds()):
                room = queue.room(self.thresholds())
        return room


def _now_s() -> float:
    return asyncio.get_running_loop().time()
