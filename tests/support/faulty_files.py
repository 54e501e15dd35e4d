"""A disk in memory that forgets what was not synced, tears writes, fills up and fails.

Every write is pending until its file is synced, every change of a name until its directory is. A
power cut keeps what was synced and, of what was pending, what a random generator says: for each
write all, nothing, or any of its sectors (those of the file: a small write may lie in two, and
tear), perhaps after a first few that were written back in their
order; of the names of a directory any first few changes. A kill takes nothing, and makes nothing
safe either: what was pending still is, for the next process and for a power cut after it.

    disk = FaultyFiles()
    …                                   the code under test runs on it
    after = disk.power_cut(random)      the disk as the next start finds it
    after = disk.killed()               … if only the process ended

Faults: `fail_sync_after`, `fail_write_after` (EIO, once and for ever after), `bytes_max`
(ENOSPC), `unreadable` (EIO on reads of a range). `on_operation` is called before every
operation that changes the disk; it may raise `Crash` to stop the world right there.
"""

import errno
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random

from cosmodrome_server.errors import StoreLocked
from cosmodrome_server.store.files import File

SECTOR_BYTES = 512
# Writes of one file that wait for a sync, where every frame is synced.
_FEW = 4
# What names stand for from now on, after one change; None for nothing.
_NameChange = dict[Path, "_Inode | None"]


class Crash(BaseException):
    """The process ends here. No `except Exception` may hold it up."""


class _Inode:
    """The bytes of a file: as seen, as synced, and the writes between.

    Both are one object, which the disks after a crash share, until something changes them.
    """

    __slots__ = ("allocated", "data", "pending", "synced")

    def __init__(self, data: bytearray | None = None) -> None:
        self.data = bytearray() if data is None else data
        self.synced = self.data
        self.pending: list[tuple[int, bytes]] = []
        self.allocated = len(self.data)

    def own(self) -> None:
        """What is done to `data` from now on nobody else sees."""
        if self.synced is self.data:
            self.synced, self.data = bytearray(self.data), bytearray(self.data)

    def copy(self) -> "_Inode":
        """The file as the next process finds it when only this one dies."""
        if self.synced is self.data:
            return _Inode(self.data)
        copy = _Inode(bytearray(self.data))
        if self.pending or len(self.synced) < len(self.data):
            copy.synced = bytearray(self.synced)
            copy.pending = list(self.pending)
        return copy

    def write(self, position: int, data: bytes) -> None:
        self.own()
        end = position + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = data
        self.pending.append((position, data))

    def sync(self) -> None:
        for position, data in self.pending:
            _put(self.synced, position, data)
        self.pending.clear()
        # Shorter where a test damaged it.
        del self.synced[len(self.data) :]
        self.synced.extend(bytes(len(self.data) - len(self.synced)))

    def after_cut(self, random: Random, sector_bytes: int) -> "_Inode":
        if self.synced is self.data:
            return _Inode(self.data)
        kept = bytearray(self.synced)
        # What nobody syncs for long the kernel mostly writes back in its order.
        first = random.randint(0, len(self.pending)) if len(self.pending) > _FEW else 0
        for position, data in self.pending[:first]:
            _put(kept, position, data)
        for position, data in self.pending[first:]:
            fate = random.randrange(3)
            if fate == 0:
                _put(kept, position, data)
            elif fate == 1:
                for start, sector in _sectors(position, data, sector_bytes):
                    if random.random() < 0.5:
                        _put(kept, start, sector)
        return _Inode(kept)


def _sectors(position: int, data: bytes, sector_bytes: int) -> Iterator[tuple[int, bytes]]:
    """What of a write lies in each sector of its file, and where."""
    start = 0
    while start < len(data):
        end = start + sector_bytes - (position + start) % sector_bytes
        yield position + start, data[start:end]
        start = end


def _put(data: bytearray, position: int, written: bytes) -> None:
    end = position + len(written)
    if end > len(data):
        data.extend(bytes(end - len(data)))
    data[position:end] = written


class FaultyFiles:
    """See the module. Satisfies `store.files.Files`.

    Attributes:
        fail_sync_after: Syncs that still succeed; None for all.
        fail_write_after: Writes that still succeed; None for all.
        bytes_max: How much the disk holds; None for no bound.
        unreadable: (name suffix, start, end): reads of this range fail.
        on_operation: Called with the name of each changing operation before it is done.
        sector_bytes: What the disk writes whole or not at all.
        syncs: How many were done.
    """

    def __init__(self) -> None:
        self.fail_sync_after: int | None = None
        self.fail_write_after: int | None = None
        self.bytes_max: int | None = None
        self.unreadable: tuple[str, int, int] | None = None
        self.on_operation: Callable[[str], None] = lambda _: None
        self.sector_bytes = SECTOR_BYTES
        self.syncs = 0
        self._names: dict[Path, _Inode] = {}
        self._synced_names: dict[Path, _Inode] = {}
        # Directory → its changes since its last sync, in order.
        self._name_changes: dict[Path, list[_NameChange]] = {}
        self._locked: set[Path] = set()
        # Directories that were listed: the simulation asks a million times.
        self._listed: dict[Path, list[str]] = {}

    # Faults

    def power_cut(self, random: Random) -> "FaultyFiles":
        """The disk that the next start finds."""
        names = dict(self._synced_names)
        for changes in self._name_changes.values():
            for change in changes[: random.randint(0, len(changes))]:
                _apply(change, names)
        disk = FaultyFiles()
        disk.sector_bytes = self.sector_bytes
        disk._names = {
            path: inode.after_cut(random, self.sector_bytes) for path, inode in names.items()
        }
        disk._synced_names = dict(disk._names)
        return disk

    def killed(self) -> "FaultyFiles":
        """The disk after the process died but not the machine: as it is seen, and as unsafe."""
        changes = [change for some in self._name_changes.values() for change in some]
        named = chain(self._names.values(), self._synced_names.values())
        known = chain(named, *(change.values() for change in changes))
        copies = {inode: inode.copy() for inode in known if inode is not None}

        def copied(change: _NameChange) -> _NameChange:
            return {
                path: None if inode is None else copies[inode] for path, inode in change.items()
            }

        disk = FaultyFiles()
        disk.sector_bytes = self.sector_bytes
        disk._names = {path: copies[inode] for path, inode in self._names.items()}
        disk._synced_names = {path: copies[inode] for path, inode in self._synced_names.items()}
        disk._name_changes = {
            directory: [copied(change) for change in changes]
            for directory, changes in self._name_changes.items()
        }
        disk._listed = {directory: list(names) for directory, names in self._listed.items()}
        return disk

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to be damaged at will."""
        inode = self._names[path]
        inode.own()
        return inode.data

    @property
    def used_bytes(self) -> int:
        """How much of the disk is taken."""
        return sum(max(inode.allocated, len(inode.data)) for inode in set(self._names.values()))

    def changes(self, operation: str) -> None:
        """An operation is about to change the disk."""
        self.on_operation(operation)

    def take_space(self, inode: _Inode, end: int) -> None:
        """Let a file grow to `end`, or raise ENOSPC."""
        growth = end - max(inode.allocated, len(inode.data))
        if self.bytes_max is not None and growth > 0 and self.used_bytes + growth > self.bytes_max:
            raise OSError(errno.ENOSPC, "the test's disk is full")
        inode.allocated = max(inode.allocated, end)

    # Files

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "it exists", str(path))
            self.changes("create")
            inode = _Inode()
            self._change_names({path: inode})
            self._list(path)
        elif path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "it does not exist", str(path))
        return _FaultyFile(self, self._names[path], path)

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        if directory not in self._listed:
            start = f"{directory}/"
            names = [str(path)[len(start) :] for path in self._names if str(path).startswith(start)]
            self._listed[directory] = sorted(name for name in names if "/" not in name)
        return list(self._listed[directory])

    def make_directory(self, path: Path) -> None:
        """See `Files`; directories are there by themselves."""

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        self.changes("rename")
        self._unlist(source)
        self._unlist(target)
        if source in self._names:
            self._change_names({source: None, target: self._names[source]})
        self._list(target)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        self.changes("remove")
        self._unlist(path)
        self._change_names({path: None})

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        self.changes("sync directory")
        self._count_sync()
        for change in self._name_changes.pop(path, ()):
            _apply(change, self._synced_names)

    def map(self, path: Path) -> memoryview:
        """See `Files`."""
        return memoryview(bytes(self._names[path].data))

    def lock(self, path: Path) -> Callable[[], None]:
        """See `Files`."""
        if path in self._locked:
            raise StoreLocked(f"another process owns {path.parent}")
        self._locked.add(path)
        return lambda: self._locked.discard(path)

    def _change_names(self, change: _NameChange) -> None:
        _apply(change, self._names)
        directory = next(iter(change)).parent
        self._name_changes.setdefault(directory, []).append(change)

    def _list(self, path: Path) -> None:
        if path.parent in self._listed and path in self._names:
            insort(self._listed[path.parent], path.name)

    def _unlist(self, path: Path) -> None:
        if path.parent in self._listed and path in self._names:
            self._listed[path.parent].remove(path.name)

    def _count_sync(self) -> None:
        if self.fail_sync_after is not None:
            if self.fail_sync_after == 0:
                raise OSError(errno.EIO, "the test's disk does not sync")
            self.fail_sync_after -= 1
        self.syncs += 1

    def check_write(self) -> None:
        """Raise if writes fail now."""
        if self.fail_write_after is not None:
            if self.fail_write_after == 0:
                raise OSError(errno.EIO, "the test's disk does not write")
            self.fail_write_after -= 1

    def check_sync(self) -> None:
        """Raise if syncs fail now."""
        self._count_sync()

    def check_read(self, path: Path, position: int, length: int) -> None:
        """Raise if the range cannot be read."""
        if self.unreadable is not None:
            suffix, start, end = self.unreadable
            if path.name.endswith(suffix) and position < end and position + length > start:
                raise OSError(errno.EIO, "the test's disk has a bad sector")


class _FaultyFile:
    """An open file of a `FaultyFiles`."""

    __slots__ = ("_disk", "_inode", "_path")

    def __init__(self, disk: FaultyFiles, inode: _Inode, path: Path) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path

    def read(self, position: int, length: int) -> bytes:
        """See `File`."""
        data = self._inode.data
        if self._disk.unreadable is not None:
            self._disk.check_read(self._path, position, min(length, len(data) - position))
        return bytes(data[position : position + length])

    def write(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`."""
        data = b"".join(parts)
        self._disk.changes("write")
        self._disk.check_write()
        self._disk.take_space(self._inode, position + len(data))
        self._inode.write(position, data)

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`; a crash may come between the two."""
        self.write(position, parts)
        self.sync()

    def sync(self) -> None:
        """See `File`."""
        self._disk.changes("sync")
        self._disk.check_sync()
        self._inode.sync()

    def allocate(self, position: int, length: int) -> None:
        """See `File`."""
        self._disk.changes("allocate")
        self._disk.take_space(self._inode, position + length)
        self._inode.own()
        missing = position + length - len(self._inode.data)
        self._inode.data.extend(bytes(max(0, missing)))

    def size(self) -> int:
        """See `File`."""
        return len(self._inode.data)

    def close(self) -> None:
        """See `File`."""


def _apply(change: _NameChange, names: dict[Path, _Inode]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
