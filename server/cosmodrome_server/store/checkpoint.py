"""What a start need not replay: the state's rows and the newest index entries, in SQLite.

    state.db   rows(area, key, value, crc)     area 0  the core's rows
                                               area 1  next offset of each queue
                                               area 2  index entries of the active segment
                                               area 3  the mark: up to where all this holds
               digest(value)                   sum of all row checksums

One transaction writes them all: a state is never newer or older than the index beside it.
Everything here is derived from the log and may be deleted; the next start then replays the
last segment, or as many as lack an index. SQLite does not notice a flipped bit by itself, so
each row carries a CRC-32C, and the digest shows a row that is missing or from elsewhere.
"""

import contextlib
import logging
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Protocol

from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.store.packed_rows import ChangedRow
from cosmodrome_server.store.queue_columns import NewEntries

_log = logging.getLogger(__name__)

FILE_NAME = "state.db"

_STATE, _END, _ENTRIES, _MARK = range(4)
_FORMAT = 1
_KEY = Struct(">Q")
_ENTRIES_KEY = Struct(">QQQ")
_U64 = Struct("<Q")
_MARK_VALUE = Struct("<IQQQQ")
_MARK_KEY = b"mark"
_DIGEST_MASK = (1 << 62) - 1

Row = tuple[bytes, bytes]


class Mark(NamedTuple):
    """Up to where a checkpoint holds.

    Attributes:
        lsn: The last frame it reflects.
        position: Where the frame after it begins.
        durable_lsn: The last frame known to be on the disk.
        salt: Of the segment `position` lies in: a checkpoint fits one log only.
    """

    lsn: int
    position: int
    durable_lsn: int
    salt: int


class Saved(NamedTuple):
    """A checkpoint, read back.

    Attributes:
        mark: See there.
        rows: Of the core.
        ends: The next offset of each queue.
        entries: (key, base, entries) of the active segment, in order of offsets.
    """

    mark: Mark
    rows: list[Row]
    ends: dict[int, int]
    entries: list[tuple[int, int, bytes]]


class CheckpointStore(Protocol):
    """Keeps one checkpoint; all of it or what was there before."""

    def load(self) -> Saved | None:
        """The last one saved; None if there is none that can be trusted."""

    def save(self, mark: Mark, rows: Iterable[ChangedRow], new: Iterable[NewEntries]) -> None:
        """Add what changed since the last one; `None` removes a row.

        Raises:
            OSError: It could not be saved; what was there before stands.
        """

    def note_durable(self, durable_lsn: int) -> None:
        """Remember the last durable frame, when the broker stops; raises as `save`."""

    def discard(self) -> None:
        """Forget it: it does not fit the log beside it; raises as `save`."""

    def close(self) -> None:
        """Let go of it."""


class SqliteCheckpoints:
    """A checkpoint in a file of its own.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def load(self) -> Saved | None:
        """See `CheckpointStore`; a damaged file is put aside as state.db.damaged."""
        try:
            return self.read()
        except CorruptFrame as error:
            _log.warning("checkpoint_damaged error=%s; the log is replayed instead", error)
            self.discard()
            return None

    def read(self) -> Saved | None:
        """The last one saved; None if nothing was.

        Raises:
            CorruptFrame: The file is damaged; it is left as it is.
        """
        if not self._path.exists():
            return None
        try:
            return self._load(self._open())
        except (sqlite3.DatabaseError, ValueError, struct.error) as error:
            raise CorruptFrame(f"{self._path.name}: {error}") from error

    def discard(self) -> None:
        """See `CheckpointStore`; the file is kept as state.db.damaged for a look at it."""
        self.close()
        if self._path.exists():
            self._path.replace(self._path.with_name(self._path.name + ".damaged"))
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def save(self, mark: Mark, rows: Iterable[ChangedRow], new: Iterable[NewEntries]) -> None:
        """See `CheckpointStore`."""
        segment = mark.position >> 32
        with self._transaction() as writer:
            for key, value in rows:
                writer.put(_STATE, key, value)
            for entries in new:
                end = _U64.pack(entries.next_offset) if entries.next_offset else None
                writer.put(_END, _KEY.pack(entries.key), end)
                if entries.entries:
                    key = _ENTRIES_KEY.pack(segment, entries.key, entries.base)
                    writer.put(_ENTRIES, key, entries.entries)
            # Sealed segments have their index in a file.
            writer.remove_below(_ENTRIES, _KEY.pack(segment))
            writer.put(_MARK, _MARK_KEY, _MARK_VALUE.pack(_FORMAT, *mark))

    def note_durable(self, durable_lsn: int) -> None:
        """See `CheckpointStore`."""
        if not self._path.exists():
            return
        with self._transaction() as writer:
            found = writer.get(_MARK, _MARK_KEY)
            if found is not None:
                _, *mark = _MARK_VALUE.unpack(found)
                mark[2] = durable_lsn
                writer.put(_MARK, _MARK_KEY, _MARK_VALUE.pack(_FORMAT, *mark))

    def close(self) -> None:
        """See `CheckpointStore`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> "sqlite3.Connection":
        if self._connection is None:
            # The thread that loads is not the one that saves; they never overlap.
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, cached_statements=16
            )
            self._connection = connection
            # One process at a time owns it. Shared memory would be a file, for which a full disk
            # has no space: the checkpoint would be taken for damaged.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            # Each checkpoint is on the disk before older segments may go.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_size = -2048")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS rows (area INTEGER, key BLOB, value BLOB, crc INTEGER,"
                " PRIMARY KEY (area, key)) WITHOUT ROWID"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS digest (value INTEGER)")
        return self._connection

    def _load(self, connection: "sqlite3.Connection") -> Saved | None:
        mark: Mark | None = None
        rows: list[Row] = []
        ends: dict[int, int] = {}
        entries: list[tuple[int, int, bytes]] = []
        digest = 0
        for area, key, value, crc in connection.execute(
            "SELECT area, key, value, crc FROM rows ORDER BY area, key"
        ):
            if crc != _crc_of(area, key, value):
                raise CorruptFrame(f"checksum mismatch in a row of {self._path.name}")
            digest += crc
            if area == _STATE:
                rows.append((key, value))
            elif area == _END:
                ends[_KEY.unpack(key)[0]] = _U64.unpack(value)[0]
            elif area == _ENTRIES:
                _, queue, base = _ENTRIES_KEY.unpack(key)
                entries.append((queue, base, value))
            else:
                version, *words = _MARK_VALUE.unpack(value)
                if version != _FORMAT:
                    raise CorruptFrame(f"{self._path.name} has format {version}")
                mark = Mark(*words)
        if mark is None:
            return None
        if connection.execute("SELECT value FROM digest").fetchone() != (digest & _DIGEST_MASK,):
            raise CorruptFrame(f"rows of {self._path.name} are missing or from elsewhere")
        return Saved(mark, rows, ends, entries)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator["_Writer"]:
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                writer = _Writer(connection)
                yield writer
                writer.finish()
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            raise OSError(f"{self._path.name}: {error}") from error


class _Writer:
    """Rows of one transaction; keeps the digest."""

    def __init__(self, connection: "sqlite3.Connection") -> None:
        self._connection = connection
        found = connection.execute("SELECT value FROM digest").fetchone()
        self._digest: int = found[0] if found else 0

    def get(self, area: int, key: bytes) -> bytes | None:
        """The value of a row; None if there is none."""
        found = self._connection.execute(
            "SELECT value FROM rows WHERE area = ? AND key = ?", (area, key)
        ).fetchone()
        return found[0] if found else None

    def put(self, area: int, key: bytes, value: bytes | None) -> None:
        """Replace a row; None removes it."""
        found = self._connection.execute(
            "SELECT crc FROM rows WHERE area = ? AND key = ?", (area, key)
        ).fetchone()
        if found:
            self._digest -= found[0]
        if value is None:
            self._connection.execute("DELETE FROM rows WHERE area = ? AND key = ?", (area, key))
            return
        crc = _crc_of(area, key, value)
        self._digest += crc
        self._connection.execute(
            "INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", (area, key, value, crc)
        )

    def remove_below(self, area: int, key: bytes) -> None:
        """Remove the rows of an area before a key."""
        (gone,) = self._connection.execute(
            "SELECT total(crc) FROM rows WHERE area = ? AND key < ?", (area, key)
        ).fetchone()
        if gone:
            self._digest -= int(gone)
            self._connection.execute("DELETE FROM rows WHERE area = ? AND key < ?", (area, key))

    def finish(self) -> None:
        """Write the digest."""
        self._connection.execute("DELETE FROM digest")
        self._connection.execute("INSERT INTO digest VALUES (?)", (self._digest & _DIGEST_MASK,))


def _crc_of(area: int, key: bytes, value: bytes) -> int:
    crc: int = crc32c(b"%d:%d:" % (area, len(key)) + key + value)
    return crc
