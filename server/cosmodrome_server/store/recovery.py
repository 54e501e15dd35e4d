"""Opening a log after any kind of stop: where to begin, what to believe, where it ends.

Where to begin. The newest of these for which every earlier segment has its index:

    checkpoint (state.db)      rows, queue ends and index entries up to a frame
    start of a segment         its first frame holds all rows (store.segment)

Where the indexes end at a segment whose own first frame is damaged, and no earlier one can be
begun at, the missing ones are made from the messages up to the next segment that begins well. So
they are where a segment is missing behind that: what it said stands in the snapshots after it only.

From there on every frame is read, verified and replayed. What comes before is believed, and
verified when it is read (and by the scrubber).

What a bad frame means.

    known to have been durable, good frames follow     corruption: it is skipped and reported
    known to have been durable, nothing follows        corruption: reported
    never known to have been durable                   a crash before its sync: cut, with all
                                                       that may follow it

A frame is known to have been durable when a later frame, a later segment or the checkpoint
says so. With sync every frame says so of the one before; with interval and os a power cut may
leave a hole among frames of which none was promised, and what is before the hole is the state
there was once. What was written but perhaps never synced is synced before anything is served.

What cannot be read. A sector the disk refuses may hold the last frame there is, acknowledged a
moment before; taken for a torn one it would be cut. So a start that cannot read ends, with
nothing changed, and the next one tries again. Only an operator can say that a disk is dead for
good (`store.read_around_bad_sectors`): then its sectors are damage like any other.
"""

import logging
import re
from collections.abc import Iterator
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from cosmodrome_server.errors import CorruptFrame, ReadFailed
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.store import key_index, sealed_index, segment
from cosmodrome_server.store.checkpoint import CheckpointStore, Row, Saved
from cosmodrome_server.store.files import File, Files
from cosmodrome_server.store.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from cosmodrome_server.store.made_index import SegmentEntries
from cosmodrome_server.store.record import decode_queue_ends, decode_records, decode_row
from cosmodrome_server.store.scanner import Bad, Found, Tail, read_around, scan
from cosmodrome_server.store.sealed_index import IndexHeader
from cosmodrome_server.store.segment import SegmentHeader

_log = logging.getLogger(__name__)


class Damage(NamedTuple):
    """Bytes that were written once and are not what was written.

    Attributes:
        segment: The number of the segment.
        start: The first byte of the damage in its file.
        end: One past the last; equal to `start` if nothing is there at all.
        first_lsn: The first frame lost; 0 if unknown.
        last_lsn: The last frame lost; below `first_lsn` if none is.
        reason: What is wrong.
    """

    segment: int
    start: int
    end: int
    first_lsn: int
    last_lsn: int
    reason: str


class Beginning(msgspec.Struct, frozen=True):
    """Where replay begins, and what is known there.

    Attributes:
        segments: Every segment that is there, in order.
        first: Index in `segments` of the one that replay begins in.
        offset: The byte offset in it.
        lsn: The last frame before it; 0 if unknown.
        durable_lsn: The last frame known to have been durable.
        rows: Of the core.
        ends: The next offset of each queue.
        entries: (key, base, entries) of the segment replay begins in, up to there.
        indexes: Of the segments before `first`.
        is_checkpoint: Whether all this comes from the checkpoint.
        damages: Found in segments before `first` whose index had to be made.
    """

    segments: list[SegmentHeader] = msgspec.field(default_factory=list)
    first: int = 0
    offset: int = segment.HEADER_BYTES
    lsn: int = 0
    durable_lsn: int = 0
    rows: list[Row] = msgspec.field(default_factory=list)
    ends: dict[int, int] = msgspec.field(default_factory=dict)
    entries: list[tuple[int, int, bytes]] = msgspec.field(default_factory=list)
    indexes: list[tuple[SegmentHeader, IndexHeader]] = msgspec.field(default_factory=list)
    is_checkpoint: bool = False
    damages: list[Damage] = msgspec.field(default_factory=list)


class Ending(NamedTuple):
    """Where a log ends.

    Attributes:
        offset: The byte offset in the last segment where the next frame goes.
        lsn: The number of the last frame that was ever durable or is here.
        timestamp_ms: The time of the last frame; 0 if none was replayed.
        cut_bytes: How many bytes from there on must not be read as frames again.
    """

    offset: int
    lsn: int
    timestamp_ms: int
    cut_bytes: int


def find_beginning(
    files: Files, directory: Path, checkpoints: CheckpointStore, *, is_strict: bool = True
) -> Beginning:
    """Choose where to begin; only what is derived is changed.

    A checkpoint that fits no more goes, and an index is made that nothing can begin without.

    Args:
        files: The disk.
        directory: Of the shard.
        checkpoints: What a start needs not replay.
        is_strict: See `Replay`.

    Raises:
        ReadFailed: A segment's header cannot be read, or one that an index is made of.
    """
    segments = [
        _header(files, directory, header, is_strict=is_strict)
        for header in segment.named(files.names(directory))
    ]
    indexes = list(_indexes(files, directory, segments))
    saved = checkpoints.load()
    if saved is not None:
        at = _place(saved, segments)
        if at is not None and at <= len(indexes):
            return Beginning(
                segments,
                at,
                segment.offset_of(saved.mark.position),
                saved.mark.lsn,
                saved.mark.durable_lsn,
                *saved[1:],
                indexes[:at],
                is_checkpoint=True,
            )
        _log.warning("checkpoint_unusable lsn=%d; the log is replayed instead", saved.mark.lsn)
    checkpoints.discard()
    durable_lsn = 0 if saved is None or _place(saved, segments) is None else saved.mark.durable_lsn
    for at in _beginnings(segments, len(indexes)):
        found = _snapshot(files, directory, segments[at])
        if found is not None:
            rows, ends = found
            made, damages = _make_indexes(
                files, directory, segments[len(indexes) : at + 1], is_strict=is_strict
            )
            return Beginning(
                segments,
                first=at,
                lsn=max(0, segments[at].first_lsn - 1),
                durable_lsn=durable_lsn,
                rows=rows,
                ends=ends,
                indexes=[*indexes[:at], *made],
                damages=damages,
            )
    if segments:
        _log.error("no_snapshot segments=%d; replaying what there is", len(segments))
    return Beginning(segments, durable_lsn=durable_lsn)


def _beginnings(segments: list[SegmentHeader], indexes: int) -> Iterator[int]:
    """Where to begin, best first: for the segments below so many there are indexes."""
    gaps = [at for at in range(1, len(segments)) if _is_gap(segments[at - 1], segments[at])]
    whole_from, known = max(gaps, default=0), min(indexes, len(segments) - 1)
    yield from range(known, whole_from - 1, -1)
    yield from range(max(known + 1, whole_from), len(segments))
    # Over a gap, rather than not at all.
    yield from range(min(known, whole_from - 1), -1, -1)


def _is_gap(header: SegmentHeader, following: SegmentHeader) -> bool:
    return following.number != header.number + 1


def _header(
    files: Files, directory: Path, header: SegmentHeader, *, is_strict: bool
) -> SegmentHeader:
    """The header of a segment; what its name says where the bytes are damaged."""
    try:
        file = files.open(segment.path_of(directory, header))
        try:
            found = segment.decode_header(file.read(0, segment.HEADER_BYTES))
        finally:
            file.close()
    except (OSError, CorruptFrame) as error:
        if is_strict and isinstance(error, OSError):
            raise _unreadable(header, error) from error
        _log.error("segment_header_damaged segment=%d error=%s", header.number, error)
        return header
    if (found.number, found.salt) != (header.number, header.salt):
        # Its file was being recycled when the power went.
        _log.error("segment_header_of_another segment=%d", header.number)
        return header
    return found


def _unreadable(header: SegmentHeader, error: OSError) -> ReadFailed:
    return ReadFailed(
        f"segment {header.number} cannot be read: {error}. The broker does not start, and nothing "
        "was changed: a disk that comes back has lost nothing. For sectors that are lost for good "
        "set store.read_around_bad_sectors = true: what they hold is given up, the rest is served"
    )


def _indexes(
    files: Files, directory: Path, segments: list[SegmentHeader]
) -> Iterator[tuple[SegmentHeader, IndexHeader]]:
    """The indexes of sealed segments, up to the first that is missing."""
    for header in segments[:-1]:
        try:
            yield header, sealed_index.read_header(files, directory, header)
        except (OSError, CorruptFrame):
            return


def _make_indexes(
    files: Files, directory: Path, segments: list[SegmentHeader], *, is_strict: bool
) -> tuple[list[tuple[SegmentHeader, IndexHeader]], list[Damage]]:
    """The indexes of all segments but the last, if there are any, and what is damaged in them.

    What lay before them is not known, so they cannot be replayed; their messages are there.
    """
    if len(segments) <= 1:
        return [], []
    beginning = Beginning(segments, lsn=max(0, segments[0].first_lsn - 1))
    replay = Replay(files, directory, beginning, is_strict=is_strict)
    before = takewhile(lambda each: each[0] is not segments[-1], replay.frames())
    made: list[tuple[SegmentHeader, IndexHeader]] = []
    for header, frames in groupby(before, itemgetter(0)):
        entries = SegmentEntries(header)
        for _, found in frames:
            if found is not None:
                entries.add(found)
        made.append((header, entries.write(files, directory)))
    return made, [damage for damage in replay.damages if damage.reason != _MISSING]


def _place(saved: Saved, segments: list[SegmentHeader]) -> int | None:
    """Which segment a checkpoint ends in; None if it is of another log."""
    who = (segment.segment_of(saved.mark.position), saved.mark.salt)
    known = [(header.number, header.salt) for header in segments]
    return known.index(who) if who in known else None


def _snapshot(
    files: Files, directory: Path, header: SegmentHeader
) -> tuple[list[Row], dict[int, int]] | None:
    """The rows and queue ends a segment begins with; None if its first frame is damaged."""
    file = files.open(segment.path_of(directory, header))
    try:
        first = next(scan(file, header))
    finally:
        file.close()
    if not isinstance(first, Found):
        return None
    rows: list[Row] = []
    ends: dict[int, int] = {}
    for record in decode_records(first.payload, 0, 0):
        if record.kind is RecordKind.SNAPSHOT_ROW:
            rows.append(decode_row(record.payload))
        elif record.kind is RecordKind.QUEUE_ENDS:
            ends.update(decode_queue_ends(record.payload))
        elif record.kind is RecordKind.SNAPSHOT_END:
            return rows, ends
    return None


class Replay:
    """Reads the frames from a beginning to the end of the log.

    Args:
        files: The disk.
        directory: Of the shard.
        beginning: Where to begin.
        is_strict: What cannot be read ends the replay; else it counts as damaged.

    Attributes:
        damages: What was found on the way, in order.
        ending: Where the log ends; set when `frames` is exhausted.
    """

    def __init__(
        self, files: Files, directory: Path, beginning: Beginning, *, is_strict: bool = True
    ) -> None:
        self._files = files
        self._is_strict = is_strict
        self._directory = directory
        self._beginning = beginning
        self._lsn = beginning.lsn
        self._durable_lsn = beginning.durable_lsn
        self._timestamp_ms = 0
        self.damages = [*_missing(beginning.segments), *beginning.damages]
        self.ending: Ending | None = None

    def frames(self) -> Iterator[tuple[SegmentHeader, Found | None]]:
        """Every good frame in order; None where a segment begins.

        Raises:
            ReadFailed: The disk refuses a segment.
        """
        start = self._beginning.offset
        tail = Tail(start, is_torn=False, reason="")
        cut_bytes = 0
        for header in self._beginning.segments[self._beginning.first :]:
            yield header, None
            file = self._files.open(segment.path_of(self._directory, header))
            try:
                for item in self._scan(file, header, start):
                    if isinstance(item, Found):
                        self._pass(header, item)
                        yield header, item
                    elif isinstance(item, Tail):
                        tail = item
                        cut_bytes = FRAME_HEADER_BYTES if item.is_torn else 0
                    elif cut_bytes := self._unpromised_bytes(file, header, item):
                        tail = Tail(item.start, is_torn=True, reason=item.reason)
                        break
                    else:
                        self._skip(header, item)
            finally:
                file.close()
            self._end_segment(header, tail)
            start = segment.HEADER_BYTES
        last_lsn = max(self._lsn, self._durable_lsn)
        self.ending = Ending(tail.start, last_lsn, self._timestamp_ms, cut_bytes)

    def _scan(self, file: File, header: SegmentHeader, start: int) -> Iterator[Found | Bad | Tail]:
        try:
            yield from scan(file, header, start, self._lsn, is_strict=self._is_strict)
        except OSError as error:
            raise _unreadable(header, error) from error

    def _unpromised_bytes(self, file: File, header: SegmentHeader, bad: Bad) -> int:
        """Bytes from a bad range to the end of the log, if none of them was ever promised."""
        if header is not self._beginning.segments[-1]:
            return 0
        durable_lsn, end = self._durable_lsn, bad.end
        for item in self._scan(file, header, bad.end):
            if isinstance(item, Found):
                durable_lsn, end = max(durable_lsn, item.header.synced_lsn), item.end
        return 0 if durable_lsn > self._lsn else end - bad.start

    def _pass(self, header: SegmentHeader, found: Found) -> None:
        lsn = found.header.lsn
        if self._lsn and lsn != self._lsn + 1 and not self._explains(header, found.start):
            reason = f"frame {lsn} follows frame {self._lsn}"
            self._report(Damage(header.number, found.start, found.start, 0, 0, reason), lsn - 1)
        elif self.damages and self.damages[-1].last_lsn == _UNKNOWN:
            self.damages[-1] = self.damages[-1]._replace(last_lsn=lsn - 1)
        self._lsn = lsn
        self._durable_lsn = max(self._durable_lsn, found.header.synced_lsn)
        self._timestamp_ms = max(self._timestamp_ms, found.header.timestamp_ms)

    def _explains(self, header: SegmentHeader, end: int) -> bool:
        """Whether the damage reported last is the reason for missing frames before `end`."""
        last = self.damages[-1] if self.damages else None
        return last is not None and (last.segment, last.end) == (header.number, end)

    def _skip(self, header: SegmentHeader, bad: Bad) -> None:
        self._report(Damage(header.number, bad.start, bad.end, 0, 0, bad.reason), _UNKNOWN)

    def _end_segment(self, header: SegmentHeader, tail: Tail) -> None:
        segments = self._beginning.segments
        is_last = header is segments[-1]
        following = 0 if is_last else segments[segments.index(header) + 1].first_lsn
        known_lsn = self._durable_lsn if is_last else following - 1
        if known_lsn > self._lsn:
            damage = Damage(header.number, tail.start, tail.start, 0, 0, tail.reason)
            self._report(damage, known_lsn)
            self._lsn = known_lsn

    def _report(self, damage: Damage, last_lsn: int) -> None:
        damage = damage._replace(first_lsn=self._lsn + 1, last_lsn=last_lsn)
        self.damages.append(damage)
        _log.error(
            "corruption segment=%d bytes=[%d,%d) first_lsn=%d reason=%s",
            damage.segment,
            damage.start,
            damage.end,
            damage.first_lsn,
            damage.reason,
        )


_ZERO_BYTES = 1 << 20
# Of a segment, perhaps half written.
_DERIVED = re.compile(
    rf"(\d{{10}})(?:{re.escape(sealed_index.SUFFIX)}|{re.escape(key_index.SUFFIX)})(?:\.new)?"
)
_MISSING = "the segment is missing"
# Until the next good frame says which one it is.
_UNKNOWN = (1 << 64) - 1


def _missing(segments: list[SegmentHeader]) -> Iterator[Damage]:
    """Gaps in the numbers of the segments; nothing but a lost file makes one."""
    for header, following in pairwise(segments):
        for number in range(header.number + 1, following.number):
            yield Damage(number, 0, 0, 0, following.first_lsn - 1, _MISSING)
            _log.error("segment_missing segment=%d", number)


def mend_tail(files: Files, directory: Path, header: SegmentHeader, ending: Ending) -> None:
    """Make the end of the log what the next frame needs, durably.

    What is cut can never be read again, a damaged segment header is written again, and bytes that
    were read but perhaps never synced are brought to the disk. Where the segment was full already,
    and the next one never came to be, there may be indexes of it: they go before a frame comes
    that they do not know. So do those of segments that retention took, if a crash left them.
    """
    names = files.names(directory)
    sealed = {known.number for known in segment.named(names)} - {header.number}
    for name in names:
        derived = _DERIVED.fullmatch(name)
        if derived is not None and int(derived[1]) not in sealed:
            files.remove(directory / name)
    file = files.open(segment.path_of(directory, header))
    try:
        if ending.cut_bytes:
            _log.info("torn_tail_cut segment=%d offset=%d", header.number, ending.offset)
        for start in range(0, ending.cut_bytes, _ZERO_BYTES):
            zeros = bytes(min(_ZERO_BYTES, ending.cut_bytes - start))
            file.write(ending.offset + start, [zeros])
        if read_around(file, 0, segment.HEADER_BYTES) != segment.encode_header(header):
            file.write(0, [segment.encode_header(header)])
        file.sync()
    finally:
        file.close()
    # Nor does anybody know whether the last process lived to sync the segment's name.
    files.sync_directory(directory)
