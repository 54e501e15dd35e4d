"""How long a broker that does not answer is waited for: a little longer each time, then no more."""

import time

FIRST_MS = 50
MOST_MS = 1_000


class Patience:
    """One wait for a broker that restarts.

    Args:
        most_ms: After this `wait` gives up.
    """

    def __init__(self, most_ms: int) -> None:
        self._until_ns = time.monotonic_ns() + most_ms * 1_000_000
        self._waited = 0

    def wait(self) -> bool:
        """Sleep before the next try; False, at once, where time would be up before it."""
        wait_ns = min(MOST_MS, FIRST_MS << min(self._waited, 8)) * 1_000_000
        self._waited += 1
        if time.monotonic_ns() + wait_ns > self._until_ns:
            return False
        time.sleep(wait_ns / 1e9)
        return True
