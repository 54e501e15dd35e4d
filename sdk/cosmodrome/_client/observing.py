"""What a push consumer is seen doing: sums for its statistics, and the official metrics."""

import asyncio
from collections.abc import Sequence

from cosmodrome._client import meters
from cosmodrome._client.counts import TopicCounts
from cosmodrome._client.meters import Meters
from cosmodrome.message import MessageView


class Observations:
    """Takes note of receives and listener calls, topic by topic.

    Args:
        meters_: Measured too, while somebody asks for them.
    """

    def __init__(self, meters_: Meters) -> None:
        self._meters = meters_
        self._topics: dict[str, TopicCounts] = {}

    def topic(self, name: str) -> TopicCounts:
        """The sums of a topic."""
        counts = self._topics.get(name)
        if counts is None:
            counts = self._topics[name] = TopicCounts()
        return counts

    async def sample(self) -> None:
        """Put every sum aside, for rates."""
        for counts in self._topics.values():
            counts.sample(_now_s())

    def pulled(
        self,
        topic: str,
        messages: Sequence[MessageView],
        started_s: float,
        transport_ms: float | None,
    ) -> None:
        """A receive ended well."""
        now_s = _now_s()
        counts = self.topic(topic).now
        counts.received += len(messages)
        counts.pulls += 1
        counts.pulls_ms += (now_s - started_s) * 1000
        if not self._meters.is_on or not messages:
            return
        if transport_ms is not None:
            self._meters.take(meters.DELIVERY_LATENCY, topic, max(0.0, transport_ms))
        for message in messages:
            if message.receipt is not None:
                message.receipt.arrived_s = now_s

    def consumed(self, messages: Sequence[MessageView], ok: int, started_s: float) -> None:
        """A listener call ended; `ok` of its messages succeeded."""
        took_ms = (_now_s() - started_s) * 1000
        topic, failed = messages[0].topic, len(messages) - ok
        counts = self.topic(topic).now
        counts.ok += ok
        counts.failed += failed
        counts.calls += 1
        counts.calls_ms += took_ms
        if not self._meters.is_on:
            return
        status = "failure" if failed else "success"
        self._meters.take(meters.PROCESS_TIME, topic, took_ms, status=status)
        for message in messages:
            if message.receipt is not None and message.receipt.arrived_s:
                waited_ms = (started_s - message.receipt.arrived_s) * 1000
                self._meters.take(meters.AWAIT_TIME, topic, waited_ms)

    def corrupted(self, message: MessageView) -> None:
        """A message arrived damaged."""
        self.topic(message.topic).now.corrupted += 1


def _now_s() -> float:
    return asyncio.get_running_loop().time()
