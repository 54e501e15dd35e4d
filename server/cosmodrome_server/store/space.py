"""Disk space, taken before it is needed: the next segment, and a reserve for the end.

    active segment ▓▓▓▓▓▓▓▓▓▓▓▓░░░░   space of all of it is reserved
    spare          ░░░░░░░░░░░░░░░░   becomes the next segment; made in the background, or a
                                      segment that retention took, recycled
    reserve        ░░                 given back to the file system when the disk is full, so
                                      that acknowledgements still find room

So a full disk shows before a frame begins and never inside one: new messages are refused
(StoreFull) while receive and ack go on. The background thread keeps asking for space, and
sends are taken again, without a restart, when there is some.

Zeros are written into a spare, because the first sync of a block that was only reserved must
also write the file system's journal: a third more commits a second.
"""

import errno
import logging
from pathlib import Path

import msgspec

from cosmodrome_server.store.files import File, Files
from cosmodrome_server.store.segment import OFFSET_MASK, Segment

_log = logging.getLogger(__name__)

RESERVE_NAME = "reserve"
_SPARE_PREFIX = "spare-"
# A new log begins small: its zeros are written and synced before it is ready.
FIRST_SEGMENT_BYTES = 1 << 20
# On a disk that is nearly full segments are not made smaller than this.
_SMALLEST_BYTES = 4 << 20
_ZERO_BYTES = 1 << 20
# How much a segment that must hold more than planned grows at once: a part of a segment.
_GROWTH_PARTS = 16


class Spare(msgspec.Struct):
    """A file that waits to become a segment.

    Attributes:
        path: Its name until then.
        file: Open.
        capacity: Bytes reserved.
    """

    path: Path
    file: File
    capacity: int


class Space:
    """What the shard may still write.

    Args:
        files: The disk.
        directory: Of the shard.
        segment_bytes: How large a segment should be.
        reserve_bytes: How much is kept for state records.
    """

    def __init__(
        self, files: Files, directory: Path, segment_bytes: int, reserve_bytes: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._spare: Spare | None = None
        # The state did not fit into it the last time.
        self._is_spare_small = False
        # Each spare has a name of its own: the one that was taken keeps its name until its
        # first frame is written, while the next one is made already.
        self._leftovers = [name for name in files.names(directory) if _is_spare(name)]
        self._named = max((int(name[len(_SPARE_PREFIX) :]) for name in self._leftovers), default=0)
        self._has_reserve = RESERVE_NAME in files.names(directory)
        # What is there may be of another setting, or half made by a process that was killed.
        self._is_reserve_whole = False
        self.is_full = False

    def take_spare(self) -> Spare | None:
        """The next segment's file; it is the caller's now. None if there is none of use."""
        if self._is_spare_small:
            return None
        spare, self._spare = self._spare, None
        return spare

    def enlarge(self, spare: Spare, end: int) -> bool:
        """Have space up to byte `end` in a spare that was taken.

        False if the disk is full: then it is given back, and asked for again in a while.
        """
        try:
            if end > spare.capacity:
                spare.file.allocate(spare.capacity, end - spare.capacity)
                spare.capacity = end
        except OSError as error:
            _log.warning("no_space_for_state bytes=%d error=%s", end, error)
            self.is_full = self._is_spare_small = True
            if self._spare is None:
                self._spare = spare
            else:
                # Retention left another one meanwhile.
                spare.file.close()
                self._files.remove(spare.path)
            return False
        return True

    def first(self) -> Spare:
        """The file of the very first segment.

        Raises:
            OSError: No space even for that.
        """
        capacity = min(FIRST_SEGMENT_BYTES, self._segment_bytes)
        return self._make(capacity)

    def keep(self) -> None:
        """Once a second, on the background thread: ask again for what was not there."""
        if self.is_full:
            self.prepare()
        elif not self._is_reserve_whole:
            self._make_reserve()

    def prepare(self) -> None:
        """Have a spare and the reserve, if there is space; on the background thread."""
        self._is_spare_small = False
        if self._spare is None:
            spare = self._find()
            # Before the loop may take it: then there is none, and yet space.
            self.is_full = spare is None
            self._spare = spare
        else:
            self.is_full = False
        if not self._is_reserve_whole and not self.is_full:
            self._make_reserve()

    def recycle(self, path: Path) -> None:
        """Make a segment that is no longer needed the spare, or remove it; it may be gone.

        Raises:
            OSError: The file is there still.
        """
        if path.name not in self._files.names(self._directory):
            return
        if self._spare is not None:
            self._files.remove(path)
            return
        target = self._next_path()
        self._files.rename(path, target)
        # Before anything is written into it: a name that a power cut brings back must name
        # what it did.
        self._files.sync_directory(self._directory)
        file = self._files.open(target)
        capacity = file.size()
        if capacity < self._segment_bytes // 2 or capacity > 2 * self._segment_bytes:
            file.close()
            self._files.remove(target)
            return
        self._spare = Spare(target, file, capacity)

    def remove(self, paths: list[Path]) -> None:
        """Remove files that may be there; raises OSError."""
        names = set(self._files.names(self._directory))
        for path in paths:
            if path.name in names:
                self._files.remove(path)

    def extend(self, segment: Segment, end: int, *, may_use_reserve: bool) -> bool:
        """Reserve the disk space of a segment up to byte `end`; False if the disk is full."""
        if end > OFFSET_MASK:
            return False  # A position could not name what lies there.
        wanted = end + self._segment_bytes // _GROWTH_PARTS
        for _ in range(2):
            try:
                if wanted > segment.capacity:
                    segment.file.allocate(segment.capacity, wanted - segment.capacity)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                wanted = end
                self.is_full = True
                if not (may_use_reserve and self._release_reserve()):
                    return False
            else:
                segment.capacity = wanted
                if not self.is_full:
                    segment.message_capacity = wanted
                return True
        return False

    def close(self) -> None:
        """Close the spare; it stays for the next start."""
        if self._spare is not None:
            self._spare.file.close()

    def _find(self) -> Spare | None:
        """A spare left by an earlier run, or a new one as large as the disk allows."""
        while self._leftovers:
            path = self._directory / self._leftovers.pop()
            try:
                file = self._files.open(path)
                capacity = file.size()
                if self._segment_bytes // 2 <= capacity <= 2 * self._segment_bytes:
                    return Spare(path, file, capacity)
                file.close()
                self._files.remove(path)
            except OSError as error:
                _log.warning("spare_unusable file=%s error=%s", path.name, error)
        capacity = self._segment_bytes
        while True:
            try:
                return self._make(capacity)
            except OSError as error:
                smaller = capacity // 2
                if smaller < min(_SMALLEST_BYTES, self._segment_bytes):
                    _log.warning("no_space_for_segment bytes=%d error=%s", capacity, error)
                    return None
                capacity = smaller

    def _make(self, capacity: int) -> Spare:
        path = self._next_path()
        file = self._files.open(path, create=True)
        try:
            file.allocate(0, capacity)
            zeros = bytes(min(_ZERO_BYTES, capacity))
            for start in range(0, capacity, len(zeros)):
                file.write(start, [zeros[: capacity - start]])
                # Small syncs, so that a commit never waits behind a large one.
                file.sync()
        except OSError:
            file.close()
            self._files.remove(path)
            raise
        return Spare(path, file, capacity)

    def _next_path(self) -> Path:
        self._named += 1
        return self._directory / f"{_SPARE_PREFIX}{self._named}"

    def _make_reserve(self) -> None:
        """Have the space that the settings ask for; what there is of it stays if there is none."""
        path = self._directory / RESERVE_NAME
        try:
            wanted = self._reserve_bytes
            if self._has_reserve and (not wanted or self._size_of(path) > wanted):
                self._has_reserve = False
                self._files.remove(path)
            if wanted:
                self._allocate_reserve(path)
        except OSError as error:
            _log.warning("reserve_missing bytes=%d error=%s", self._reserve_bytes, error)
        else:
            self._is_reserve_whole = True

    def _allocate_reserve(self, path: Path) -> None:
        file = self._files.open(path, create=not self._has_reserve)
        try:
            file.allocate(0, self._reserve_bytes)
        except OSError:
            if not self._has_reserve:
                self._files.remove(path)
            raise
        finally:
            file.close()
        self._has_reserve = True

    def _size_of(self, path: Path) -> int:
        file = self._files.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _release_reserve(self) -> bool:
        if not self._has_reserve:
            return False
        self._has_reserve = self._is_reserve_whole = False
        self._files.remove(self._directory / RESERVE_NAME)
        _log.warning("reserve_used bytes=%d; the disk is full", self._reserve_bytes)
        return True


def _is_spare(name: str) -> bool:
    return name.startswith(_SPARE_PREFIX) and name[len(_SPARE_PREFIX) :].isdecimal()
