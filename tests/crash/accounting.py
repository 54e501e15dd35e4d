"""The accounting identity of a broker that crashes: what may be lost (nothing), what may repeat.

delivered ⊇ sends acknowledged          nothing acknowledged is lost
delivered ⊆ sends attempted             nothing is made up
no delivery begins after an acknowledged ack of it
per message group, first deliveries in the order of the sends
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Everything clients saw, by body; a body is `<producer>:<message group>:<number>`."""

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    delivered: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    first_deliveries: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    settled: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    after_ack: list[str] = field(default_factory=list)
    sent_again: set[str] = field(default_factory=set)
    restarted_s: float | None = None
    until_sent_s: list[float] = field(default_factory=list)
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    def restart(self) -> None:
        """The server is being started again."""
        self.restarted_s = time.monotonic()

    def acknowledge(self, bodies: Iterable[str]) -> None:
        """The server said OK to a send; the first after a restart says how long that took."""
        self.acknowledged.update(bodies)
        if self.restarted_s is not None:
            self.until_sent_s.append(time.monotonic() - self.restarted_s)
            self.restarted_s = None

    def restarts(self) -> str:
        """From the start of a killed server to its first answered send; clients back off."""
        waits_s = sorted(self.until_sent_s) or [0.0]
        p50_s, p99_s = (waits_s[int(share * len(waits_s))] for share in (0.5, 0.99))
        return f"first send p50 {p50_s:.3f} s, p99 {p99_s:.3f} s of {len(waits_s)} restarts"

    def deliver(self, body: str) -> None:
        """A consumer was given a message."""
        # A message stored twice has two lives; only one of them was settled.
        if body in self.settled and body not in self.sent_again:
            self.after_ack.append(body)
        if body not in self.delivered:
            _, group, number = body.split(":")
            self.first_deliveries[group].append(int(number))
        self.delivered[body] += 1

    def settle(self, body: str) -> None:
        """The server said OK to an ack."""
        self.settled.add(body)
        self.progress.set()

    def ack_unanswered(self, bodies: Iterable[str]) -> None:
        """Nobody knows whether they were settled: they may come again, or not."""
        self.unanswered.update(bodies)
        self.progress.set()

    @property
    def is_drained(self) -> bool:
        """Whether everything acknowledged was delivered, and settled as far as one can know."""
        return self.acknowledged <= self.settled | self.unanswered

    def check(self) -> None:
        """Raise an AssertionError that names the messages if the identity does not hold."""
        seen = set(self.delivered)
        assert sorted(self.acknowledged - seen) == [], "acknowledged and lost"
        assert sorted(seen - self.attempted) == [], "delivered and never sent"
        assert self.after_ack == [], "delivered again after an acknowledged ack"
        for group, numbers in self.first_deliveries.items():
            if group:
                assert numbers == sorted(numbers), f"out of order in {group}"

    @property
    def duplicates(self) -> int:
        """Deliveries beyond the first, of messages that were sent once.

        A send whose outcome was unknown is sent again and may be stored twice.
        """
        return sum(
            count - 1 for body, count in self.delivered.items() if body not in self.sent_again
        )
