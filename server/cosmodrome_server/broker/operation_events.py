"""A broker that keeps what happens to deliveries, and how far groups are, as topics.

    deliver ──▶ open events, by (group, topic, queue, offset)
    ack, dead letter, the next attempt ──▶ closed events ──▶ one message of many
                                                              cosmodrome_delivery_events
    every lag_s: lag of each group on each topic ──▶          cosmodrome_lag_samples

Bodies are JSON arrays, so that an event costs a fraction of a message. The topics are read
only for clients, and kept as long as any. Events are not promised: those that were open at
a crash are lost, those that find no room are left out, and beyond `OPEN_MAX` the oldest open
one is closed as `unknown`.

Switched on by events.deliveries and events.lag_s; off, the broker is a plain `LocalBroker`
and nothing here runs.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cosmodrome_server.broker.local_broker import NOTHING_ATTACHED, Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import Clock
from cosmodrome_server.core.catalogue import GroupState
from cosmodrome_server.core.progress import Place, Progress
from cosmodrome_server.core.records import Pop
from cosmodrome_server.errors import (
    CorruptFrame,
    InvalidReceiptHandle,
    OverloadedError,
    ReadFailed,
    StoreFull,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import Log, MessageRecord, MessageState
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.topic import Permission, Topic

DELIVERY_TOPIC = "cosmodrome_delivery_events"
LAG_TOPIC = "cosmodrome_lag_samples"
OPEN_MAX = 100_000
EVENTS_PER_MESSAGE = 500
FLUSH_MS = 1_000


class DeliveryEvent(msgspec.Struct):
    """What became of one delivery; times in milliseconds, 0 for "not yet".

    Attributes:
        outcome: acked, dead, expired (delivered again), unknown.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    consumer_group: str
    attempt: int
    born_ms: int
    stored_ms: int
    delivered_ms: int
    settled_ms: int = 0
    outcome: str = ""


class Observed(msgspec.Struct, frozen=True):
    """What is kept.

    Attributes:
        has_deliveries: Delivery events.
        lag_ms: How often lag is sampled; 0 never.
    """

    has_deliveries: bool = True
    lag_ms: int = 0


EVERYTHING_OBSERVED = Observed()


class ObservedBroker(LocalBroker):
    """A `LocalBroker` that keeps operation events.

    Args:
        log, clock, settings, on_fatal, attachments: See `LocalBroker`.
        observed: What is kept.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: BrokerSettings,
        on_fatal: Callable[[Exception], None],
        attachments: Attachments = NOTHING_ATTACHED,
        observed: Observed = EVERYTHING_OBSERVED,
    ) -> None:
        self._has_deliveries = observed.has_deliveries
        self._open_events: dict[tuple[Place, int], DeliveryEvent] = {}
        self._closed_events: list[DeliveryEvent] = []
        self._lag_ms = observed.lag_ms
        self._flush_at_ms = clock.monotonic_ms() + FLUSH_MS
        self._sample_at_ms = clock.monotonic_ms() + observed.lag_ms
        super().__init__(log, clock, settings, on_fatal, attachments)

    def ack(self, group: str, topic: str, handle: str) -> None:
        """See `Messaging`."""
        super().ack(group, topic, handle)
        if self._open_events:
            self._acknowledged(handle)

    def ack_many(
        self, group: str, topic: str, handles: Sequence[str]
    ) -> list[InvalidReceiptHandle | None]:
        """See `Messaging`."""
        results = super().ack_many(group, topic, handles)
        if self._open_events:
            for handle, result in zip(handles, results, strict=True):
                if result is None:
                    self._acknowledged(handle)
        return results

    def _acknowledged(self, handle: str) -> None:
        receipt, queue_offset = self._handles.open(handle)
        place = (receipt.group_id, receipt.topic_id, receipt.queue_id)
        self._close_event(place, queue_offset, "acked")

    def _deliver(
        self,
        pop: Pop,
        found: list[tuple[int, MessageRecord]],
        topic: str,
        deliveries: list[Delivery],
    ) -> None:
        super()._deliver(pop, found, topic, deliveries)
        if not self._has_deliveries:
            return
        group = self._shard.catalogue.groups_by_id[pop.group_id].group.name
        place = (pop.group_id, pop.topic_id, pop.queue_id)
        now_ms = self._now()
        for queue_offset, record in found:
            self._close_event(place, queue_offset, "expired")
            if len(self._open_events) >= OPEN_MAX:
                oldest = next(iter(self._open_events))
                self._close_event(*oldest, "unknown")
            message_id, born_ms = _identity(record.system)
            self._open_events[place, queue_offset] = DeliveryEvent(
                topic,
                pop.queue_id,
                queue_offset,
                message_id,
                group,
                pop.attempt,
                born_ms,
                record.store_timestamp_ms,
                now_ms,
            )

    def _dead_letter(
        self, owner: GroupState, progress: Progress, message: tuple[int, int], lease_ms: int
    ) -> int:
        copied_bytes = super()._dead_letter(owner, progress, message, lease_ms)
        self._close_event(progress.place, message[1], "dead")
        return copied_bytes

    def _close_event(self, place: Place, queue_offset: int, outcome: str) -> None:
        event = self._open_events.pop((place, queue_offset), None)
        if event is not None:
            event.settled_ms = self._now()
            event.outcome = outcome
            self._closed_events.append(event)

    def _do_later(self) -> None:
        super()._do_later()
        now_ms = self._clock.monotonic_ms()
        is_due = now_ms >= self._flush_at_ms
        if is_due:
            self._flush_at_ms = now_ms + FLUSH_MS
        while len(self._closed_events) >= EVENTS_PER_MESSAGE or (is_due and self._closed_events):
            part = self._closed_events[:EVENTS_PER_MESSAGE]
            self._closed_events = self._closed_events[EVENTS_PER_MESSAGE:]
            self._keep_event(DELIVERY_TOPIC, part)
        if self._lag_ms and now_ms >= self._sample_at_ms:
            self._sample_at_ms = now_ms + self._lag_ms
            samples = self._lag_samples()
            if samples:
                self._keep_event(LAG_TOPIC, samples)

    def _next_deadline_ms(self) -> int:
        deadline_ms = super()._next_deadline_ms()
        if self._closed_events:
            deadline_ms = min(deadline_ms, self._flush_at_ms)
        return min(deadline_ms, self._sample_at_ms) if self._lag_ms else deadline_ms

    def _lag_samples(self) -> list[dict[str, Any]]:
        topics, groups = self._shard.catalogue.topics_by_id, self._shard.catalogue.groups_by_id
        found = []
        for group_id, topic_id in self._shard.consumptions.by_pair:
            group, topic = groups.get(group_id), topics.get(topic_id)
            if group is None or topic is None:
                continue
            try:
                lag = self.accumulation(group.group.name, topic.topic.name)
            except (CorruptFrame, ReadFailed):
                continue  # Nobody knows how old what it waits for is.
            found.append(
                {
                    "sampled_ms": self._now(),
                    "consumer_group": group.group.name,
                    "topic": topic.topic.name,
                    "ready": lag.ready,
                    "inflight": lag.inflight,
                    "oldest_unconsumed_ms": lag.oldest_unconsumed_ms,
                }
            )
        return found

    def _keep_event(self, topic: str, content: list[Any]) -> None:
        """Keep what was not promised, if there is room: nothing else waits for it."""
        with contextlib.suppress(OverloadedError, StoreFull):
            self._put_messages([self._event_record(topic, content)])

    def _event_record(self, topic: str, content: list[Any]) -> MessageRecord:
        """The next message of a topic that clients cannot write to."""
        state = self._shard.catalogue.topics.get(topic)
        if state is None:
            created_ms = self._now()
            self.create_topic(
                Topic(topic, queues=1, permission=Permission.READ, created_ms=created_ms)
            )
            state = self._shard.catalogue.topic(topic)
        offset = state.next_offsets[0]
        message_id = f"{topic}-{offset}".encode()
        return MessageRecord(
            MessageState.VISIBLE,
            state.topic_id,
            queue_id=0,
            queue_offset=offset,
            tag_hash=0,
            store_timestamp_ms=self._now(),
            due_ms=0,
            system=wire.encode_bytes(3, message_id),
            user=b"",
            body=msgspec.json.encode(content),
        )


def _identity(system: bytes) -> tuple[str, int]:
    """Message id and time of birth, in one pass: that is most of what an event costs."""
    message_id, born = b"", b""
    for number, value in wire.fields(system):
        if number == wire.MESSAGE_ID and isinstance(value, bytes):
            message_id = value
        elif number == wire.BORN_TIMESTAMP and isinstance(value, bytes):
            born = value
    return message_id.decode("utf-8", "replace"), wire.milliseconds(born)
