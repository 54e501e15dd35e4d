"""The index of a segment as its records tell it, where the one in its file is no good.

    frame ──▶ record that gives a message its place ──▶ entry of its queue      (add)
    all of them ──▶ runs by queue, as if they had been read from the file       (runs, write)

What lies between two known offsets of a queue and is in no frame was lost: a hole.
"""

import logging
from array import array
from pathlib import Path

from cosmodrome_server.model.log import (
    END_TRANSACTION_HEAD,
    MessageState,
    RecordKind,
    Replayed,
)
from cosmodrome_server.store import sealed_index, segment
from cosmodrome_server.store.consume_queue import key_of
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from cosmodrome_server.store.record import decode_records
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.sealed_index import WORDS, IndexHeader, Run
from cosmodrome_server.store.segment import SegmentHeader

_log = logging.getLogger(__name__)


class SegmentEntries:
    """The entries of one segment, from its frames in their order.

    Attributes:
        segment: Who it is.
    """

    def __init__(self, header: SegmentHeader) -> None:
        self.segment = header
        self._words: dict[int, array[int]] = {}
        self._bases: dict[int, int] = {}
        self._ended_ms = header.created_ms

    def add(self, found: Found) -> None:
        """Take the places that a frame gives."""
        self._ended_ms = max(self._ended_ms, found.header.timestamp_ms)
        base = self.segment.number << segment.OFFSET_BITS | found.start + FRAME_HEADER_BYTES
        for record in decode_records(found.payload, base, found.header.timestamp_ms):
            place = place_given_by(record)
            if place is not None:
                self._add(*place)

    def _add(self, key: int, queue_offset: int, entry: tuple[int, int, int]) -> None:
        words = self._words.setdefault(key, array("Q"))
        first = self._bases.setdefault(key, queue_offset)
        missing = queue_offset - first - len(words) // WORDS
        if missing < 0:
            # Given up, given anew, and back: see `ConsumeQueues`.
            self._bases[key] = min(first, queue_offset)
            del words[WORDS * (queue_offset - self._bases[key]) :]
        words.extend((0, 0, entry[2]) * missing)
        words.extend(entry)

    def runs(self) -> dict[int, Run]:
        """The offsets of each queue."""
        return {
            key: Run(self._bases[key], self._bases[key] + len(words) // WORDS, words, 0)
            for key, words in self._words.items()
        }

    def write(self, files: Files, directory: Path) -> IndexHeader:
        """Write the index file; without space for it whoever reads it makes it again."""
        runs = self.runs()
        positions = (at for run in runs.values() for at in run.words[::WORDS] if at)
        begins_at = self.segment.number << segment.OFFSET_BITS
        last_ms = max((run.time(run.end - 1) for run in runs.values()), default=self._ended_ms)
        bounds = (last_ms, min([begins_at, *positions]))
        _log.warning("index_made segment=%d", self.segment.number)
        try:
            sealed_index.write(files, directory, self.segment, sorted(runs.items()), bounds)
        except OSError as error:
            _log.warning("index_not_written segment=%d error=%s", self.segment.number, error)
        entries = sum(run.end - run.base for run in runs.values())
        who = (self.segment.number, self.segment.salt)
        return IndexHeader(0, *who, len(runs), entries, *bounds)


def entries_of(
    files: Files, directory: Path, header: SegmentHeader, *, is_strict: bool = False
) -> dict[int, Run]:
    """The index of a segment as its records tell it.

    Args:
        files: The disk.
        directory: Of the shard.
        header: Of the segment.
        is_strict: A sector that cannot be read raises OSError.
    """
    entries = SegmentEntries(header)
    file = files.open(segment.path_of(directory, header))
    try:
        for item in scan(file, header, is_strict=is_strict):
            if isinstance(item, Found):
                entries.add(item)
    finally:
        file.close()
    return entries.runs()


def place_given_by(record: Replayed) -> tuple[int, int, tuple[int, int, int]] | None:
    """Key of the queue, queue offset and index entry, if a record gives a message its place."""
    message = record.message
    if message is not None:
        if message.state is not MessageState.VISIBLE:
            return None
        entry = (record.position, message.tag_hash, message.store_timestamp_ms)
        return key_of(message.topic_id, message.queue_id), message.queue_offset, entry
    if record.kind is not RecordKind.END_TRANSACTION:
        return None
    _, position, stored_ms, topic_id, queue_id, queue_offset, tag_hash, is_commit = (
        END_TRANSACTION_HEAD.unpack_from(record.payload)
    )
    if not is_commit:
        return None
    return key_of(topic_id, queue_id), queue_offset, (position, tag_hash, stored_ms)
