"""The consume queues of a segment that takes no more frames: one file, read through a map.

    data/shard-0000/0000000042.idx

    0       8         12    16        24     32       40        48        56       64        68  72
    ┌───────┬─────────┬─────┬─────────┬──────┬────────┬─────────┬─────────┬────────┬─────────┬───┐
    │ magic │ version │ crc │ segment │ salt │ queues │ entries │ last ms │ oldest │ own crc │ 0 │
    └───────┴─────────┴─────┴─────────┴──────┴────────┴─────────┴─────────┴────────┴─────────┴───┘
      8 bytes u32       u32   u64       u64    u64      u64       u64       u64      u32       u32
    ┌────────────────┬──────────────────┬──────────────────────┬───────────────────────────────┐
    │ keys (queues)  │ base offsets     │ starts (queues + 1)  │ entries: position, tag, time  │
    └────────────────┴──────────────────┴──────────────────────┴───────────────────────────────┘
      u64, sorted      u64 each           u64 each                u64 × 3 each

Little-endian. A key is topic id << 32 | queue id. Entries starts[i] to starts[i + 1] belong to
keys[i]; the first of them is queue offset bases[i]. A position of 0 is a hole: the offset was
given out, and its message lost to corruption. `crc` covers all after the first 72 bytes, the
header has its own. `oldest` is the lowest position any entry points to.

Derived: what is missing or damaged is made again from the log (store.recovery).
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import NamedTuple, TypeAlias

from google_crc32c import extend
from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.store.files import Files, write_whole
from cosmodrome_server.store.segment import SegmentHeader

SUFFIX = ".idx"
WORDS = 3  # per entry: position, tag hash, store timestamp

_MAGIC = b"COSMOIDX"
_VERSION = 1
_HEADER = Struct("<8sIIQQQQQQII")
_COVERED = Struct("<8sIIQQQQQQ")
_WORD_BYTES = 8
# CRC-32C takes bytes, not views: pieces of this size keep the copies small.
_PIECE_BYTES = 1 << 20

# A string: Python 3.11 cannot subscript array while running.
Words: TypeAlias = "array[int] | memoryview"


class Run(NamedTuple):
    """The offsets [base, end) of one queue in one segment.

    Attributes:
        base: The first offset.
        end: One past the last.
        words: Three words for each offset, beginning at word `start`.
        start: See `words`.
    """

    base: int
    end: int
    words: Words
    start: int

    def time(self, queue_offset: int) -> int:
        """When a message of the run was stored."""
        return self.words[self.start + WORDS * (queue_offset - self.base) + 2]

    def first_at(self, timestamp_ms: int) -> int:
        """The first offset stored then or later, `end` if there is none."""
        return self.base + bisect_left(range(self.base, self.end), timestamp_ms, key=self.time)


class IndexHeader(NamedTuple):
    """What an index says of itself.

    Attributes:
        crc: Of everything after the header.
        number: Of its segment.
        salt: Of its segment.
        queues: How many queues it knows.
        entries: How many offsets of all queues.
        last_ms: The latest store timestamp.
        oldest_position: The lowest position an entry points to.
    """

    crc: int
    number: int
    salt: int
    queues: int
    entries: int
    last_ms: int
    oldest_position: int

    @property
    def file_bytes(self) -> int:
        """How long the file must be."""
        return _HEADER.size + _WORD_BYTES * (3 * self.queues + 1 + WORDS * self.entries)


def path_of(directory: Path, number: int) -> Path:
    """Where the index of a segment lies."""
    return directory / f"{number:010d}{SUFFIX}"


def write(
    files: Files,
    directory: Path,
    segment: SegmentHeader,
    runs: Iterable[tuple[int, Run]],
    bounds: tuple[int, int],
) -> None:
    """Write the index of a segment.

    Args:
        files: Where to.
        directory: Of the shard.
        segment: Whose index it is.
        runs: Each (key, offsets), by key.
        bounds: The latest store timestamp, and the lowest position any entry points to.

    Raises:
        OSError: It could not be written; nothing changed.
    """
    keys, bases, starts, entries = array("Q"), array("Q"), array("Q", [0]), array("Q")
    for key, run in runs:
        count = run.end - run.base
        keys.append(key)
        bases.append(run.base)
        starts.append(starts[-1] + count)
        entries.frombytes(run.words[run.start : run.start + WORDS * count].tobytes())
    body = b"".join((keys.tobytes(), bases.tobytes(), starts.tobytes(), entries.tobytes()))
    covered = _COVERED.pack(
        _MAGIC,
        _VERSION,
        crc32c(body),
        segment.number,
        segment.salt,
        len(keys),
        starts[-1],
        *bounds,
    )
    header = _HEADER.pack(*_COVERED.unpack(covered), crc32c(covered), 0)
    write_whole(files, path_of(directory, segment.number), [header, body])


def read_header(files: Files, directory: Path, segment: SegmentHeader) -> IndexHeader:
    """Check that the index of a segment is there, is its own, and has its length.

    Raises:
        CorruptFrame: It is damaged or of another segment.
        OSError: It is not there or cannot be read.
    """
    file = files.open(path_of(directory, segment.number))
    try:
        data, size = file.read(0, _HEADER.size), file.size()
    finally:
        file.close()
    if len(data) < _HEADER.size or crc32c(data[: _COVERED.size]) != _HEADER.unpack(data)[-2]:
        raise CorruptFrame(f"checksum mismatch in the header of index {segment.number}")
    magic, version, *rest = _COVERED.unpack_from(data)
    header = IndexHeader(*rest)
    is_ours = (magic, version) == (_MAGIC, _VERSION) and header.file_bytes == size
    if not is_ours or (header.number, header.salt) != (segment.number, segment.salt):
        raise CorruptFrame(f"index {segment.number} is of another segment, version or length")
    return header


class MappedIndex:
    """An index that is read where it lies."""

    def __init__(self, header: IndexHeader, view: memoryview) -> None:
        words = view[_HEADER.size :].cast("Q")
        self._keys = words[: header.queues]
        self._bases = words[header.queues : 2 * header.queues]
        self._starts = words[2 * header.queues : 3 * header.queues + 1]
        self._entries = words[3 * header.queues + 1 :]

    def run(self, key: int) -> Run | None:
        """The offsets of a queue here; None if there are none."""
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        start, stop = self._starts[at], self._starts[at + 1]
        base = self._bases[at]
        return Run(base, base + stop - start, self._entries, WORDS * start)

    def runs(self) -> dict[int, Run]:
        """All queues, in the order of their keys."""
        found = {key: self.run(key) for key in self._keys}
        return {key: run for key, run in found.items() if run is not None}


def open_index(
    files: Files, directory: Path, segment: SegmentHeader, *, is_verified: bool = False
) -> MappedIndex:
    """Map the index of a segment, after reading it once to verify it.

    Args:
        files: Where it is.
        directory: Of the shard.
        segment: Whose index it is.
        is_verified: All of it was read before, and is not read again.

    Raises:
        CorruptFrame: It is damaged or of another segment.
        OSError: It is not there or cannot be read.
    """
    header = read_header(files, directory, segment)
    view = files.map(path_of(directory, segment.number))
    if is_verified:
        return MappedIndex(header, view)
    crc = 0
    for start in range(_HEADER.size, len(view), _PIECE_BYTES):
        crc = extend(crc, bytes(view[start : start + _PIECE_BYTES]))
    if crc != header.crc:
        raise CorruptFrame(f"checksum mismatch in index {segment.number}")
    return MappedIndex(header, view)
