"""Reading messages from the segments they lie in.

One read of 4 KiB brings most messages whole; a longer one costs a second read. Neighbours, as
the messages of one send are, come with one read together. Each is verified by its own checksum.
A bad sector is an error of that message only, and for a while no damage (store.patience).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import File, Files
from cosmodrome_server.store.patience import Patience
from cosmodrome_server.store.record import STATE_HEAD_BYTES, decode_message, length_of
from cosmodrome_server.store.segment import OFFSET_BITS, OFFSET_MASK, SegmentHeader

_READ_BYTES = 4_096
# What one read of neighbours brings at most: some 30 messages of 1 KiB and what follows them.
_RUN_BYTES = 64 << 10
# Of the 900 segments of 115 GB; each is a descriptor.
_OPEN_FILES_MAX = 256
_VISIBLE = MessageState.VISIBLE


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
        self._patience = Patience()

    @property
    def last_number(self) -> int:
        """The number of the newest segment; 0 for none."""
        return max(self._segments, default=0)

    def segments(self) -> list[SegmentHeader]:
        """All segments, oldest first; from any thread."""
        return [header for _, header in sorted(self._segments.copy().items())]

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
            data, length = self._bytes_of(file, start)
            if length > len(data):
                if start + length > file.size():
                    raise CorruptFrame(f"message length {length} at log position {position}")
                data += file.read(start + len(data), length - len(data))
        except OSError as error:
            raise self._patience.refused(position, f"log position {position}", error) from error
        return decode_message(data, length)

    @staticmethod
    def _bytes_of(file: File, start: int) -> tuple[bytes, int]:
        """The first bytes of a message, and how long it says it is; 0 when it cannot say."""
        try:
            data = file.read(start, _READ_BYTES)
        except OSError:
            # Perhaps only a neighbour's sector is bad: no byte more than this message has.
            data = file.read(start, STATE_HEAD_BYTES)
        return data, length_of(data) if len(data) >= STATE_HEAD_BYTES else 0

    def read_many(self, positions: Sequence[int]) -> dict[int, MessageRecord]:
        """Read messages in the order of their queue; what is damaged or gone is left out.

        Raises:
            ReadFailed: The disk refuses one of them now.
        """
        found: dict[int, MessageRecord] = {}
        for run in _runs(positions):
            if len(run) > 1:
                self._read_run(run, found)
            for position in run:
                if position not in found:
                    # Alone: it is long, or it is its own error and not its neighbours'.
                    try:
                        found[position] = self.read(position)
                    except (CorruptFrame, MessageNotFound):
                        continue
        return found

    def _read_run(self, run: Sequence[int], found: dict[int, MessageRecord]) -> None:
        """Add the messages of a run that one read brings whole and sound."""
        first, number = run[0], run[0] >> OFFSET_BITS
        try:
            file = self._open.get(number) or self.file(number)
            data = file.read(first & OFFSET_MASK, run[-1] - first + _READ_BYTES)
        except (OSError, MessageNotFound):
            return
        for position in run:
            start = position - first
            if len(data) - start < STATE_HEAD_BYTES:
                return
            end = start + length_of(data[start : start + STATE_HEAD_BYTES])
            if end > len(data):
                continue
            try:
                found[position] = decode_message(data[start:end])
            except CorruptFrame:
                continue

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


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split positions where reading on would bring more than it saves."""
    start = 0
    for at in range(1, len(positions)):
        is_near = 0 < positions[at] - positions[at - 1] <= _READ_BYTES
        if not is_near or positions[at] - positions[start] > _RUN_BYTES - _READ_BYTES:
            yield positions[start:at]
            start = at
    if positions:
        yield positions[start:]


def place_run(
    records: list[MessageRecord | None],
    place: tuple[int, int, int],
    entry_of: Callable[[int, int, int], tuple[int, int, int]],
) -> None:
    """`placed` for neighbours, in their list; None for one that is the message of another place.

    Args:
        records: As read; None for one that was not.
        place: Topic id, queue id and queue offset of the first.
        entry_of: What is indexed at a place.
    """
    topic_id, queue_id, start = place
    for queue_offset, record in enumerate(records, start):
        # Nearly all are visible where they say.
        if record is not None and (
            record.queue_offset != queue_offset
            or record.topic_id != topic_id
            or record.state is not _VISIBLE
        ):
            at = (topic_id, queue_id, queue_offset)
            try:
                records[queue_offset - start] = placed(record, at, entry_of(*at))
            except CorruptFrame:
                records[queue_offset - start] = None


def placed(
    record: MessageRecord, place: tuple[int, int, int], entry: tuple[int, int, int]
) -> MessageRecord:
    """A record at its place in a queue; one that was delayed or half does not name it itself.

    Args:
        record: As read at the position of `entry`.
        place: Topic id, queue id and queue offset it was looked for under.
        entry: Position, tag hash and store timestamp, as indexed.

    Raises:
        CorruptFrame: It is the message of another place.
    """
    topic_id, queue_id, queue_offset = place
    if record.state is _VISIBLE:
        if record.queue_offset != queue_offset or record.topic_id != topic_id:
            raise CorruptFrame(f"another message lies at log position {entry[0]}")
        return record
    return msgspec.structs.replace(
        record,
        topic_id=topic_id,
        queue_id=queue_id,
        queue_offset=queue_offset,
        tag_hash=entry[1],
        store_timestamp_ms=entry[2],
    )
