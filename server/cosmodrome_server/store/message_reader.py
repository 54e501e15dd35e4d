"""Reading one message from the segment it lies in.

One read of 4 KiB brings most messages whole; a longer one costs a second read. Each is
verified by its own checksum. A bad sector is an error of that message only: while the disk
refuses, the message is not lost (a cable, a controller, a network disk come back); when it
has refused `READS_MAX` times it counts as damaged, so that its queue can go on.
"""

from collections.abc import Iterable
from pathlib import Path

from cosmodrome_server.errors import CorruptFrame, MessageNotFound, ReadFailed, StoreError
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import File, Files
from cosmodrome_server.store.frame import PAYLOAD_BYTES_MAX
from cosmodrome_server.store.record import STATE_HEAD_BYTES, decode_message, length_of
from cosmodrome_server.store.segment import OFFSET_BITS, OFFSET_MASK, SegmentHeader

_READ_BYTES = 4_096
# Of the 900 segments of 115 GB; each is a descriptor.
_OPEN_FILES_MAX = 256
# Official clients ask again every second: a minute and a half for a disk to come back.
READS_MAX = 100
# Places whose failures are counted; past it the oldest counts anew.
_FAILURES_MAX = 1_024


class MessageReader:
    """The segments of a log, opened when they are first read.

    Args:
        files: The disk.
        directory: Of the shard.
        segments: Those that are there.
    """

    def __init__(self, files: Files, directory: Path, segments: Iterable[SegmentHeader]) -> None:
        self._files = files
        self._directory = directory
        self._segments = {header.number: header for header in segments}
        self._open: dict[int, File] = {}
        self._failures: dict[int, int] = {}

    @property
    def last_number(self) -> int:
        """The number of the newest segment; 0 for none."""
        return max(self._segments, default=0)

    def segments(self) -> list[SegmentHeader]:
        """All segments, oldest first."""
        return [self._segments[number] for number in sorted(self._segments)]

    def add(self, header: SegmentHeader, file: File) -> None:
        """A segment begins; its file may not have its name yet."""
        self._segments[header.number] = header
        self._open[header.number] = file

    def remove(self, number: int) -> SegmentHeader:
        """A segment is read no more."""
        file = self._open.pop(number, None)
        if file is not None:
            file.close()
        return self._segments.pop(number)

    def read(self, position: int) -> MessageRecord:
        """Read the message at a position.

        Raises:
            MessageNotFound: Its segment is gone.
            CorruptFrame: It is damaged, or the disk has refused it too often.
            ReadFailed: The disk refuses it now.
        """
        start, number = position & OFFSET_MASK, position >> OFFSET_BITS
        try:
            file = self._open.get(number) or self.file(number)
            data = file.read(start, _READ_BYTES)
            length = length_of(data) if len(data) >= STATE_HEAD_BYTES else 0
            if length > PAYLOAD_BYTES_MAX:
                raise CorruptFrame(f"message length {length} at log position {position}")
            if length > len(data):
                data += file.read(start + len(data), length - len(data))
        except OSError as error:
            raise self._failed(position, error) from error
        return decode_message(data, length)

    def _failed(self, position: int, error: OSError) -> StoreError:
        count = self._failures.pop(position, 0) + 1
        self._failures[position] = count
        if len(self._failures) > _FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        words = f"log position {position} cannot be read: {error}"
        return CorruptFrame(words) if count >= READS_MAX else ReadFailed(words)

    def file(self, number: int) -> File:
        """The file of a segment, open.

        Raises:
            MessageNotFound: The segment is gone.
            OSError: It cannot be opened.
        """
        file = self._open.get(number)
        if file is None:
            header = self._segments.get(number)
            if header is None:
                raise MessageNotFound(f"segment {number} is not stored: retention took it")
            if len(self._open) >= _OPEN_FILES_MAX:
                # The newest two may be being written.
                oldest = next(held for held in self._open if held < self.last_number - 1)
                self._open.pop(oldest).close()
            file = self._files.open(segment.path_of(self._directory, header))
            self._open[number] = file
        return file

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
