"""Brokers to pass over for a while: the ones that failed, or that answer slowly.

    failure ──▶ isolated until a heartbeat succeeds
    slow answer (latency strategy on) ──▶ isolated for the time of the table

The table is RocketMQ 4's latency fault strategy (clients.md 4-61).
"""

from bisect import bisect_right

from cosmodrome._core.endpoints import Endpoints

LATENCIES_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
PAUSES_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
FOREVER = 1 << 62


class Isolation:
    """Which endpoints to avoid. Time is handed in, in milliseconds."""

    def __init__(self, *, by_latency: bool = False) -> None:
        self._by_latency = by_latency
        self._until: dict[Endpoints, int] = {}

    def failed(self, endpoints: Endpoints) -> None:
        """A call to them got no answer."""
        self._until[endpoints] = FOREVER

    def answered(self, endpoints: Endpoints, latency_ms: float, now_ms: int) -> None:
        """A call to them was answered, after so long."""
        if not self._by_latency:
            return
        index = bisect_right(LATENCIES_MS, latency_ms) - 1
        pause = PAUSES_MS[index] if index >= 0 else 0
        if pause:
            self._until[endpoints] = now_ms + pause

    def alive(self, endpoints: Endpoints) -> None:
        """A heartbeat succeeded."""
        if self._until.get(endpoints) == FOREVER:
            del self._until[endpoints]

    def forget(self, endpoints: Endpoints) -> None:
        """They are gone."""
        self._until.pop(endpoints, None)

    def isolated(self, now_ms: int) -> frozenset[Endpoints]:
        """Whom to pass over now."""
        if not self._until:
            return frozenset()
        return frozenset(e for e, until in self._until.items() if until > now_ms)
