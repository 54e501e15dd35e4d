"""What a consumer group is: its order, its patience and where it begins."""

from enum import StrEnum

import msgspec

# Consumer groups of the broker itself.
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

# The reference's list; attempt n rests entry n - 1 (protocol.md 3.2).
DEFAULT_BACKOFF_MS = tuple(
    seconds * 1000
    for seconds in (
        1,
        5,
        10,
        30,
        60,
        120,
        180,
        240,
        300,
        360,
        420,
        480,
        540,
        600,
        1200,
        1800,
        3600,
        7200,
    )
)


class CustomizedBackoff(msgspec.Struct, frozen=True):
    """Attempt n rests `next_ms[n - 1]`; the last entry repeats."""

    next_ms: tuple[int, ...] = DEFAULT_BACKOFF_MS

    def delay_ms(self, attempt: int) -> int:
        """How long to rest after attempt `attempt` (from 1) failed."""
        return self.next_ms[min(attempt, len(self.next_ms)) - 1]


class ExponentialBackoff(msgspec.Struct, frozen=True):
    """initial, initial × multiplier, … never above max."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: float = 2.0

    def delay_ms(self, attempt: int) -> int:
        """How long to rest after attempt `attempt` (from 1) failed."""
        # 32 doublings exceed any max; the bound keeps the power finite.
        grown = self.initial_ms * self.multiplier ** min(attempt - 1, 32)
        return int(min(self.max_ms, grown))


Backoff = CustomizedBackoff | ExponentialBackoff


class ConsumeFrom(StrEnum):
    """Where a group begins on a queue it has never read.

    AUTO is the reference's rule: from the beginning while nothing has been deleted
    and the queue is young, else from the newest message (protocol.md 12.1).
    """

    AUTO = "auto"
    FIRST = "first"
    LAST = "last"
    TIMESTAMP = "timestamp"


class Group(msgspec.Struct, frozen=True):
    """A consumer group as its creator asked for it.

    Attributes:
        name: As clients say it.
        is_fifo: Whether messages of one message group are delivered in order.
        max_attempts: Deliveries before a message is a dead letter.
        backoff: How long a failed message rests.
        consume_from: Where it begins.
        consume_timestamp_ms: For `ConsumeFrom.TIMESTAMP`.
        is_consumable: False refuses every receive.
        lite_bind_topic: The LITE topic a lite group reads; "" for a regular group.
        priority_factor: 0 to 100, how often a priority topic is scanned from the top.
        created_ms: When it was created.
        attributes: Anything else, kept as it is (`lite.sub.model`, quotas, …).
    """

    name: str
    is_fifo: bool = False
    max_attempts: int = 17
    backoff: Backoff = msgspec.field(default_factory=CustomizedBackoff)
    consume_from: ConsumeFrom = ConsumeFrom.AUTO
    consume_timestamp_ms: int = 0
    is_consumable: bool = True
    lite_bind_topic: str = ""
    priority_factor: int = 100
    created_ms: int = 0
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
