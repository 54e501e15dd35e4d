"""What a log does beside writing: seal, checkpoint, make room, scrub. One thread, in order.

The order is what makes it safe: a checkpoint that ends in segment 7 is saved after the index
of segment 6, because both are jobs of this thread and the seal was given first. A failure of
a derived file is no failure of the log: what could not be written is kept and tried again
with a new file.
"""

import logging
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import msgspec

from cosmodrome_server.store.checkpoint import CheckpointStore, Mark
from cosmodrome_server.store.consume_queue import ConsumeQueues
from cosmodrome_server.store.group_commit import FrameWriter
from cosmodrome_server.store.packed_rows import PackedRows
from cosmodrome_server.store.queue_columns import NewEntries
from cosmodrome_server.store.scrubber import Scrubber
from cosmodrome_server.store.sealed_entries import SealedEntries
from cosmodrome_server.store.space import Space

_log = logging.getLogger(__name__)


class Changes(msgspec.Struct):
    """What a checkpoint adds to the one before.

    Attributes:
        mark: Up to where it holds; None until there is one.
        rows: Of the core.
        entries: Of the queues, in parts, in order.
    """

    mark: Mark | None = None
    rows: PackedRows = msgspec.field(default_factory=PackedRows)
    entries: list[Iterable[NewEntries]] = msgspec.field(default_factory=list)

    def add(self, later: "Changes") -> None:
        """Add what changed after this."""
        assert later.mark is not None
        if self.mark is None:
            self.rows = later.rows
        else:
            self.rows.extend(later.rows)
            self.rows.thin()
            self._pack(is_sealed=self.mark.position >> 32 != later.mark.position >> 32)
        self.mark = later.mark
        self.entries += later.entries

    def _pack(self, *, is_sealed: bool) -> None:
        """It was not saved, and may have to be kept for long."""
        if is_sealed:
            # The entries of a sealed segment are in its index.
            ends = {new.key: new.next_offset for part in self.entries for new in part}
            self.entries = [_Packed(NewEntries(key, end, end, b"") for key, end in ends.items())]
            return
        packed: list[Iterable[NewEntries]] = [
            part for part in self.entries if isinstance(part, _Packed)
        ]
        new = chain.from_iterable(self.entries[len(packed) :])
        self.entries = [*packed, _Packed(new)]


class _Packed:
    """New entries without what else was copied with them, in two pieces of memory."""

    def __init__(self, new: Iterable[NewEntries]) -> None:
        self._heads = array("Q")
        self._entries = bytearray()
        for key, next_offset, base, entries in new:
            self._heads.extend((key, next_offset, base, len(entries)))
            self._entries += entries

    def __iter__(self) -> Iterator[NewEntries]:
        words, at = iter(self._heads), 0
        for key, next_offset, base, length in zip(words, words, words, words, strict=True):
            yield NewEntries(key, next_offset, base, bytes(self._entries[at : at + length]))
            at += length


class Background:
    """The jobs of the background thread; all methods run there.

    Args:
        queues: Whose sealed entries are written.
        checkpoints: Where checkpoints go.
        writer: For syncing what a checkpoint rests on.
        space: Kept ready.
        scrubber: Verifies what is old.
        scrub_bytes: How much of it a second.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        checkpoints: CheckpointStore,
        writer: FrameWriter,
        space: Space,
        scrubber: Scrubber,
        scrub_bytes: int,
    ) -> None:
        self._queues = queues
        self._checkpoints = checkpoints
        self._writer = writer
        self._space = space
        self._scrubber = scrubber
        self._scrub_bytes = scrub_bytes
        self._unsealed: list[SealedEntries] = []
        # What could not be removed: segments, and what is derived from them.
        self._going: list[tuple[list[Path], list[Path]]] = []
        self._changes = Changes()

    def tick(self) -> None:
        """Once a second: try again what failed, verify a little of what is old."""
        self._space.keep()
        self._seal_all()
        if self._scrub_bytes:
            self._scrubber.step(self._scrub_bytes)

    def seal(self, sealed: SealedEntries) -> None:
        """Write the index of a segment."""
        self._unsealed.append(sealed)
        self._seal_all()

    def _seal_all(self) -> bool:
        while self._unsealed:
            sealed = self._unsealed[0]
            try:
                self._queues.write_sealed(sealed)
            except OSError as error:
                number = sealed.segment.number
                _log.warning("index_not_written segment=%d error=%s", number, error)
                return False
            self._unsealed.pop(0)
        return True

    def checkpoint(self, changes: Changes) -> None:
        """Save a checkpoint; its frames are durable."""
        self._changes.add(changes)
        mark = self._changes.mark
        if mark is None or not self._seal_all():
            return
        try:
            # With interval and os the log may be behind: a checkpoint must never be ahead.
            self._writer.sync()
            durable_lsn = self._writer.synced_lsn
            entries = chain.from_iterable(self._changes.entries)
            mark = mark._replace(durable_lsn=durable_lsn)
            self._checkpoints.save(mark, self._changes.rows, entries)
        except OSError as error:
            _log.warning("checkpoint_not_saved lsn=%d error=%s", mark.lsn, error)
            return
        self._changes = Changes()

    def remove(self, segments: list[Path], derived: list[Path]) -> None:
        """Give back the files retention no longer needs, oldest first.

        What cannot be removed keeps its index, which a start asks for, and is tried again when
        retention takes more.
        """
        # An index that could not be written would come when nobody removes it any more.
        names = {path.name for path in derived}
        self._unsealed = [each for each in self._unsealed if each.index_name not in names]
        going, self._going = [*self._going, (segments, derived)], []
        for files in going:
            try:
                self._remove(*files)
            except OSError as error:
                _log.warning("segment_not_removed file=%s error=%s", files[0][0].name, error)
                self._going.append(files)

    def _remove(self, segments: list[Path], derived: list[Path]) -> None:
        for path in segments:
            self._space.recycle(path)
        self._space.remove(derived)

    def close(self) -> None:
        """The last job: remember that everything is on the disk."""
        try:
            if self._writer.failure is None:
                self._writer.sync()
                self._checkpoints.note_durable(self._writer.synced_lsn)
        except OSError as error:
            _log.warning("clean_stop_not_noted error=%s", error)
        self._checkpoints.close()
        self._space.close()
