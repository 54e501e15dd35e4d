"""When the changed rows of the state are written, so that a start replays little.

    frame n sealed ─▶ due? ─▶ rows as of frame n ─▶ frame n durable ─▶ the log writes them

The rows are taken when a frame was just given to the writer: then the state is exactly
what the log says up to that frame. They are handed over once it is durable, never before:
a checkpoint must not know what a crash can take back.
"""

from collections.abc import Callable

from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import Clock
from cosmodrome_server.core.machine import DirtyRow
from cosmodrome_server.core.shard import Shard
from cosmodrome_server.model.log import Log


class Checkpoints:
    """Decides when, and carries the rows over until they may be written."""

    def __init__(self, log: Log, shard: Shard, clock: Clock, settings: BrokerSettings) -> None:
        self._log = log
        self._shard = shard
        self._clock = clock
        self._settings = settings
        self._last_ms = clock.monotonic_ms()
        self.written = 0

    def frame_sealed(self) -> Callable[[], None] | None:
        """A frame was given to the writer; return what to do when it is durable, if anything."""
        if not self._is_due():
            return None
        rows, lsn = self._take()
        return lambda: self._write(rows, lsn)

    def write_now(self) -> None:
        """Write one while nothing is staged or being written, before a clean stop."""
        assert not self._log.has_staged, "a checkpoint holds durable state only"
        self._write(*self._take())

    def _is_due(self) -> bool:
        if self._shard.bytes_applied >= self._settings.checkpoint_bytes:
            return True
        return self._clock.monotonic_ms() - self._last_ms >= self._settings.checkpoint_ms

    def _take(self) -> tuple[list[DirtyRow], int]:
        self._last_ms = self._clock.monotonic_ms()
        self._shard.bytes_applied = 0
        return list(self._shard.dirty_rows()), self._log.open_lsn - 1

    def _write(self, rows: list[DirtyRow], lsn: int) -> None:
        self.written += 1
        self._log.checkpoint(rows, lsn)
