"""asyncio's loop with one addition: before it sleeps, a front may wait for calls in its own way.

    _run_once ─▶ select(timeout) ─▶ linger ──event, or enough of it──▶ epoll

The gate uses it to stay awake for a lone caller (`server.busy_poll_us`). What else the loop waits
for is looked at after that, a millisecond late at most.
"""

import asyncio
from collections.abc import Callable
from selectors import DefaultSelector, SelectorKey
from typing import TypeAlias

# Takes the longest it may wait and returns how long it did, in microseconds.
Linger: TypeAlias = Callable[[int], int]

_LIMIT_US_MAX = 1_000


class _LingeringSelector(DefaultSelector):
    linger: Linger | None = None

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if self.linger is not None and (timeout is None or timeout > 0):
            if timeout is None:
                self.linger(_LIMIT_US_MAX)
            else:
                waited_us = self.linger(min(_LIMIT_US_MAX, int(timeout * 1e6)))
                timeout = max(0.0, timeout - waited_us / 1e6)
        return super().select(timeout)


class EventLoop(asyncio.SelectorEventLoop):
    """The loop of a server in a process of its own."""

    def __init__(self) -> None:
        self._lingering = _LingeringSelector()
        super().__init__(self._lingering)

    def linger_by(self, linger: Linger | None) -> None:
        """Call this before each sleep; None: no more."""
        self._lingering.linger = linger
