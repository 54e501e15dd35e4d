"""The only reader of time. Everything else is handed a `Clock`, or the time itself."""

import time
from typing import Protocol


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
