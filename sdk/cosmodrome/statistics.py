"""What a push consumer holds, did and does: values for operators and tests.

Rates are RocketMQ 4's (CONSUME_OK_TPS, CONSUME_FAILED_TPS, CONSUME_RT, PULL_TPS, PULL_RT), from
samples every 10 s over the last minute, or up to an hour.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from cosmodrome.filters import Filter


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """One topic of a push consumer.

    Attributes:
        queues: Assigned now.
        cached_messages, cached_bytes: Fetched and not settled.
        received, consumed_ok, consumed_failed, corrupted: Messages since the start.
        consume_ok_tps, consume_failed_tps: Messages a second, lately.
        consume_rt_ms: How long a listener call takes, lately; 0 for none.
        pull_tps: Messages received a second, lately.
        pull_rt_ms: How long a receive takes, the wait for messages with it.
        is_paused: Nothing is fetched.
    """

    queues: int = 0
    cached_messages: int = 0
    cached_bytes: int = 0
    received: int = 0
    consumed_ok: int = 0
    consumed_failed: int = 0
    corrupted: int = 0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_rt_ms: float = 0.0
    pull_tps: float = 0.0
    pull_rt_ms: float = 0.0
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a push consumer holds and did.

    Attributes:
        queues: Assigned now.
        cached_messages, cached_bytes: Fetched and not settled.
        received, consumed_ok, consumed_failed, corrupted: Messages since the start.
        topics: The same for each topic, and how fast it goes.
    """

    queues: int
    cached_messages: int
    cached_bytes: int
    received: int
    consumed_ok: int
    consumed_failed: int
    corrupted: int
    topics: Mapping[str, TopicStatistics]

    @classmethod
    def of(cls, topics: Mapping[str, TopicStatistics]) -> "ConsumerStatistics":
        """The sums over topics."""
        each = topics.values()
        return cls(
            sum(one.queues for one in each),
            sum(one.cached_messages for one in each),
            sum(one.cached_bytes for one in each),
            sum(one.received for one in each),
            sum(one.consumed_ok for one in each),
            sum(one.consumed_failed for one in each),
            sum(one.corrupted for one in each),
            MappingProxyType(dict(topics)),
        )


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One assigned queue.

    Attributes:
        topic, queue_id, broker: Which; queue -1 is any of its broker.
        cached_messages, cached_bytes: Fetched and not settled.
        idle_s: Seconds since a receive of it last began or ended.
    """

    topic: str
    queue_id: int
    broker: str
    cached_messages: int
    cached_bytes: int
    idle_s: float


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """Everything about a push consumer at one moment, as RocketMQ 4's consoles show it.

    Attributes:
        client_id, group: Who.
        started_at: Since when.
        is_ordered: Whether the broker says that the group is ordered.
        subscriptions: Topic → what is wanted of it.
        queues: Every assigned queue.
        statistics: What it did.
    """

    client_id: str
    group: str
    started_at: datetime
    is_ordered: bool
    subscriptions: Mapping[str, Filter]
    queues: tuple[QueueInfo, ...]
    statistics: ConsumerStatistics
