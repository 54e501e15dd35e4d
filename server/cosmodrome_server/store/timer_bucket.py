"""Delayed messages by the hour in which they are due, each whole, in a file of its own.

    data/shard-0000/timer/2026112014-9f86d081884c7d65.tb      due from 14:00 to 15:00 UTC; salt

    0       8         12     16        24
    ┌───────┬─────────┬──────┬─────────┬───────┬───────┬───────
    │ magic │ version │ crc  │ salt    │ entry │ entry │ …
    └───────┴─────────┴──────┴─────────┴───────┴───────┴───────
      8 bytes u32       u32    u64

    entry   0       4        8     12       20         28
            ┌───────┬────────┬─────┬────────┬──────────┬────────────────┐
            │ magic │ length │ crc │ due ms │ position │ message record │
            └───────┴────────┴─────┴────────┴──────────┴────────────────┘
              u32     u32      u32   u64      u64        length bytes; none: recalled

Little-endian. `position` is where the log has the message, and its name here. `crc` is
CRC-32C over length, due and position, begun with the salt; the record has its own. The salt
is random, so that no body can imitate an entry, and is in the name, so that a damaged header
does not take the entries with it.

Why. A delayed message is durable in the log at once. A copy goes here soon after, so that
retention may take the segment long before the message is due: 40 days of delay are at most
960 small files, of which only those of this hour and the next are ever in memory.

How it is used (by the timer service off the loop's thread, and by who lists what is scheduled on
it; one of them at a time):

    copy      append(…) of what is in the log and not copied; sync(); note in the state up to
              which position all is copied. After a crash some are appended again: `load`
              keeps the last of each position, of which alone it is certain that it is whole.
    fire      load(hour) before the hour begins: due times and positions, sorted. Each is put
              into its queue when it is due: by its log position while that segment is still
              there, else staged again from read(hour, start).
    recall    recall(due_ms, position): its entry is not loaded any more. Decided by the core's
              record in the log; this only saves the work of firing it.
    end       delete(hour) once every entry's fire is durable.
"""

import errno
import logging
import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from struct import Struct
from threading import RLock
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from google_crc32c import extend
from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame, StoreFull
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.store.files import File, Files
from cosmodrome_server.store.patience import Patience
from cosmodrome_server.store.record import decode_message, encode_message
from cosmodrome_server.store.scanner import read_around

_log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
DIRECTORY_NAME = "timer"

_NAME = re.compile(r"(\d{10})-([0-9a-f]{16})\.tb")
_MAGIC = b"COSMOTMR"
_VERSION = 1
_HEADER = Struct("<8sIIQ")
_ENTRY_MAGIC = b"CTE1"
_ENTRY = Struct("<4sIIQQ")
_COVERED = Struct("<IQQ")
_WINDOW_BYTES = 1 << 20
# Open files; more are closed, after a sync, before another is opened.
_OPEN_MAX = 64
# Longer hours are sorted by numpy.
_NUMPY_FROM = 20_000


class DelayedMessages(NamedTuple):
    """What is due in one hour, in the order of due time and then of position.

    Attributes:
        due_ms: When.
        positions: Where the log has, or had, the message.
        starts: Where its record begins in the bucket; for `TimerBuckets.read`.
    """

    due_ms: "array[int]"
    positions: "array[int]"
    starts: "array[int]"


def hour_of(due_ms: int) -> int:
    """The hour a time lies in, counted from the epoch."""
    return due_ms // HOUR_MS


class _Bucket:
    """An open bucket file."""

    __slots__ = ("end", "file", "is_synced", "salt")

    def __init__(self, file: File, salt: int, end: int, *, is_synced: bool) -> None:
        self.file = file
        self.salt = salt
        self.end = end
        self.is_synced = is_synced

    @property
    def seed(self) -> int:
        """What the checksums of its entries begin with."""
        seed: int = crc32c(self.salt.to_bytes(8, "little"))
        return seed


_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def _alone(
    method: "Callable[Concatenate[TimerBuckets, _Asked], _Answer]",
) -> "Callable[Concatenate[TimerBuckets, _Asked], _Answer]":
    """Let one thread at a time be in the methods of an object.

    Two that look for the end of one bucket would write over each other's entries, and one would
    close what the other has open.
    """

    @wraps(method)
    def alone(self: "TimerBuckets", /, *args: _Asked.args, **kwargs: _Asked.kwargs) -> _Answer:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone


class TimerBuckets:
    """The buckets of one shard.

    Args:
        files: The disk.
        directory: Where the buckets are; made if it is not there.
        random_bytes: Makes salts.
    """

    is_kept = True

    def __init__(
        self,
        files: Files,
        directory: Path,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._files = files
        self._directory = directory
        self._random_bytes = random_bytes
        files.make_directory(directory)
        self._open: dict[int, _Bucket] = {}
        # Files to read from, where a bad sector hides the end.
        self._unended: dict[int, File] = {}
        self._patience = Patience()
        self._lock = RLock()

    def hours(self) -> list[int]:
        """The hours that have a bucket, in order."""
        return list(self._names())

    def _names(self) -> dict[int, tuple[str, int]]:
        """Hour → name and salt of its bucket, in order."""
        found = (_NAME.fullmatch(name) for name in self._files.names(self._directory))
        return {_hour_named(m[1]): (m[0], int(m[2], 16)) for m in found if m is not None}

    def _knows(self, hour: int) -> bool:
        return hour in self._open or hour in self._names()

    @_alone
    def append(self, delayed: Iterable[tuple[int, int, MessageRecord]]) -> None:
        """Add (due ms, log position, message); durable after `sync`.

        Raises:
            StoreFull: There is no space for some; append all of them again when there is.
            OSError: Some are not added, and nobody knows what a sync would say.
        """
        parts: dict[int, list[tuple[int, int, bytes]]] = {}
        for due_ms, position, record in delayed:
            encoded = b"".join(encode_message(record))
            parts.setdefault(hour_of(due_ms), []).append((due_ms, position, encoded))
        for hour, entries in parts.items():
            self._append(hour, entries)

    @_alone
    def recall(self, due_ms: int, position: int) -> None:
        """Let the entry of a position be loaded no more; durable after `sync`; raises OSError."""
        if self._knows(hour_of(due_ms)):
            self._append(hour_of(due_ms), [(due_ms, position, b"")])

    @_alone
    def sync(self) -> None:
        """Return when everything appended is on the disk; raises OSError."""
        for bucket in self._open.values():
            if not bucket.is_synced:
                bucket.file.sync()
                bucket.is_synced = True
        self._files.sync_directory(self._directory)

    @_alone
    def load(self, hour: int) -> DelayedMessages:
        """What is due in an hour; damaged entries are left out and logged.

        Raises:
            ReadFailed: The disk refuses the bucket now.
        """
        try:
            if not self._knows(hour):
                return _loaded(())
            bucket = self._bucket(hour)
            return _loaded(_scan(bucket, bucket.end))
        except OSError as error:
            refusal = self._patience.refused(hour, f"timer bucket of hour {hour}", error)
            if isinstance(refusal, CorruptFrame):
                return self._load_around(hour)
            raise refusal from error

    def _load_around(self, hour: int) -> DelayedMessages:
        """What can be read of a bucket with sectors that cannot."""
        _log.error("timer_bucket_unreadable hour=%d; what can be read of it is delivered", hour)
        name, salt = self._names()[hour]
        file = self._files.open(self._directory / name)
        try:
            end = file.size()
            bucket = _Bucket(file, salt, end, is_synced=True)
            return _loaded(_scan(bucket, end, partial(read_around, file)))
        finally:
            file.close()

    @_alone
    def read(self, hour: int, start: int) -> MessageRecord:
        """One message of a bucket; `start` is from `load`.

        Raises:
            CorruptFrame: It is damaged, or the disk has refused it too often.
            ReadFailed: The disk refuses it now.
        """
        try:
            file = self._file(hour)
            head = file.read(start - _ENTRY.size, _ENTRY.size)
            if len(head) < _ENTRY.size:
                raise CorruptFrame(f"timer bucket of hour {hour} ends before byte {start}")
            return decode_message(file.read(start, _ENTRY.unpack(head)[1]))
        except OSError as error:
            what = f"byte {start} of the timer bucket of hour {hour}"
            raise self._patience.refused((hour, start), what, error) from error

    @_alone
    def damages(self, hour: int) -> list[tuple[int, str]]:
        """(byte, what is wrong) of what was copied to a bucket and cannot be read there.

        Raises:
            OSError: The disk refuses it.
        """
        bucket, at = self._bucket(hour), _HEADER.size
        found: list[tuple[int, str]] = []
        rotten: dict[int, tuple[int, str]] = {}
        for _, position, start, length in _scan(bucket, bucket.end):
            if start - _ENTRY.size > at:
                found.append((at, f"{start - _ENTRY.size - at} bytes are no entry"))
            at = start + length
            try:
                if length:
                    decode_message(bucket.file.read(start, length))
            except CorruptFrame as error:
                rotten[position] = (start, str(error))
            else:
                # The later of two copies counts.
                rotten.pop(position, None)
        return sorted([*found, *rotten.values()])

    def path(self, hour: int) -> Path:
        """The file of a bucket that is there."""
        return self._directory / self._names()[hour][0]

    @_alone
    def delete(self, hour: int) -> None:
        """Remove a bucket, if it is there; raises OSError."""
        bucket = self._open.pop(hour, None)
        if bucket is not None:
            bucket.file.close()
        unended = self._unended.pop(hour, None)
        if unended is not None:
            unended.close()
        name, _ = self._names().get(hour, ("", 0))
        if name:
            self._files.remove(self._directory / name)

    @_alone
    def close(self) -> None:
        """Sync and close all files; raises OSError."""
        self.sync()
        for bucket in self._open.values():
            bucket.file.close()
        for file in self._unended.values():
            file.close()
        self._open.clear()
        self._unended.clear()

    def _append(self, hour: int, entries: list[tuple[int, int, bytes]]) -> None:
        bucket = self._bucket(hour)
        parts = []
        for due_ms, position, record in entries:
            crc = extend(bucket.seed, _COVERED.pack(len(record), due_ms, position))
            parts += [_ENTRY.pack(_ENTRY_MAGIC, len(record), crc, due_ms, position), record]
        bucket.is_synced = False
        with _space():
            bucket.file.write(bucket.end, parts)
        bucket.end += sum(map(len, parts))

    def _bucket(self, hour: int) -> _Bucket:
        bucket = self._open.get(hour)
        if bucket is None:
            if len(self._open) >= _OPEN_MAX:
                oldest = self._open.pop(next(iter(self._open)))
                if not oldest.is_synced:
                    oldest.file.sync()
                oldest.file.close()
            name, salt = self._names().get(hour, ("", 0))
            bucket = self._reopen(name, salt) if name else self._create(hour)
            self._open[hour] = bucket
        return bucket

    def _file(self, hour: int) -> File:
        """The file of a bucket, open; its end need not be found, which a bad sector can hide."""
        if hour in self._open:
            return self._open[hour].file
        if hour not in self._unended:
            name, _ = self._names().get(hour, ("", 0))
            if not name:
                raise CorruptFrame(f"there is no timer bucket of hour {hour}")
            try:
                return self._bucket(hour).file
            except OSError:
                self._unended[hour] = self._files.open(self._directory / name)
        return self._unended[hour]

    def _create(self, hour: int) -> _Bucket:
        salt = int.from_bytes(self._random_bytes(8), "little")
        path = self._directory / _name(hour, salt)
        covered = _HEADER.pack(_MAGIC, _VERSION, 0, salt)
        with _space():
            file = self._files.open(path, create=True)
            try:
                file.write(0, [_HEADER.pack(_MAGIC, _VERSION, crc32c(covered), salt)])
            except OSError:
                file.close()
                self._files.remove(path)
                raise
        return _Bucket(file, salt, _HEADER.size, is_synced=False)

    def _reopen(self, name: str, salt: int) -> _Bucket:
        """Find the end: what a crash left half written is overwritten."""
        file = self._files.open(self._directory / name)
        bucket = _Bucket(file, salt, _HEADER.size, is_synced=True)
        for _, _, start, length in _scan(bucket, file.size()):
            bucket.end = start + length
        return bucket


@contextmanager
def _space() -> Iterator[None]:
    """A write that finds no space was not done; that is no failure of the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"no space for copies of delayed messages: {error}") from error
        raise


def _loaded(entries: Iterable[tuple[int, int, int, int]]) -> DelayedMessages:
    found = DelayedMessages(array("Q"), array("Q"), array("Q"))
    recalled = set()
    for due_ms, position, start, length in entries:
        if length:
            found.due_ms.append(due_ms)
            found.positions.append(position)
            found.starts.append(start)
        else:
            recalled.add(position)
    return _in_order(found, recalled)


def _in_order(found: DelayedMessages, recalled: set[int]) -> DelayedMessages:
    """Sort by due time and position; leave out what was recalled, or copied twice."""
    if len(found.due_ms) > _NUMPY_FROM:
        # Imported late: it costs 20 MB, and most brokers never see such an hour.
        import numpy as np  # noqa: PLC0415 - see above

        due, positions, starts = (np.frombuffer(column, np.uint64) for column in found)
        # Of two copies the later one: a power cut may have left half of the first.
        kept = len(positions) - 1 - np.unique(positions[::-1], return_index=True)[1]
        kept = kept[~np.isin(positions[kept], list(recalled))]
        kept = kept[np.lexsort((positions[kept], due[kept]))]
        columns = (array("Q", column[kept].tobytes()) for column in (due, positions, starts))
        return DelayedMessages(*columns)
    once = {position: (due, start) for due, position, start in zip(*found, strict=True)}
    order = sorted((due, p, start) for p, (due, start) in once.items() if p not in recalled)
    return DelayedMessages(*(array("Q", [entry[at] for entry in order]) for at in range(3)))


def _scan(
    bucket: _Bucket, end: int, read: Callable[[int, int], bytes] | None = None
) -> Iterable[tuple[int, int, int, int]]:
    """(due, position, start of the record, its length) of every good entry."""
    read, seed, at = read or bucket.file.read, bucket.seed, _HEADER.size
    window, base = b"", 0
    while at + _ENTRY.size <= end:
        if not base <= at <= base + len(window) - _ENTRY.size:
            window, base = read(at, _WINDOW_BYTES), at
            if len(window) < _ENTRY.size:
                return
        magic, length, crc, due_ms, position = _ENTRY.unpack_from(window, at - base)
        start = at + _ENTRY.size
        is_whole = magic == _ENTRY_MAGIC and start + length <= end
        if is_whole and extend(seed, _COVERED.pack(length, due_ms, position)) == crc:
            yield due_ms, position, start, length
            at = start + length
            continue
        following = window.find(_ENTRY_MAGIC, at - base + 1)
        if following < 0:
            # The magic number may lie across the border of two windows.
            at = max(at + 1, base + len(window) - len(_ENTRY_MAGIC) + 1)
        else:
            _log.warning("timer_entry_damaged at=%d", at)
            at = base + following


def _name(hour: int, salt: int) -> str:
    due = datetime.fromtimestamp(hour * HOUR_MS // 1_000, UTC)
    return f"{due:%Y%m%d%H}-{salt:016x}.tb"


def _hour_named(text: str) -> int:
    # Five times as quick as strptime; all names are read again for many a question.
    due = datetime(int(text[:4]), int(text[4:6]), int(text[6:8]), int(text[8:]), tzinfo=UTC)
    return hour_of(int(due.timestamp()) * 1_000)
