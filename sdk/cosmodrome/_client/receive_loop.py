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
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cosmodrome._client.receiving import Received
from cosmodrome._core.process_queue import ProcessQueue, Thresholds
from cosmodrome.errors import CosmodromeError, TooManyRequests
from cosmodrome.message import MessageView

_log = logging.getLogger("cosmodrome")
THROTTLED_S = 0.02
FAILED_S = 1.0


@dataclass(slots=True)
class ReceiveLoop:
    """One loop.

    Attributes:
        queue: What is fetched.
        fetch: Makes one receive of at most so many messages.
        thresholds: How much the queue may hold now.
        deliver: Takes what was received.
        paused: Set while fetching is allowed.
        evicted: Set whenever something left the queue's cache.
    """

    queue: ProcessQueue
    fetch: Callable[[ProcessQueue, int], Awaitable[Received]]
    thresholds: Callable[[], Thresholds]
    deliver: Callable[[ProcessQueue, list[MessageView]], None]
    allowed: asyncio.Event
    evicted: asyncio.Event

    async def run(self) -> None:
        """Fetch until the queue is dropped or the task cancelled."""
        queue = self.queue
        while not queue.is_dropped:
            await self.allowed.wait()
            room = await self._room()
            if queue.is_dropped:
                return
            queue.attempt_id = queue.attempt_id or str(uuid.uuid4())
            queue.active_s = _now_s()
            try:
                received = await self.fetch(queue, room)
            except TooManyRequests:
                await asyncio.sleep(THROTTLED_S)
                continue
            except CosmodromeError as error:
                _log.info("receive of %s fails, again in 1 s: %s", queue.queue.topic, error)
                await asyncio.sleep(FAILED_S)
                continue
            queue.active_s = _now_s()
            if received.messages:
                queue.attempt_id = ""
                queue.cache(received.messages)
                self.deliver(queue, received.messages)

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
