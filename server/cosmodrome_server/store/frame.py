"""The unit of writing: one frame, one group commit, visible whole or not at all.

    0       4        8       12        16    24          32           40        44      48
    ┌───────┬────────┬───────┬─────────┬─────┬───────────┬────────────┬─────────┬───────┬─────────
    │ magic │ length │ crc   │ records │ lsn │ timestamp │ synced lsn │ segment │ epoch │ payload
    └───────┴────────┴───────┴─────────┴─────┴───────────┴────────────┴─────────┴───────┴─────────
      u32     u32      u32     u32       u64   u64 ms      u64          u32       u32

Little-endian. `length` counts the payload, `records` what is in it (store.record). `lsn`
numbers the frames of a log from 1 without gaps. `synced lsn` is the last frame known to be
on the disk when this one was written: a bad frame at or below it was acknowledged once.

`crc` is CRC-32C over bytes 4-8, 12-48 and the payload, begun with the seed of the segment
(store.segment). The seed holds a random salt: neither an old frame of a recycled file nor
bytes that a producer put into a message can pass for a frame.

Pure functions over bytes: `store.scanner` reads files, `store.recovery` alone decides what
a bad frame means.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend

from cosmodrome_server.errors import CorruptFrame, TornFrame

MAGIC = 0x314D4643  # "CFM1"
MAGIC_BYTES = MAGIC.to_bytes(4, "little")
HEADER_BYTES = 48
# Where a header says of which segment it is.
SEGMENT_AT = 40

_HEADER = Struct("<IIIIQQQII")
_COVERED = Struct("<IIQQQII")


class FrameHeader(NamedTuple):
    """What a frame says of itself.

    Attributes:
        length: Bytes of payload.
        crc: As stored.
        records: How many records the payload holds.
        lsn: The number of the frame.
        timestamp_ms: When it was committed; never behind an earlier frame.
        synced_lsn: The last frame known to be on the disk before it.
        segment: The number of its segment.
        epoch: The term of its writer.
    """

    length: int
    crc: int
    records: int
    lsn: int
    timestamp_ms: int
    synced_lsn: int
    segment: int
    epoch: int


def encode_header(seed: int, header: FrameHeader, payload: Iterable[bytes]) -> bytes:
    """The 48 bytes before `payload`; `header.crc` is computed, not read.

    Args:
        seed: Of the segment.
        header: Its `length` must be that of all parts together.
        payload: In parts, in order.
    """
    length, _, *rest = header
    crc = extend(seed, _COVERED.pack(length, *rest))
    for part in payload:
        crc = extend(crc, part)
    return _HEADER.pack(MAGIC, length, crc, *rest)


def decode_header(data: bytes, position: int = 0) -> FrameHeader:
    """Read the header at byte `position`; nothing is verified, nor is any length too long.

    What was written must be read again, however much store.staged_mib let into one frame, or
    the state at the start of a segment takes; the end of the file bounds a damaged length.

    Raises:
        TornFrame: `data` ends before the header does.
        CorruptFrame: It is no header of a frame.
    """
    if position + HEADER_BYTES > len(data):
        raise TornFrame(f"frame header at {position} crosses the end at {len(data)}")
    magic, length, crc, *rest = _HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise CorruptFrame(f"no frame at {position}")
    return FrameHeader(length, crc, *rest)


def verify(seed: int, header: FrameHeader, payload: bytes) -> None:
    """Check that header and payload are what was written.

    Raises:
        TornFrame: The payload ends early.
        CorruptFrame: The checksum says no.
    """
    if len(payload) < header.length:
        raise TornFrame(f"frame {header.lsn} has {len(payload)} bytes of {header.length}")
    length, crc, *rest = header
    if extend(extend(seed, _COVERED.pack(length, *rest)), payload) != crc:
        raise CorruptFrame(f"checksum mismatch in frame {header.lsn}")
