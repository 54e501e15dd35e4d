"""The broker of one directory, in this process: core and log on the running loop.

    Engine ◀─ CatalogueVerbs ◀─ SendVerbs ◀─ SettleVerbs ◀─ ReceiveVerbs ◀─ OffsetVerbs ◀─
    TransactionVerbs ◀─ TimerVerbs ◀─ OperationVerbs ◀─ LocalBroker

Each layer adds the verbs its module is named after to what every verb stands on; all of
them are called on the loop's thread.
"""

import asyncio
import secrets
from collections.abc import Callable

from cosmodrome_server.broker.no_buckets import NoBuckets
from cosmodrome_server.broker.operation_verbs import OperationVerbs
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.broker.statistics import Statistics, frozen, frozen_out
from cosmodrome_server.clock import Clock
from cosmodrome_server.model.log import DelayedStore, Log


class LocalBroker(OperationVerbs):
    """Implements `broker.interface.Broker`. Made on a running loop; `close` ends it.

    Args:
        log: An open log; the broker closes it.
        clock: The only source of time.
        settings: See there.
        on_fatal: Called once, on the loop, when a write failed: the process must stop.
        buckets: Where delayed messages are copied to, closed by `close`; None keeps them in
            the log, however old it becomes.
        random_bytes: Draws the key of receipt handles, on the first start of a directory.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: BrokerSettings,
        on_fatal: Callable[[Exception], None],
        *,
        buckets: DelayedStore | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        super().__init__(log, clock, settings, on_fatal)
        self._open_receipts(random_bytes)
        self._open_polling()
        self._open_timers(buckets or NoBuckets())
        self._commit.touch()

    def state_hash(self) -> str:
        """A digest of the state: equal before a clean stop and after the next start."""
        return self._shard.state_hash()

    def statistics(self) -> Statistics:
        """What was counted so far."""
        counters = self._counters
        return Statistics(
            frozen(counters.messages_in),
            frozen_out(counters.messages_out),
            dict(counters.acks),
            dict(counters.dead_letters),
            dict(counters.commits),
            dict(counters.rollbacks),
            counters.lost_messages,
            self._commit.frames,
            len(self._polling),
            len(self._shard.catalogue.topics),
            len(self._shard.catalogue.groups),
        )

    async def drain(self) -> None:
        """Wait until everything staged is durable and every reply handed over."""
        while not (self._commit.is_settled or self._is_failed):
            self._commit.touch()
            await self._commit.next_frame()

    def abandon(self) -> None:
        """Stop at once, as a crash would: nothing more is written or answered."""
        self._stop_timer()
        self._worker.close()

    async def close(self) -> None:
        """Answer who waits with nothing, make everything durable, close the log."""
        for waiter in self._polling.take_all():
            waiter.is_open = False
            self._give_up(waiter)
        await self.drain()
        self._stop_timer()
        if not self._is_failed:
            self._checkpoints.write()
        await asyncio.to_thread(self._close_store)

    def _close_store(self) -> None:
        self._worker.close()
        self._buckets.close()
        self._log.close()
