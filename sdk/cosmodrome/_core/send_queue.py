"""Which waiting messages go into the next request, and which must wait.

    add ──▶ waiting ──take──▶ a batch under way ──done──▶ room for the next

Rules
1. A batch holds messages of one kind and, for ordered ones, of one queue's endpoint.
2. Two requests never carry messages of one message group at the same time, so a group's
   order is the order of `add`, whatever happens to a request.
3. No linger: what waits goes as soon as a request may be sent. Under load requests are
   under way, what comes meanwhile waits, and the next batch is large by itself.
4. Only NORMAL and FIFO messages share a request; FIFO ones only where the broker is known
   to choose the queue per message (clients.md 2.5.4: the reference's proxy does not).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cosmodrome.message import MessageType

Ticket = TypeVar("Ticket")
# A request of more messages costs less of each; one of all that wait leaves the others idle.
SHARE_MIN = 64
# How far past a message that must wait others are looked for: bounds the work of `take`.
LOOK_AHEAD = 512


@dataclass(slots=True)
class Waiting(Generic[Ticket]):
    """One message that waits to be sent; the ticket is the caller's."""

    ticket: Ticket
    kind: MessageType
    message_group: str
    body_bytes: int


@dataclass(slots=True)
class Bounds:
    """How much goes at once.

    Attributes:
        messages: In one request.
        body_bytes: In one request; a single larger message still goes, alone.
        requests: Under way at the same time, per topic.
    """

    messages: int = 256
    body_bytes: int = 1 << 20
    requests: int = 4


@dataclass(slots=True)
class SendQueue(Generic[Ticket]):
    """The messages of one topic that wait."""

    bounds: Bounds
    batches_normal: bool = True
    batches_fifo: bool = False
    _waiting: deque[Waiting[Ticket]] = field(default_factory=deque)
    _busy_groups: set[str] = field(default_factory=set)
    _under_way: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._under_way

    def add(self, waiting: Waiting[Ticket]) -> bool:
        """Let a message wait; whether it may go at once, as far as itself is concerned."""
        self._waiting.append(waiting)
        return (
            self._under_way < self.bounds.requests
            and waiting.message_group not in self._busy_groups
        )

    def take(self) -> list[Waiting[Ticket]]:
        """The next request, in order; empty when none may be sent now."""
        if not self._waiting or self._under_way >= self.bounds.requests:
            return []
        batch: list[Waiting[Ticket]] = []
        passed: list[Waiting[Ticket]] = []
        passed_groups: set[str] = set()
        size = most = 0
        while self._waiting and len(passed) < LOOK_AHEAD:
            one = self._waiting.popleft()
            if self._must_wait(one, batch, passed_groups, size):
                passed.append(one)
                if one.message_group:
                    passed_groups.add(one.message_group)
                continue
            most = most or self._most(one.kind)
            batch.append(one)
            size += one.body_bytes
            if len(batch) >= most:
                break
        self._waiting.extendleft(reversed(passed))
        if batch:
            self._under_way += 1
            self._busy_groups.update(one.message_group for one in batch if one.message_group)
        return batch

    def abandon(self) -> list[Waiting[Ticket]]:
        """Forget what waits; returns it."""
        waiting, self._waiting = list(self._waiting), deque()
        return waiting

    def done(self, batch: list[Waiting[Ticket]]) -> None:
        """A request ended, well or not."""
        self._under_way -= 1
        if self._busy_groups:
            self._busy_groups.difference_update(one.message_group for one in batch)

    def _most(self, kind: MessageType) -> int:
        """How many messages of a kind go together now; one was taken already."""
        is_shared = (kind is MessageType.NORMAL and self.batches_normal) or (
            kind is MessageType.FIFO and self.batches_fifo
        )
        if not is_shared:
            return 1
        share = -(-(len(self._waiting) + 1) // (self.bounds.requests - self._under_way))
        return min(self.bounds.messages, max(SHARE_MIN, share))

    def _must_wait(
        self, one: Waiting[Ticket], batch: list[Waiting[Ticket]], passed: set[str], size: int
    ) -> bool:
        group = one.message_group
        if group and (group in self._busy_groups or group in passed):
            return True
        if not batch:
            return False
        return one.kind is not batch[0].kind or size + one.body_bytes > self.bounds.body_bytes
