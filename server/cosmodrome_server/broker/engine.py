"""Core, log and clock on one loop: what every verb stands on.

A verb reads the clock once, lets the core catch up with it, plans, and puts records: each
is staged in the open frame and applied at once. What must be done a little later (waiters
to wake, dead letters to copy, leases to renew) is done at the end of the turn; what must
be done at a time of its own, by the one timer of the broker.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence

from cosmodrome_server.broker.checkpoints import Checkpoints
from cosmodrome_server.broker.group_commit import GroupCommit
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.broker.statistics import Counters
from cosmodrome_server.clock import BelievedTime, Clock
from cosmodrome_server.core.catalogue import CatalogueRecord
from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.records import ConsumptionRecord, Pop
from cosmodrome_server.core.shard import OtherRecord, Shard
from cosmodrome_server.errors import StateUnreadable, StoreFull
from cosmodrome_server.model.log import Log, MessageRecord, RecordKind

# On a disk without any space left, how long what time brings waits for the next try.
_FULL_RETRY_MS = 1_000
# Looking a member up in its enum takes longer than what is done with it.
_POP = RecordKind.POP


class Engine:
    """The broker without its verbs.

    Args:
        log: An open log; replayed here, closed by `close`.
        clock: The only source of time.
        settings: See there.
        on_fatal: Called once, on the loop, when a write failed: the process must stop.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        settings: BrokerSettings,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._settings = settings
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._shard = Shard(log, settings.transactions)
        self._counters = Counters()
        self._last_ms = 0
        self._believed = BelievedTime(clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        self._is_closed = False
        self._is_failed = False
        self._is_put_off = False
        self._replay()
        # The lease clock goes on from the last record, or from the wall clock if that is
        # later: what expired while the broker was down has expired.
        self._lease_base_ms = max(self._shard.lease_ms, clock.now_ms()) - clock.monotonic_ms()
        self._checkpoints = Checkpoints(log, self._shard, clock, settings)
        self._commit = GroupCommit(
            log, self._shard, self._end_of_turn, self._checkpoints.frame_sealed, self._look_ahead
        )
        # Asked by every call: none in between.
        self.reply_when_durable, self.catch_up = (
            self._commit.reply_when_durable,
            self._commit.catch_up,
        )
        log.set_snapshot(self._shard.rows)
        log.set_on_failed(self._failed_on_writer)

    def _replay(self) -> None:
        try:
            self._shard.restore(self._log.rows())
            for replayed in self._log.replay():
                self._shard.replay(replayed)
                self._last_ms = max(self._last_ms, replayed.timestamp_ms)
        except (struct.error, UnicodeDecodeError) as error:
            # Checksums were right: this is what was written.
            raise StateUnreadable(f"the stored state is of another version: {error}") from error
        self._shard.started()
        self._last_ms = max(self._last_ms, self._shard.log_ms)

    # Time

    def _now(self) -> int:
        """The log's time: the wall clock, never behind an earlier answer."""
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
            return now_ms
        return self._last_ms

    def _advance(self) -> int:
        """Let the core catch up with the lease clock, and return that."""
        lease_ms = self._lease_base_ms + self._clock.monotonic_ms()
        self._shard.advance(lease_ms)
        return self._shard.lease_ms

    # Records

    def _put(self, record: ConsumptionRecord) -> None:
        self._log.stage(record.kind, record.encode())
        self._shard.consumptions.apply(record)
        self._commit.touch()

    def _put_pop(self, record: Pop) -> None:
        """`_put` of the record of which most are put."""
        self._log.stage(_POP, record.encode())
        self._shard.consumptions.apply_pop(record)
        self._commit.touch()

    def _put_other(self, record: OtherRecord) -> None:
        self._log.stage(record.kind, record.encode())
        self._shard.apply_other(record)
        self._commit.touch()

    def _put_catalogue(self, record: CatalogueRecord) -> None:
        self._log.stage(record.kind, record.payload)
        self._shard.apply_catalogue(record)
        self._commit.touch()

    def _put_messages(self, records: Sequence[MessageRecord]) -> list[int]:
        """Store messages, all or none; return their positions."""
        if not records:
            return []
        positions = self._log.stage_messages(records)
        self._shard.apply_messages(records, positions)
        self._commit.touch()
        return positions

    # Later

    def _end_of_turn(self) -> None:
        if self._is_closed:
            return
        self._serve_turn()
        try:
            self._do_later()
        except StoreFull:
            # Even the space kept for state records is used up. What time brings waits for some;
            # what clients have staged does not.
            self._is_put_off = True
        else:
            self._is_put_off = False

    def _look_ahead(self) -> None:
        """Set the timer; once the turn's frame is on its way, which others wait for."""
        if self._is_closed:
            return
        if self._is_put_off:
            self._arm(self._clock.monotonic_ms() + _FULL_RETRY_MS)
        else:
            self._arm(self._next_deadline_ms())

    def _serve_turn(self) -> None:
        """Serve who was put off to the end of the turn, whatever else fails; never raises."""

    def _do_later(self) -> None:
        """Do what verbs and time left to do; the layers above extend it."""

    def _next_deadline_ms(self) -> int:
        """When the timer must next fire, on the monotonic clock."""
        lease_ms = self._shard.next_deadline_ms()
        return lease_ms if lease_ms == NEVER_MS else lease_ms - self._lease_base_ms

    def _until(self, log_ms: int) -> int:
        """A time of the log's clock, on the monotonic clock."""
        if log_ms == NEVER_MS:
            return NEVER_MS
        return log_ms - self._now() + self._clock.monotonic_ms()

    def _arm(self, deadline_ms: int) -> None:
        if deadline_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms != NEVER_MS:
            delay_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            self._timer = self._loop.call_later(delay_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_ms = NEVER_MS
        self.wake()

    def wake(self) -> None:
        """Do what has become due; the timer calls it, and tests that own the clock."""
        self._advance()
        self._end_of_turn()
        self._look_ahead()

    # Stopping

    def _failed_on_writer(self, error: Exception) -> None:
        self._loop.call_soon_threadsafe(self._failed, error)

    def _failed(self, error: Exception) -> None:
        self._is_failed = True
        self._stop_timer()
        self._commit.fail()
        self._on_fatal(error)

    def _stop_timer(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
