"""Counting what a push consumer does, topic by topic, and how fast lately.

Hot paths only add; every 10 s a copy is put aside, and a rate is the difference to the copy of a
minute ago.
"""

from collections import deque
from dataclasses import dataclass, field, replace

SAMPLE_S = 10.0
SAMPLES_MAX = 361  # an hour, and its beginning


@dataclass(slots=True)
class Counts:
    """Sums since the start; times in milliseconds."""

    received: int = 0
    corrupted: int = 0
    ok: int = 0
    failed: int = 0
    calls: int = 0
    calls_ms: float = 0.0
    pulls: int = 0
    pulls_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a topic went over a window; means are 0 where nothing happened."""

    ok_tps: float
    failed_tps: float
    call_ms: float
    pull_tps: float
    pull_ms: float


@dataclass(slots=True)
class TopicCounts:
    """One topic's sums, and copies of them."""

    now: Counts = field(default_factory=Counts)
    _samples: deque[tuple[float, Counts]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def sample(self, now_s: float) -> None:
        """Put a copy aside."""
        self._samples.append((now_s, replace(self.now)))

    def rates(self, now_s: float, window_s: float) -> Rates:
        """Over the samples of the last `window_s` seconds, at least back to the newest one."""
        then_s, then = self._before(now_s - window_s)
        now, span_s = self.now, max(now_s - then_s, 1e-9)
        calls, pulls = now.calls - then.calls, now.pulls - then.pulls
        return Rates(
            (now.ok - then.ok) / span_s,
            (now.failed - then.failed) / span_s,
            (now.calls_ms - then.calls_ms) / calls if calls else 0.0,
            (now.received - then.received) / span_s,
            (now.pulls_ms - then.pulls_ms) / pulls if pulls else 0.0,
        )

    def _before(self, moment_s: float) -> tuple[float, Counts]:
        """The oldest sample since `moment_s`; the newest for none, zero for none at all."""
        for at_s, counts in self._samples:
            if at_s >= moment_s:
                return at_s, counts
        return self._samples[-1] if self._samples else (moment_s, Counts())
