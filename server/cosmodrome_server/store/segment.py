"""One bounded file of frames: its name, its header, and the file itself.

    data/shard-0000/0000000042-9f86d081884c7d65.seg      number and salt

    0       8         12    16      20      24        32     40        48          56  60    64
    ┌───────┬─────────┬─────┬───────┬───────┬─────────┬──────┬─────────┬───────────┬───┬─────┬──────
    │ magic │ version │ crc │ shard │ epoch │ segment │ salt │ created │ first lsn │ 0 │ crc │ frame
    └───────┴─────────┴─────┴───────┴───────┴─────────┴──────┴─────────┴───────────┴───┴─────┴──────
      8 bytes u32       u32   u32     u32     u64       u64    u64 ms    u64         u32 u32

The first `crc` names the checksum algorithm (1 = CRC-32C), the second is the checksum of
the header. A segment is made from a spare file (store.space): zero-filled, or an old segment
recycled. `salt` is random and, with the number, seeds the checksum of every frame, so that
no byte of the file's earlier life is ever read as data. The name repeats both, so that a
damaged header does not take the frames with it.

The first frame of a segment begins with all rows of the state as they were when it began
(QUEUE_ENDS, SNAPSHOT_ROW…, SNAPSHOT_END): a log can be read from any segment on.

A position is segment number << 32 | byte offset in the file.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

import msgspec
from google_crc32c import value as crc32c

from cosmodrome_server.errors import CorruptFrame, StoreError
from cosmodrome_server.store.files import File

HEADER_BYTES = 64
SUFFIX = ".seg"
OFFSET_BITS = 32
OFFSET_MASK = (1 << OFFSET_BITS) - 1
VERSION = 1

_NAME = re.compile(r"(\d{10})-([0-9a-f]{16})\.seg")
_MAGIC = b"COSMOSEG"
_CRC32C = 1
_HEADER = Struct("<8sIIIIQQQQI")
_CRC = Struct("<I")
_SEED = Struct("<QQ")


class SegmentHeader(msgspec.Struct, frozen=True):
    """Who a segment is.

    Attributes:
        number: Segments are numbered from 1.
        salt: Random; never used twice.
        first_lsn: The number of its first frame.
        created_ms: When it was begun, by the log's time: all messages before it are older.
        shard: Which shard it belongs to.
        epoch: The term of the writer that began it.
    """

    number: int
    salt: int
    first_lsn: int
    created_ms: int
    shard: int = 0
    epoch: int = 0

    @property
    def seed(self) -> int:
        """What the checksums of its frames begin with."""
        seed: int = crc32c(_SEED.pack(self.number, self.salt))
        return seed


class Segment(msgspec.Struct):
    """An open segment.

    Attributes:
        header: Who it is.
        file: Its file.
        seed: See `SegmentHeader`.
        capacity: Bytes whose disk space is reserved.
        message_capacity: How many of them messages may use: on a full disk the reserve goes to
            state records.
    """

    header: SegmentHeader
    file: File
    seed: int
    capacity: int
    message_capacity: int

    @property
    def number(self) -> int:
        """See `SegmentHeader`."""
        return self.header.number

    @property
    def base(self) -> int:
        """The position of byte 0."""
        return self.header.number << OFFSET_BITS


def encode_header(header: SegmentHeader) -> bytes:
    """The first 64 bytes of a segment."""
    covered = _HEADER.pack(
        _MAGIC,
        VERSION,
        _CRC32C,
        header.shard,
        header.epoch,
        header.number,
        header.salt,
        header.created_ms,
        header.first_lsn,
        0,
    )
    return covered + _CRC.pack(crc32c(covered))


def decode_header(data: bytes) -> SegmentHeader:
    """Read the first 64 bytes of a segment.

    Raises:
        CorruptFrame: They are damaged, or no segment's.
        StoreError: A newer version wrote them, undamaged.
    """
    if len(data) < HEADER_BYTES or data[:8] != _MAGIC:
        raise CorruptFrame("this is no segment")
    covered = data[: _HEADER.size]
    if crc32c(covered) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise CorruptFrame("checksum mismatch in a segment header")
    _, version, algorithm, shard, epoch, number, salt, created_ms, first_lsn, _ = _HEADER.unpack(
        covered
    )
    if version != VERSION or algorithm != _CRC32C:
        raise StoreError(
            f"segment {number} has format {version} with checksum {algorithm}; "
            f"this version reads format {VERSION} with checksum {_CRC32C}"
        )
    return SegmentHeader(number, salt, first_lsn, created_ms, shard, epoch)


def path_of(directory: Path, header: SegmentHeader) -> Path:
    """Where a segment lies."""
    return directory / f"{header.number:010d}-{header.salt:016x}{SUFFIX}"


def named(names: Iterable[str]) -> list[SegmentHeader]:
    """The segments among file names, in order; what names do not say is 0."""
    found = [_NAME.fullmatch(name) for name in names]
    headers = [SegmentHeader(int(m[1]), int(m[2], 16), 0, 0) for m in found if m is not None]
    return sorted(headers, key=lambda header: header.number)


def segment_of(position: int) -> int:
    """The number of the segment a position lies in."""
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    """The byte offset of a position in its segment."""
    return position & OFFSET_MASK
