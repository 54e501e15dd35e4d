"""What time it is for messages to a broker: the system's, or that of a test broker.

`delay=timedelta(days=1)` counts from here. A broker of `cosmodrome.testing` with virtual time says
its own, so that delays still mean what they say after time was advanced.
"""

import time
from collections.abc import Callable

NowMs = Callable[[], int]
_virtual: dict[str, NowMs] = {}


def system_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def clock_of(endpoints: str) -> NowMs:
    """The clock of messages to these endpoints."""
    return _virtual.get(endpoints, system_ms)


def register(endpoints: str, clock: NowMs) -> None:
    """Have messages to a test broker go by its clock."""
    _virtual[endpoints] = clock


def forget(endpoints: str) -> None:
    """The test broker is closed."""
    _virtual.pop(endpoints, None)
