"""The only reader of time. Everything else is handed a `Clock`, or the time itself."""

import time
from typing import Protocol

# How far a wall clock may get ahead of the time that passed before it is doubted, and for how long
# it must stay there to be believed all the same.
_JUMP_MS = 3_600_000
_DOUBTED_MS = 3_600_000


class Clock(Protocol):
    """Two clocks: one that people set, one that only runs."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump either way."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some start; never goes back."""


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some start."""
        return time.monotonic_ns() // 1_000_000


class BelievedTime:
    """The log's time for what cannot be taken back: a clock that jumps ahead is doubted first.

    A wall clock that is 40 days ahead for some minutes must not cost all that is stored. One that
    stays there was behind before.

    Args:
        clock: Both clocks.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base_ms = clock.now_ms() - clock.monotonic_ms()
        self._ahead_since_ms: int | None = None

    def of(self, now_ms: int) -> int:
        """The log's time `now_ms`, or less."""
        run_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        passed_ms = self._base_ms + run_ms
        if wall_ms <= passed_ms + _JUMP_MS:
            self._ahead_since_ms = None
            return min(now_ms, max(wall_ms, passed_ms))
        if self._ahead_since_ms is None:
            self._ahead_since_ms = run_ms
        elif run_ms - self._ahead_since_ms >= _DOUBTED_MS:
            self._base_ms, self._ahead_since_ms = wall_ms - run_ms, None
            return min(now_ms, wall_ms)
        return min(now_ms, passed_ms)
