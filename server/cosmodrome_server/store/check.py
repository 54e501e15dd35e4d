"""Looking at a log from outside: is it whole, what is in it, and making its indexes again.

`check` reads every byte and knows every invariant of the formats; tests run it on each log
they leave behind. `dump` shows records. `rebuild` removes what is derived; the next start
makes it again from the log. All of them need the log to themselves: they take its lock.

    cosmodrome store check | dump | rebuild
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.model.log import RecordKind, Replayed
from cosmodrome_server.store import key_index, origin, sealed_index, segment
from cosmodrome_server.store.checkpoint import FILE_NAME, SqliteCheckpoints
from cosmodrome_server.store.files import Files, OsFiles
from cosmodrome_server.store.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from cosmodrome_server.store.made_index import entries_of, place_given_by
from cosmodrome_server.store.opening import LOCK_NAME, SHARD_NAME
from cosmodrome_server.store.record import decode_records
from cosmodrome_server.store.scanner import Bad, Found, Tail, scan
from cosmodrome_server.store.sealed_index import WORDS, Run
from cosmodrome_server.store.segment import SegmentHeader
from cosmodrome_server.store.timer_bucket import DIRECTORY_NAME, TimerBuckets

_DERIVED_SUFFIXES = (sealed_index.SUFFIX, key_index.SUFFIX, ".new", ".damaged")


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it must be.

    Attributes:
        file: The name of the file.
        start: The byte where it begins.
        what: What is wrong, and what it costs.
        is_loss: Messages or state may be lost; otherwise it mends itself at the next start.
    """

    file: str
    start: int
    what: str
    is_loss: bool


class CheckReport(msgspec.Struct):
    """What `check` found.

    Attributes:
        segments, frames, records, messages: How many.
        bytes_used: Bytes of frames.
        first_lsn, last_lsn: Of the frames; 0 for none.
        queues: How many message queues have stored messages.
        torn_bytes_at: Where the last segment ends with a half-written frame, which the next
            start cuts: nothing is lost; None if it does not.
        problems: In the order of the log.
    """

    segments: int = 0
    frames: int = 0
    records: int = 0
    messages: int = 0
    bytes_used: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    queues: int = 0
    torn_bytes_at: int | None = None
    problems: list[Problem] = msgspec.field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost."""
        return not any(problem.is_loss for problem in self.problems)


class DumpedRecord(msgspec.Struct, frozen=True):
    """A record as it lies in the log.

    Attributes:
        lsn: Of its frame.
        record: What it says.
    """

    lsn: int
    record: Replayed


def check(data: Path) -> CheckReport:
    """Read all of a data directory and say what is wrong with it.

    Raises:
        StoreLocked: The broker runs.
        StoreError: A later format.
        FileNotFoundError: That is no data directory.
        OSError: It cannot be read.
    """
    files = OsFiles()
    unlock = _lock(files, data)
    try:
        report = check_log(files, data / SHARD_NAME)
        _check_checkpoint(data / SHARD_NAME, report)
        _check_buckets(files, data / SHARD_NAME / DIRECTORY_NAME, report)
    finally:
        unlock()
    return report


def check_log(files: Files, directory: Path) -> CheckReport:
    """Check the segments of a shard and their indexes; the caller owns the log."""
    checker = _Checker(files, directory)
    for header in segment.named(files.names(directory)):
        checker.check_segment(header)
    checker.report.queues = len(checker.ends)
    return checker.report


def dump(data: Path, first_segment: int = 0) -> Iterator[DumpedRecord]:
    """Every record from a segment on, in order; damaged frames are left out.

    Raises:
        StoreLocked: The broker runs.
        StoreError: A later format.
        FileNotFoundError: That is no data directory.
        OSError: It cannot be read.
    """
    files = OsFiles()
    unlock = _lock(files, data)
    directory = data / SHARD_NAME
    try:
        for header in segment.named(files.names(directory)):
            if header.number >= first_segment:
                for found in _frames(files, directory, header):
                    for record in _records(header, found):
                        yield DumpedRecord(found.header.lsn, record)
    finally:
        unlock()


def _lock(files: OsFiles, data: Path) -> Callable[[], None]:
    """Take the lock of a data directory; a wrong folder is neither written to nor called whole.

    Nor is one of a later format: what this version takes for derived may not be that there.
    """
    if not (data / SHARD_NAME).is_dir():
        raise FileNotFoundError(f"{data} holds no data of a broker (no {SHARD_NAME} in it)")
    unlock = files.lock(data / LOCK_NAME)
    try:
        origin.refuse_newer(data)
    except BaseException:
        unlock()
        raise
    return unlock


def rebuild(data: Path) -> list[str]:
    """Remove indexes and checkpoint, so that the next start makes them from the log.

    Returns:
        The names of what was removed.

    Raises:
        StoreLocked: The broker runs.
        StoreError: A later format.
        CorruptFrame: The first segment's snapshot is damaged: what is derived is then the only
            copy of the state before it, and stays.
        FileNotFoundError: That is no data directory.
        OSError: It cannot be changed.
    """
    files = OsFiles()
    unlock = _lock(files, data)
    directory = data / SHARD_NAME
    try:
        names = files.names(directory)
        oldest = next(iter(segment.named(names)), None)
        if oldest is not None and not _begins_with_snapshot(files, directory, oldest):
            raise CorruptFrame(
                f"segment {oldest.number} does not begin with a snapshot: the checkpoint is "
                f"needed; cosmodrome store check says more"
            )
        derived = [
            name for name in names if name.endswith(_DERIVED_SUFFIXES) or name.startswith(FILE_NAME)
        ]
        for name in derived:
            files.remove(directory / name)
        files.sync_directory(directory)
    finally:
        unlock()
    return derived


def _begins_with_snapshot(files: Files, directory: Path, header: SegmentHeader) -> bool:
    first = next(_frames(files, directory, header), None)
    if first is None:
        return False
    kinds = [record.kind for record in _records(header, first)]
    return kinds[:1] == [RecordKind.QUEUE_ENDS] and RecordKind.SNAPSHOT_END in kinds


def _frames(files: Files, directory: Path, header: SegmentHeader) -> Iterator[Found]:
    file = files.open(segment.path_of(directory, header))
    try:
        for item in scan(file, header):
            if isinstance(item, Found):
                yield item
    finally:
        file.close()


def _records(header: SegmentHeader, found: Found) -> Iterator[Replayed]:
    base = header.number << segment.OFFSET_BITS | found.start + FRAME_HEADER_BYTES
    return decode_records(found.payload, base, found.header.timestamp_ms)


def _check_checkpoint(directory: Path, report: CheckReport) -> None:
    path = directory / FILE_NAME
    if not path.exists():
        return
    checkpoints = SqliteCheckpoints(path)
    try:
        saved = checkpoints.read()
    except CorruptFrame as error:
        what = f"{error}; the next start replays the log instead"
        report.problems.append(Problem(path.name, 0, what, is_loss=False))
        return
    finally:
        checkpoints.close()
    known_lsn = 0 if saved is None else max(saved.mark.lsn, saved.mark.durable_lsn)
    if known_lsn > report.last_lsn:
        what = f"the checkpoint knows frame {known_lsn}, the log ends at {report.last_lsn}"
        report.problems.append(Problem(path.name, 0, what, is_loss=True))
        # What looks half written was whole once.
        report.torn_bytes_at = None


def _check_buckets(files: Files, directory: Path, report: CheckReport) -> None:
    """A delayed message may be in its bucket only."""
    if not files.names(directory):
        return
    buckets = TimerBuckets(files, directory)
    try:
        for hour in buckets.hours():
            name = f"{directory.name}/{buckets.path(hour).name}"
            for start, what in buckets.damages(hour):
                told = f"{what}; a delayed message may be lost"
                report.problems.append(Problem(name, start, told, is_loss=True))
    finally:
        buckets.close()


class _Checker:
    """Walks the segments in order and remembers what the next one must fit."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._tail: tuple[SegmentHeader, Tail] | None = None
        self._number = 0
        self.ends: dict[int, int] = {}
        self.report = CheckReport()

    def check_segment(self, header: SegmentHeader) -> None:
        """Check one segment, and that it follows the one before."""
        path = segment.path_of(self._directory, header)
        report = self.report
        report.segments += 1
        if self._number and header.number != self._number + 1:
            self._say(path, 0, f"segments {self._number + 1} to {header.number - 1} are missing")
        self._number = header.number
        file = self._files.open(path)
        try:
            try:
                segment.decode_header(file.read(0, segment.HEADER_BYTES))
            except CorruptFrame as error:
                self._say(path, 0, f"{error}; its name says the same", is_loss=False)
            report.torn_bytes_at = None
            for item in scan(file, header):
                match item:
                    case Found():
                        self._check_frame(path, header, item)
                    case Bad():
                        what = f"{item.end - item.start} bytes are no frame: {item.reason}"
                        self._say(path, item.start, what)
                    case Tail():
                        report.torn_bytes_at = item.start if item.is_torn else None
        finally:
            file.close()
        self._check_index(header)

    def _check_frame(self, path: Path, header: SegmentHeader, found: Found) -> None:
        report, lsn = self.report, found.header.lsn
        if report.last_lsn and lsn != report.last_lsn + 1:
            self._say(path, found.start, f"frame {lsn} follows frame {report.last_lsn}")
        report.first_lsn = report.first_lsn or lsn
        report.last_lsn = lsn
        report.frames += 1
        report.bytes_used += found.end - found.start
        records = 0
        try:
            for record in _records(header, found):
                records += 1
                self._note(record)
        except CorruptFrame as error:
            self._say(path, found.start, str(error))
        report.records += records
        if records != found.header.records:
            self._say(path, found.start, f"{records} records of {found.header.records} in frame")

    def _note(self, record: Replayed) -> None:
        self.report.messages += record.message is not None
        place = place_given_by(record)
        if place is not None:
            key, queue_offset, _ = place
            self.ends[key] = max(self.ends.get(key, 0), queue_offset + 1)

    def _check_index(self, header: SegmentHeader) -> None:
        """An index says of every visible message what its record says."""
        path = sealed_index.path_of(self._directory, header.number)
        if path.name not in self._files.names(self._directory):
            return
        try:
            index = sealed_index.open_index(self._files, self._directory, header)
        except CorruptFrame as error:
            self._say(path, 0, f"{error}; the next start makes it again", is_loss=False)
            return
        for key, expected in entries_of(self._files, self._directory, header).items():
            found = index.run(key)
            if found is None or not _agrees(found, expected):
                what = f"topic {key >> 32}, queue {key & 0xFFFFFFFF} differs from the messages"
                self._say(path, 0, f"{what}; remove it, the next start makes it again")

    def _say(self, path: Path, start: int, what: str, *, is_loss: bool = True) -> None:
        self.report.problems.append(Problem(path.name, start, what, is_loss))


def _agrees(found: Run, expected: Run) -> bool:
    """Whether an index has every entry that the messages ask for."""
    if found.base > expected.base or found.end < expected.end:
        return False
    for offset in range(expected.base, expected.end):
        wanted = expected.start + WORDS * (offset - expected.base)
        there = found.start + WORDS * (offset - found.base)
        words = expected.words[wanted : wanted + WORDS].tolist()
        if words[0] and words != found.words[there : there + WORDS].tolist():
            return False
    return True
