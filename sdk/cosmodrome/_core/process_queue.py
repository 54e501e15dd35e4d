"""What a push consumer holds of one assigned queue, and when it may fetch more.

    fetched ──cache──▶ waiting for the listener ──▶ being consumed ──▶ settled ──evict──▶ gone

Bounded by count and by bytes of bodies; a queue that is full does not fetch, and is woken when a
fifth of its room is free again. A queue that was dropped hands back what no listener has seen.
Sans-IO: times are handed in, in seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from cosmodrome._core.route import MessageQueue
from cosmodrome.filters import Filter
from cosmodrome.message import MessageView

# Three times the longest a fetch may take without a sign of life (clients.md 5-12).
EXPIRY_FACTOR = 3
# Fetching begins again when this much of the room is free: not one message at a time.
LOW_WATER = 0.8


@dataclass(slots=True)
class Thresholds:
    """How much one queue may hold; 0 messages means it may hold nothing now."""

    messages: int
    body_bytes: int


@dataclass(slots=True)
class ProcessQueue:
    """One assigned queue.

    Attributes:
        queue: What is fetched.
        filter: What of it is wanted.
        attempt_id: Names the fetch under way; the same until something was received.
        is_dropped: It is not ours any more.
        active_s: When a fetch last began or ended.
        full_s: When it was last too full to fetch.
    """

    queue: MessageQueue
    filter: Filter
    attempt_id: str = ""
    is_dropped: bool = False
    active_s: float = 0.0
    full_s: float = float("-inf")
    # By identity: two deliveries of one message may be here at once.
    _messages: dict[int, MessageView] = field(default_factory=dict)
    _fetching: int = 0
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies it holds."""
        return self._bytes

    def cache(self, messages: Iterable[MessageView]) -> None:
        """Hold what was fetched."""
        for message in messages:
            self._messages[id(message)] = message
            self._bytes += len(message.body)

    def evict(self, message: MessageView) -> None:
        """A message was settled, either way."""
        if self._messages.pop(id(message), None) is not None:
            self._bytes -= len(message.body)

    def room(self, thresholds: Thresholds) -> int:
        """How many messages may be fetched now; 0 for none."""
        if self._bytes >= thresholds.body_bytes:
            return 0
        return max(0, thresholds.messages - len(self._messages) - self._fetching)

    def reserve(self, messages: int) -> None:
        """So many may arrive with a fetch that begins; a negative number when it ended."""
        self._fetching += messages

    def has_low_water(self, thresholds: Thresholds) -> bool:
        """Whether enough room is free to begin fetching again."""
        return (
            len(self._messages) + self._fetching <= thresholds.messages * LOW_WATER
            and self._bytes <= thresholds.body_bytes * LOW_WATER
            and self.room(thresholds) > 0
        )

    def is_expired(self, now_s: float, longest_fetch_s: float) -> bool:
        """Whether nothing happened for so long that its fetching must have died."""
        span = EXPIRY_FACTOR * longest_fetch_s
        return now_s - self.active_s >= span and now_s - self.full_s >= span


def thresholds(messages_max: int, bytes_max: int, queues: int) -> Thresholds:
    """Share the bounds of a consumer among its queues; nothing for none."""
    if queues == 0:
        return Thresholds(0, 0)
    return Thresholds(max(1, messages_max // queues), max(1, bytes_max // queues))


@dataclass(frozen=True, slots=True)
class Change:
    """What a new assignment means: queues to let go, queues to begin with."""

    dropped: list[ProcessQueue]
    added: list[MessageQueue]


def change(
    held: Iterable[ProcessQueue],
    assigned: Iterable[MessageQueue],
    wanted: Filter,
    *,
    now_s: float,
    longest_fetch_s: float,
) -> Change:
    """Compare what is held with what is assigned.

    Dropped: no longer assigned, expired, or fetched with another filter than is wanted now.
    Added: what is assigned and then not held.
    """
    latest = dict.fromkeys(assigned)
    dropped = [
        one
        for one in held
        if one.queue not in latest or one.filter != wanted or one.is_expired(now_s, longest_fetch_s)
    ]
    kept = {one.queue for one in held} - {one.queue for one in dropped}
    return Change(dropped, [queue for queue in latest if queue not in kept])
