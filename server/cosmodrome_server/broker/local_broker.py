"""The broker of one directory, in this process: core and log on the running loop.

    Engine ◀─ CatalogueVerbs ◀─ SendVerbs ◀─ SettleVerbs ◀─ ReceiveVerbs ◀─ WaitingVerbs ◀─
    OffsetVerbs ◀─ TransactionVerbs ◀─ TimerVerbs ◀─ OperationVerbs ◀─ LiteVerbs ◀─ LocalBroker

Each layer adds the verbs its module is named after to what every verb stands on; all of
them are called on the loop's thread.
"""

import asyncio
import os
from collections.abc import Callable, Iterator

import msgspec

from cosmodrome_server.broker.lite_verbs import LiteVerbs
from cosmodrome_server.broker.no_buckets import NoBuckets
from cosmodrome_server.broker.operation_verbs import Finder
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.broker.statistics import Statistics, frozen_out
from cosmodrome_server.clock import Clock
from cosmodrome_server.model.log import DelayedStore, KeptLonger, Log

# How often segments that are too old or too many are looked for.
_RETAIN_EVERY_MS = 10_000


class Attachments(msgspec.Struct, frozen=True):
    """What stands beside the log.

    Attributes:
        buckets: Where delayed messages are copied to; the broker closes it. Without one
            they stay in the log, however old it becomes.
        finder: Finds messages by id or key; called in a thread. None: nothing is found.
        random_bytes: Draws the key of receipt handles, on the first start of a directory.
    """

    buckets: DelayedStore = msgspec.field(default_factory=NoBuckets)
    finder: Finder | None = None
    random_bytes: Callable[[int], bytes] = os.urandom


NOTHING_ATTACHED = Attachments()


class LocalBroker(LiteVerbs):
    """Implements `broker.interface.Broker`. Made on a running loop; `close` ends it.

    Args:
        log: An open log; the broker closes it.
        clock: The only source of time.
        settings: See there.
        on_fatal: Called once, on the loop, when a write failed: the process must stop.
        attachments: See there.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: BrokerSettings,
        on_fatal: Callable[[Exception], None],
        attachments: Attachments = NOTHING_ATTACHED,
    ) -> None:
        super().__init__(log, clock, settings, on_fatal)
        self._open_receipts(attachments.random_bytes)
        self._open_polling()
        self._open_timers(attachments.buckets)
        self._open_search(attachments.finder)
        self._open_lite()
        self._retain_ms = clock.monotonic_ms() + _RETAIN_EVERY_MS
        self._commit.touch()

    def state_hash(self) -> str:
        """A digest of the state: equal before a clean stop and after the next start."""
        return self._shard.state_hash()

    def take_commit_seconds(self) -> list[float]:
        """How long each group commit took since the last call; at most some thousands."""
        return self._commit.take_seconds()

    def statistics(self) -> Statistics:
        """What was counted so far."""
        counters = self._counters
        return Statistics(
            {key: sent.flow() for key, sent in counters.sent.items()},
            frozen_out(counters.messages_out),
            dict(counters.acks),
            dict(counters.dead_letters),
            dict(counters.commits),
            dict(counters.rollbacks),
            {key: tuple(sent.sizes) for key, sent in counters.sent.items()},
            dict(counters.late_acks),
            dict(counters.delayed),
            dict(counters.fired),
            {topic: spread.frozen() for topic, spread in counters.finishes.items()},
            {topic: spread.frozen() for topic, spread in counters.delays.items()},
            counters.lost_messages,
            self._commit.frames,
            len(self._polling),
            len(self._shard.catalogue.topics),
            len(self._shard.catalogue.groups),
        )

    def _do_later(self) -> None:
        # First: what follows may find no space, and this makes some.
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._retain_ms:
            self._retain_ms = now_ms + _RETAIN_EVERY_MS
            self._retain()
        super()._do_later()

    def _retain(self) -> None:
        self._log.retain(self._now(), self.oldest_needed_position(), self._kept_longer())

    def _kept_longer(self) -> Iterator[KeptLonger]:
        """Lite topics are kept as their parents are, whatever those said when they were created."""
        retaining, parents = self._shard.catalogue.retaining, self._parents
        for topic_id, state in retaining.items():
            if topic_id not in parents:
                yield KeptLonger(topic_id, state.topic.queues, state.topic.retention_ms)
        for lite_id, parent_id in parents.items():
            parent = retaining.get(parent_id)
            if parent is not None:
                yield KeptLonger(lite_id, 1, parent.topic.retention_ms)

    def _next_deadline_ms(self) -> int:
        return min(super()._next_deadline_ms(), self._retain_ms)

    async def drain(self) -> None:
        """Wait until everything staged is durable and every reply handed over."""
        while not (self._commit.is_settled or self._is_failed):
            self._commit.touch()
            await self._commit.next_frame()

    def abandon(self) -> None:
        """Stop at once, as a crash would: nothing more is written or answered."""
        self._stop_timer()
        self._worker.close()
        self._searcher.shutdown()

    def end_waits(self) -> None:
        """Answer who waits with nothing, now and from now on: the broker is about to stop."""
        while self._asked:
            self._serve_turn()
        self._waits_end = True
        for waiter in self._polling.take_all():
            waiter.is_open = False
            self._give_up(waiter)

    async def close(self) -> None:
        """Answer who waits with nothing, make everything durable, close the log."""
        self.end_waits()
        # What time brings can wait for the next start: a backlog of due messages, fired while
        # each frame waits for a slow disk, would keep a stopping broker for minutes.
        self._stop_timer()
        await self.drain()
        if not self._is_failed:
            self._checkpoints.write()
        await asyncio.to_thread(self._close_store)

    def _close_store(self) -> None:
        self._worker.close()
        self._searcher.shutdown()
        try:
            self._buckets.close()
        finally:
            # What the log has is brought to the disk whatever becomes of copies of it.
            self._log.close()
