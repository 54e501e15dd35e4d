"""A rate: things begin evenly spaced, and none that waits begins after the end."""

import asyncio


class Pacer:
    """Lets at most so many begin a second.

    Args:
        rate: How many a second; above 0.
    """

    def __init__(self, rate: float) -> None:
        self._gap_s = 1.0 / rate
        self._next_s = 0.0
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Let nobody begin any more; who waits is told at once."""
        self._closed.set()

    async def turn(self, number: int) -> bool:
        """Wait until `number` more may begin; False when it was closed meanwhile."""
        now_s = asyncio.get_running_loop().time()
        start_s = max(now_s, self._next_s)
        self._next_s = start_s + number * self._gap_s
        if start_s <= now_s:
            return not self._closed.is_set()
        try:
            async with asyncio.timeout(start_s - now_s):
                await self._closed.wait()
        except TimeoutError:
            return True
        return False
