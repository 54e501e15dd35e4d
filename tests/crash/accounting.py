"""The accounting identity of a broker that crashes: what may be lost (nothing), what may repeat.

delivered ⊇ sends acknowledged          nothing acknowledged is lost
delivered ⊆ sends attempted             nothing is made up
no delivery begins after an acknowledged ack of it
per message group, first deliveries in the order of the sends
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice, pairwise

# Queue and offset. A message whose send was tried again may be stored twice, and has two.
Place = tuple[int, int]
_NAMED_MAX = 20


@dataclass
class Ledger:
    """Everything clients saw, by body; a body is `<producer>:<message group>:<number>`.

    Attributes:
        deliveries: How often each came, by body and place.
        settled_at: The places whose ack was answered.
    """

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    deliveries: Counter[tuple[str, Place]] = field(default_factory=Counter)
    first_deliveries: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    settled: set[str] = field(default_factory=set)
    settled_at: set[tuple[str, Place]] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    after_ack: list[tuple[str, Place]] = field(default_factory=list)
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

    def deliver(self, body: str, place: Place) -> None:
        """A consumer was given a message."""
        if (body, place) in self.settled_at:
            self.after_ack.append((body, place))
        if body not in self.delivered:
            _, group, number = body.split(":")
            self.first_deliveries[group].append(int(number))
        self.delivered.add(body)
        self.deliveries[body, place] += 1

    def settle(self, body: str, place: Place) -> None:
        """The server said OK to an ack."""
        self.settled.add(body)
        self.settled_at.add((body, place))
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
        _none(self.acknowledged - self.delivered, "acknowledged and lost")
        _none(self.delivered - self.attempted, "delivered and never sent")
        _none(self.after_ack, "delivered again after an acknowledged ack")
        for group, numbers in self.first_deliveries.items():
            if group:
                late = [number for before, number in pairwise(numbers) if number < before]
                _none(late, f"out of order in {group}")

    @property
    def duplicates(self) -> int:
        """Deliveries beyond the first of what is stored at one place."""
        return self.deliveries.total() - len(self.deliveries)


def _none(found: Collection[object], fault: str) -> None:
    assert not found, f"{fault}: {len(found)}, {list(islice(found, _NAMED_MAX))}"
