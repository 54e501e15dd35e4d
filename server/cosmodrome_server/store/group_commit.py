"""Many records, one durable write: the writer and its only rule.

    loop      stage, stage, stage ─▶ commit(frame 7) ─▶ stage, stage … ─▶ commit(frame 8)
    writer                             join · crc · pwritev · fdatasync ─▶ on_durable, on_idle

One frame is written at a time and nothing waits for more to come: while a frame is written
the next one fills. So an idle broker answers after one fsync, and a busy one shares each.
A small frame is the work of a broker with little to do: it may be written on the
loop (`worker.submit_short`), which saves waking the thread and being woken by it.

Fail-stop. After an error of a write or a sync nobody knows what is on the disk: the kernel may
have dropped the pages and will report the next sync as done. So the first error is the last
thing this writer does; it is never tried again, and no frame after it is ever durable.

    mode         durable means              a process crash loses   a power cut loses
    sync         on the disk                nothing                 nothing
    interval:N   in the kernel              nothing                 N ms and a sync
    os           in the kernel              nothing                 what the kernel holds (~30 s)

With `interval` the oldest frame that is not synced decides, not the last sync: it is looked for
four times an interval, and synced for when three quarters of one are over.
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event

import msgspec

from cosmodrome_server.clock import Clock
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.frame import FrameHeader, encode_header
from cosmodrome_server.store.segment import Segment, path_of
from cosmodrome_server.store.segment import encode_header as encode_segment_header
from cosmodrome_server.store.worker import Worker

_log = logging.getLogger(__name__)

# Parts above this size on average are written where they are; joining them costs more than
# it saves. A message is three parts.
_JOIN_PART_BYTES_MAX = 11 * 1024
# What a frame may be to be written on the loop: a send and the receive that waited for it.
_SMALL_FRAME_BYTES = 16 * 1024
_SMALL_FRAME_RECORDS = 4
# Looks at the age of the oldest unsynced frame in each interval; a sync is due one before the end.
_LOOKS_PER_INTERVAL = 4


class Durability(msgspec.Struct, frozen=True):
    """When a frame counts as durable; `parse_durability` reads it from the settings.

    Attributes:
        is_synced: Each frame is synced before it counts.
        interval_ms: Otherwise: the longest time without a sync; 0 for never.
    """

    is_synced: bool = True
    interval_ms: int = 0


def parse_durability(text: str) -> Durability:
    """Read `sync`, `interval:N` or `os`."""
    if text == "sync":
        return Durability()
    kind, _, interval = text.partition(":")
    return Durability(is_synced=False, interval_ms=int(interval) if kind == "interval" else 0)


class Frame(msgspec.Struct):
    """Records on their way to the disk.

    Attributes:
        segment: Where they go.
        start: The byte offset of the frame.
        parts: Its payload.
        length: Bytes of the payload.
        records: How many.
        lsn: Its number.
        timestamp_ms: Its time.
        spare: The file's name so far, when this is the first frame of its segment.
        on_durable: What to call.
    """

    segment: Segment
    start: int
    parts: list[bytes]
    length: int
    records: int
    lsn: int
    timestamp_ms: int
    spare: Path | None
    on_durable: Callable[[], None]


class FrameWriter:
    """Writes frames, one at a time. Callbacks run where it writes.

    Args:
        worker: Whose thread it writes in, if not the caller's.
        files: For the name of a new segment.
        directory: Of the shard.
        durability: When a frame is durable.
        clock: For `interval:N`.
    """

    def __init__(
        self, worker: Worker, files: Files, directory: Path, durability: Durability, clock: Clock
    ) -> None:
        self._worker = worker
        self._files = files
        self._directory = directory
        self._durability = durability
        self._clock = clock
        self._on_idle: Callable[[], None] = lambda: None
        self._on_failed: Callable[[Exception], None] = lambda _: None
        self._frame: Frame | None = None
        self._written: Segment | None = None
        # No frame that is not on the disk was written before this.
        self._unsynced_since_ms = 0
        self._after: list[tuple[int, Callable[[], None]]] = []
        self.failure: Exception | None = None
        self.durable_lsn = 0
        self.synced_lsn = 0
        if durability.interval_ms:
            worker.every(durability.interval_ms / _LOOKS_PER_INTERVAL / 1_000, self._sync_when_due)

    @property
    def is_free(self) -> bool:
        """Whether `write` may be called."""
        return self._frame is None and self.failure is None

    @property
    def bytes_writing(self) -> int:
        """Bytes of the frame that is being written."""
        frame = self._frame
        return 0 if frame is None else frame.length

    def begin(self, lsn: int) -> None:
        """At start: frames up to `lsn` are on the disk."""
        self.durable_lsn = self.synced_lsn = lsn

    def set_on_idle(self, callback: Callable[[], None]) -> None:
        """See `model.log.Log.set_on_idle`."""
        self._on_idle = callback

    def set_on_failed(self, callback: Callable[[Exception], None]) -> None:
        """See `model.log.Log.set_on_failed`."""
        self._on_failed = callback

    def write(self, frame: Frame) -> None:
        """Write a frame; the writer must be free."""
        assert self._frame is None, "one frame at a time"
        self._frame = frame
        is_small = frame.records <= _SMALL_FRAME_RECORDS and frame.length <= _SMALL_FRAME_BYTES
        if is_small and frame.spare is None:
            self._worker.submit_short(self._write)
        else:
            self._worker.submit(self._write)

    def drain(self) -> None:
        """Wait until the frame that was given last is written."""
        written = Event()
        self._worker.submit(written.set)
        written.wait()

    def when_durable(self, lsn: int, action: Callable[[], None]) -> None:
        """Call `action` on the writer's thread once frame `lsn` is durable."""
        self._worker.submit(lambda: self._when_durable(lsn, action))

    def sync(self) -> None:
        """Bring everything written to the disk, in the caller's thread, whatever the mode.

        Raises:
            OSError: The writer has failed.
        """
        # In this order: frames up to `lsn` are in the segment read after it, or in an earlier
        # one, which was synced when it ended.
        lsn, began_ms = self.durable_lsn, self._clock.monotonic_ms()
        segment = self._written
        if segment is None or lsn <= self.synced_lsn:
            return
        if self.failure is not None:
            # What is not on the disk by now nobody may rest on, a checkpoint least of all.
            raise OSError("an earlier write or sync failed") from self.failure
        try:
            segment.file.sync()
        except OSError as error:
            self._fail(error)
            raise
        self.synced_lsn = max(self.synced_lsn, lsn)
        self._unsynced_since_ms = began_ms

    # On the writer's thread; `_write` perhaps on the loop's

    def _write(self) -> None:
        frame = self._frame
        assert frame is not None, "a frame was given"
        if self.failure is not None:
            return
        try:
            self._put(frame)
        except Exception as error:  # a supervisor: after a bug here nobody knows either
            self._fail(error)
            return
        if self._durability.interval_ms and self.synced_lsn >= self.durable_lsn:
            self._unsynced_since_ms = self._clock.monotonic_ms()
        self.durable_lsn = frame.lsn
        # Free before anybody hears of it, so that whoever acts on it can commit at once.
        self._frame = None
        try:
            frame.on_durable()
        finally:
            if self._after:
                self._worker.submit(self._run_due)
            self._on_idle()
        if self._is_sync_due():
            self._worker.submit(self._sync_when_due)

    def _put(self, frame: Frame) -> None:
        segment, parts = frame.segment, frame.parts
        if frame.length <= _JOIN_PART_BYTES_MAX * len(parts):
            parts = [b"".join(parts)]
        header = encode_header(
            segment.seed,
            FrameHeader(
                frame.length,
                0,
                frame.records,
                frame.lsn,
                frame.timestamp_ms,
                self.synced_lsn,
                segment.number & 0xFFFFFFFF,
                segment.header.epoch,
            ),
            parts,
        )
        if frame.spare is not None:
            self._begin_segment(frame.spare, segment, [header, *parts])
        elif self._durability.is_synced:
            segment.file.write_through(frame.start, [header, *parts])
        else:
            segment.file.write(frame.start, [header, *parts])
        if self._durability.is_synced or frame.spare is not None:
            self.synced_lsn = frame.lsn
        self._written = segment

    def _begin_segment(self, spare: Path, segment: Segment, parts: list[bytes]) -> None:
        """A segment has its name only once its first frame is on the disk."""
        if self._written is not None and self.synced_lsn < self.durable_lsn:
            # A later segment proves that the earlier ones are whole.
            self._written.file.sync()
        segment.file.write(0, [encode_segment_header(segment.header), *parts])
        segment.file.sync()
        self._files.rename(spare, path_of(self._directory, segment.header))
        self._files.sync_directory(self._directory)

    def _is_sync_due(self) -> bool:
        if self.synced_lsn >= self.durable_lsn:
            return False
        interval_ms = self._durability.interval_ms
        age_ms = self._clock.monotonic_ms() - self._unsynced_since_ms
        due = _LOOKS_PER_INTERVAL - 1
        return bool(interval_ms) and age_ms * _LOOKS_PER_INTERVAL >= interval_ms * due

    def _sync_when_due(self) -> None:
        if self._is_sync_due():
            with contextlib.suppress(OSError):  # `sync` has told everybody
                self.sync()

    def _when_durable(self, lsn: int, action: Callable[[], None]) -> None:
        self._after.append((lsn, action))
        self._run_due()

    def _run_due(self) -> None:
        # What is not due stays in sight: a frame that the loop makes durable meanwhile
        # looks whether anything waits.
        for entry in tuple(self._after):
            lsn, action = entry
            if lsn <= self.durable_lsn:
                self._after.remove(entry)
                action()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        _log.critical("write_failed error=%s; nothing more is written, the broker stops", error)
        self._on_failed(error)
