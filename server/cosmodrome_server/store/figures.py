"""What a log says of itself to whoever watches: sizes, space, damage. Read when somebody asks."""

import os
from pathlib import Path

import msgspec

from cosmodrome_server.store.commit_log import CommitLog


class StoreFigures(msgspec.Struct, frozen=True):
    """Figures of one moment.

    Attributes:
        log_bytes: Of all files of the shard on disk.
        staged_bytes: Staged and not on disk yet.
        free_bytes: Left on the file system for this process.
        is_full: Messages are refused for lack of space.
        corrupt_frames: Found at the last start.
        oldest_ms: When the oldest segment that is kept was begun; 0 for no segments.
    """

    log_bytes: int = 0
    staged_bytes: int = 0
    free_bytes: int = 0
    is_full: bool = False
    corrupt_frames: int = 0
    oldest_ms: int = 0


def figures_of(log: CommitLog, data: Path) -> StoreFigures:
    """Measure a log in its data directory."""
    space = os.statvfs(data)
    return StoreFigures(
        log_bytes=_disk_bytes(data),
        staged_bytes=log.staged_bytes,
        free_bytes=space.f_bavail * space.f_frsize,
        is_full=log.is_full,
        corrupt_frames=len(log.damages),
        oldest_ms=log.segments()[0].created_ms,
    )


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
