"""What the broker counts: plain numbers, read by whoever shows them.

Verbs add to dictionaries, which costs what a dictionary costs; `Statistics` is a copy of
them with the gauges of the moment. Names, labels and formats are the exporter's.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from cosmodrome_server.model.message import MessageType

# Bytes of bodies, as the reference's histogram has them.
SIZE_BOUNDS = (1_024, 4_096, 524_288, 1_048_576, 2_097_152, 4_194_304)
# Seconds, likewise: from a half message to its end, and how far off delivery times are.
FINISH_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)
DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)


class Flow(msgspec.Struct, frozen=True):
    """Messages and their body bytes."""

    messages: int = 0
    body_bytes: int = 0


class Spread(msgspec.Struct, frozen=True):
    """How values lie: under which of some bounds, and their sum."""

    counts: tuple[int, ...]
    total: float


class Statistics(msgspec.Struct, frozen=True):
    """Counts since the start, and gauges.

    Attributes:
        messages_in: (topic, type) → sent.
        messages_out: (topic, group, is a redelivery) → delivered.
        acks: (topic, group) → acknowledged.
        dead_letters: (topic, group) → moved aside.
        commits: Topic → transactions committed.
        rollbacks: Topic → transactions rolled back.
        sizes: (topic, type) → how many bodies fell under each of `SIZE_BOUNDS`, and above.
        late_acks: (topic, group) → acknowledged after the delivery had ended.
        delayed: Topic → messages that were to wait for their delivery time.
        fired: Topic → messages whose delivery time came.
        finishes: Topic → seconds from half messages to their commits and rollbacks.
        delays: Topic → seconds to the delivery times that sends asked for.
        lost_messages: Passed over because their bytes are damaged.
        frames: Group commits so far.
        waiters: Receives and pulls waiting now.
        topics: How many there are, those of dead letters included.
        groups: How many there are.
    """

    messages_in: dict[tuple[str, MessageType], Flow]
    messages_out: dict[tuple[str, str, bool], Flow]
    acks: dict[tuple[str, str], int]
    dead_letters: dict[tuple[str, str], int]
    commits: dict[str, int]
    rollbacks: dict[str, int]
    sizes: dict[tuple[str, MessageType], tuple[int, ...]]
    late_acks: dict[tuple[str, str], int]
    delayed: dict[str, int]
    fired: dict[str, int]
    finishes: dict[str, Spread]
    delays: dict[str, Spread]
    lost_messages: int
    frames: int
    waiters: int
    topics: int
    groups: int


class Counters:
    """The counts, while they grow."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, MessageType], SentCounter] = {}
        self.messages_out: dict[tuple[str, str, bool], list[int]] = {}
        self.acks: dict[tuple[str, str], int] = {}
        self.dead_letters: dict[tuple[str, str], int] = {}
        self.commits: dict[str, int] = {}
        self.rollbacks: dict[str, int] = {}
        self.late_acks: dict[tuple[str, str], int] = {}
        self.delayed: dict[str, int] = {}
        self.fired: dict[str, int] = {}
        self.finishes: dict[str, SpreadCounter] = {}
        self.delays: dict[str, SpreadCounter] = {}
        self.lost_messages = 0

    def sent_of(self, topic: str, message_type: MessageType) -> "SentCounter":
        """The counts of the messages of one topic and type, to add to."""
        sent = self.sent.get((topic, message_type))
        if sent is None:
            sent = self.sent[topic, message_type] = SentCounter()
        return sent

    def delivered(self, key: tuple[str, str, bool], messages: int, body_bytes: int) -> None:
        """Messages were handed out; key = (topic, group, is a redelivery)."""
        flow = self.messages_out.get(key)
        if flow is None:
            self.messages_out[key] = [messages, body_bytes]
        else:
            flow[0] += messages
            flow[1] += body_bytes

    def acknowledged(self, topic: str, group: str, count: int = 1) -> None:
        """Deliveries ended for good."""
        key = (topic, group)
        self.acks[key] = self.acks.get(key, 0) + count

    def dead(self, topic: str, group: str) -> None:
        """A message became a dead letter."""
        key = (topic, group)
        self.dead_letters[key] = self.dead_letters.get(key, 0) + 1

    def held_back(self, topic: str, delay_ms: int) -> None:
        """A message waits for its delivery time, which is so far off."""
        self.delayed[topic] = self.delayed.get(topic, 0) + 1
        _spread(self.delays, topic, DELAY_BOUNDS_S).add(delay_ms / 1_000)

    def late(self, topic: str, group: str) -> None:
        """An ack came after its delivery had ended."""
        key = (topic, group)
        self.late_acks[key] = self.late_acks.get(key, 0) + 1

    def resolved(self, topic: str, after_ms: int, *, is_commit: bool) -> None:
        """A transaction ended, so long after its half message."""
        counts = self.commits if is_commit else self.rollbacks
        counts[topic] = counts.get(topic, 0) + 1
        _spread(self.finishes, topic, FINISH_BOUNDS_S).add(after_ms / 1_000)

    def forget_topic(self, name: str, groups: Iterable[str]) -> None:
        """Drop what was counted of a topic that is deleted; `groups` are all there are."""
        # By their keys, as there may be a hundred thousand topics that come and go.
        for message_type in MessageType:
            self.sent.pop((name, message_type), None)
        for group in groups:
            self.messages_out.pop((name, group, False), None)
            self.messages_out.pop((name, group, True), None)
            for by_group in (self.acks, self.dead_letters, self.late_acks):
                by_group.pop((name, group), None)
        for by_topic in (self.commits, self.rollbacks, self.delayed, self.fired):
            by_topic.pop(name, None)
        for spreads in (self.finishes, self.delays):
            spreads.pop(name, None)

    def forget_group(self, name: str) -> None:
        """Drop what was counted of a group that is deleted."""
        for key in [key for key in self.messages_out if key[1] == name]:
            del self.messages_out[key]
        for counts in (self.acks, self.dead_letters, self.late_acks):
            for pair in [pair for pair in counts if pair[1] == name]:
                del counts[pair]


class SentCounter:
    """How many bodies fell under each of `SIZE_BOUNDS`, and above, and their bytes."""

    __slots__ = ("body_bytes", "sizes")

    def __init__(self) -> None:
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)
        self.body_bytes = 0

    def flow(self) -> Flow:
        """What was counted so far."""
        return Flow(sum(self.sizes), self.body_bytes)


class SpreadCounter:
    """A `Spread`, while it grows."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def frozen(self) -> Spread:
        """What was counted so far."""
        return Spread(tuple(self._counts), self._total)


def _spread(
    spreads: dict[str, SpreadCounter], topic: str, bounds: Sequence[float]
) -> SpreadCounter:
    found = spreads.get(topic)
    if found is None:
        found = spreads[topic] = SpreadCounter(bounds)
    return found


def frozen_out(
    counts: dict[tuple[str, str, bool], list[int]],
) -> dict[tuple[str, str, bool], Flow]:
    """The flows by topic and group, as values."""
    return {key: Flow(*flow) for key, flow in counts.items()}
