"""A bound on what a producer has under way, by count and by bytes, first come first served."""

import asyncio
from collections import deque

from cosmodrome.errors import BufferFull, NotRunning


class InFlight:
    """Room for messages; `take` waits for it."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages = 0
        self._bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_closed = False

    @property
    def messages(self) -> int:
        """How many are under way."""
        return self._messages

    def try_take(self, size: int) -> bool:
        """Take room if there is some and nobody waits for it."""
        if self._waiters or not self._fits(size):
            return False
        self._messages += 1
        self._bytes += size
        return True

    async def take(self, size: int) -> None:
        """Take room, waiting for it.

        Raises:
            NotRunning: The producer was closed meanwhile.
        """
        if self.try_take(size):
            return
        if self._is_closed:
            raise NotRunning("the producer was closed")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.give(size)  # it was granted just before
            raise

    def take_now(self, size: int) -> None:
        """Take room or fail.

        Raises:
            BufferFull: There is none.
        """
        if not self.try_take(size):
            raise BufferFull(
                f"{self._messages} messages with {self._bytes} bytes are under way; the bounds "
                f"are {self._messages_max} and {self._bytes_max}"
            )

    def give(self, size: int) -> None:
        """Give room back."""
        self._messages -= 1
        self._bytes -= size
        while self._waiters:
            wanted, waiter = self._waiters[0]
            if waiter.done():
                self._waiters.popleft()
                continue
            if not self._fits(wanted):
                return
            self._waiters.popleft()
            self._messages += 1
            self._bytes += wanted
            waiter.set_result(None)

    def close(self) -> None:
        """Nobody gets room any more; those who wait are told."""
        self._is_closed = True
        while self._waiters:
            _, waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(NotRunning("the producer was closed"))

    def _fits(self, size: int) -> bool:
        # A message larger than the bound goes alone rather than never.
        return self._messages == 0 or (
            self._messages < self._messages_max and self._bytes + size <= self._bytes_max
        )
