"""Reading a segment from its bytes alone: good frames, bad ranges, and where it ends.

    ┌────────┬───────┬───────┬─ ─ ─ ─ ─ ─ ─┬───────┬──────────────────────────┐
    │ header │ Found │ Found │     Bad     │ Found │ Tail (nothing from here) │
    └────────┴───────┴───────┴─ ─ ─ ─ ─ ─ ─┴───────┴──────────────────────────┘

Where no frame is, the next good one is searched for, byte by byte: one damaged frame costs
itself and nothing behind it. A sector that cannot be read counts as damaged bytes. What a bad
range or a tail means (a crash, or rot) is not decided here.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cosmodrome_server.errors import CorruptFrame, TornFrame
from cosmodrome_server.store import frame as framing
from cosmodrome_server.store.files import File
from cosmodrome_server.store.segment import HEADER_BYTES, SegmentHeader

_WINDOW_BYTES = 1 << 20
_SECTOR_BYTES = 512
_ZEROS = bytes(_WINDOW_BYTES)


class Found(NamedTuple):
    """A good frame.

    Attributes:
        start: The byte offset of its header in the file.
        end: One past its last byte.
        header: What it says of itself.
        payload: Its records.
    """

    start: int
    end: int
    header: framing.FrameHeader
    payload: bytes


class Bad(NamedTuple):
    """Bytes between two good frames that are no frame."""

    start: int
    end: int
    reason: str


class Tail(NamedTuple):
    """There is no good frame from `start` on; always the last item of a scan.

    Attributes:
        start: Where the next frame would begin.
        is_torn: Something was written there that begins like a frame of this segment.
        reason: Why it is not one.
    """

    start: int
    is_torn: bool
    reason: str


def scan(
    file: File,
    segment: SegmentHeader,
    start: int = HEADER_BYTES,
    after_lsn: int = 0,
    *,
    is_strict: bool = False,
) -> Iterator[Found | Bad | Tail]:
    """Read the frames of a segment from byte `start` on.

    Args:
        file: Of the segment.
        segment: Its header.
        start: Where a frame begins.
        after_lsn: Frames up to this number are no frames of ours (of an earlier life).
        is_strict: A sector that cannot be read raises OSError.
    """
    reader = _Reader(file, segment, is_strict=is_strict)
    position, lsn = start, after_lsn
    while True:
        try:
            found = reader.frame(position, lsn)
        except (TornFrame, CorruptFrame) as error:
            following = reader.next_frame(position + 1, lsn)
            if following is None:
                yield Tail(position, reader.begins_a_frame(position, lsn), str(error))
                return
            yield Bad(position, following.start, str(error))
            found = following
        yield found
        position, lsn = found.end, found.header.lsn


class _Reader:
    """A window over a file, moving forward."""

    def __init__(self, file: File, segment: SegmentHeader, *, is_strict: bool) -> None:
        self._file = file
        self._is_strict = is_strict
        self._size = file.size()
        self._seed = segment.seed
        self._number = segment.number & 0xFFFFFFFF
        self._window = b""
        self._start = 0

    def frame(self, position: int, after_lsn: int) -> Found:
        """The frame at `position`.

        Raises:
            TornFrame, CorruptFrame: There is none.
        """
        header = self._header(position, after_lsn)
        start = position + framing.HEADER_BYTES
        if start + header.length > self._size:
            raise TornFrame(f"frame {header.lsn} crosses the end of the file")
        payload = self._bytes(start, header.length)
        framing.verify(self._seed, header, payload)
        return Found(position, start + header.length, header, payload)

    def begins_a_frame(self, position: int, after_lsn: int) -> bool:
        """Whether the header of a frame of this segment stands at `position`."""
        try:
            self._header(position, after_lsn)
        except (TornFrame, CorruptFrame):
            return False
        return True

    def next_frame(self, position: int, after_lsn: int) -> Found | None:
        """The first good frame at or after `position`; None if there is none."""
        while position < self._size:
            data = self._bytes(position, min(_WINDOW_BYTES, self._size - position))
            # Every start looks through what was never written: comparing is 30 times as fast.
            at = -1 if data == _ZEROS else data.find(framing.MAGIC_BYTES)
            while at >= 0:
                if self._may_be_ours(data, at):
                    try:
                        return self.frame(position + at, after_lsn)
                    except (TornFrame, CorruptFrame):
                        pass
                at = data.find(framing.MAGIC_BYTES, at + 1)
            # A magic number may lie across the border of two windows.
            position += max(1, len(data) - len(framing.MAGIC_BYTES) + 1)
        return None

    def _may_be_ours(self, data: bytes, at: int) -> bool:
        """Whether a magic number is not of another segment: a recycled file is full of those."""
        stated = data[at + framing.SEGMENT_AT : at + framing.SEGMENT_AT + 4]
        return len(stated) < 4 or stated == self._number.to_bytes(4, "little")

    def _header(self, position: int, after_lsn: int) -> framing.FrameHeader:
        header = framing.decode_header(self._bytes(position, framing.HEADER_BYTES))
        if header.segment != self._number:
            raise CorruptFrame(f"the frame at {position} is of segment {header.segment}")
        if header.lsn <= after_lsn:
            raise CorruptFrame(f"frame {header.lsn} follows frame {after_lsn}")
        return header

    def _bytes(self, position: int, length: int) -> bytes:
        at = position - self._start
        if at < 0 or at + length > len(self._window):
            if length > _WINDOW_BYTES:
                return self._read(position, length)
            self._window, self._start = self._read(position, _WINDOW_BYTES), position
            at = 0
        return self._window[at : at + length]

    def _read(self, position: int, length: int) -> bytes:
        if self._is_strict:
            return self._file.read(position, length)
        return read_around(self._file, position, length)


def read_around(file: File, position: int, length: int) -> bytes:
    """As `File.read`, with zeros for sectors that cannot be read.

    Raises:
        OSError: Not even the size of the file is known.
    """
    try:
        return file.read(position, length)
    except OSError:
        end = min(position + length, file.size())
        first = position - position % _SECTOR_BYTES
        sectors = b"".join(
            _read_sector(file, at, min(_SECTOR_BYTES, end - at))
            for at in range(first, end, _SECTOR_BYTES)
        )
        return sectors[position - first :]


def _read_sector(file: File, position: int, length: int) -> bytes:
    try:
        return file.read(position, length)
    except OSError:
        return bytes(length)
