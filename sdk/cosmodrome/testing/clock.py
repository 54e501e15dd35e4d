"""The clock of a test broker: real, or one that only a test moves."""

import threading
import time


class VirtualClock:
    """Stands still until `advance`. Both clocks move together; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now_ms = time.time_ns() // 1_000_000
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since the clock was made."""
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        """Let so much time pass."""
        with self._lock:
            self._now_ms += milliseconds
            self._monotonic_ms += milliseconds
