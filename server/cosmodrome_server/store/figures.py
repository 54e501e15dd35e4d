"""What a log says of itself to whoever watches: sizes, space, damage. Read when somebody asks."""

import os
from bisect import bisect_right
from operator import itemgetter
from pathlib import Path

import msgspec

from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.segment import path_of


class StoreFigures(msgspec.Struct, frozen=True):
    """Figures of one moment.

    Attributes:
        log_bytes: Of all files of the shard on disk.
        staged_bytes: Staged and not on disk yet.
        free_bytes: Left on the file system for this process.
        is_full: Messages are refused for lack of space.
        corrupt_frames: Found at the last start.
        segments: When each segment that is kept was begun, and its bytes; oldest first.
    """

    log_bytes: int = 0
    staged_bytes: int = 0
    free_bytes: int = 0
    is_full: bool = False
    corrupt_frames: int = 0
    segments: tuple[tuple[int, int], ...] = ()

    @property
    def oldest_ms(self) -> int:
        """When the oldest segment that is kept was begun; 0 for no segments."""
        return self.segments[0][0] if self.segments else 0

    def bytes_since(self, stored_ms: int) -> int:
        """Bytes of the segments from the one on that took messages at a time."""
        later = bisect_right(self.segments, stored_ms, key=itemgetter(0))
        return sum(size for _, size in self.segments[max(0, later - 1) :])


def figures_of(log: CommitLog, data: Path) -> StoreFigures:
    """Measure a log in its data directory."""
    space = os.statvfs(data)
    return StoreFigures(
        log_bytes=_disk_bytes(data),
        staged_bytes=log.staged_bytes,
        free_bytes=space.f_bavail * space.f_frsize,
        is_full=log.is_full,
        corrupt_frames=len(log.damages),
        segments=tuple(
            (header.created_ms, _bytes_of(path_of(log.ranges.directory, header)))
            for header in log.segments()
        ),
    )


def _bytes_of(path: Path) -> int:
    """Of a segment's file; 0 for one that has no name yet, or that retention took just now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _disk_bytes(folder: Path) -> int:
    """Bytes the files below a folder take; one that goes away meanwhile takes none."""
    total = 0
    for entry in folder.rglob("*"):
        try:
            if entry.is_file():
                total += entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
