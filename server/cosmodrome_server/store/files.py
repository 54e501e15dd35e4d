"""The only door to the file system: `Files` opens, names and locks; `File` reads and writes.

Tests put a disk behind it that forgets what was not synced, tears writes and fails
(tests/support/faulty_files.py). Nothing here decides what an error means: `OSError` passes.

Files are read with pread, never through a map, so that a bad sector is an error of one
read and not the end of the process. Derived files (indexes) may be mapped.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from cosmodrome_server.errors import StoreLocked

# Linux takes at most 1024 buffers in one pwritev.
_PARTS_MAX = 1_000
# Write and sync in one; 0 where the system has no such thing.
_DSYNC: int = getattr(os, "RWF_DSYNC", 0)
# What a system call says that the kernel, a sandbox or the file system does not know.
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
_ZERO_BYTES = 1 << 20


class File(Protocol):
    """An open file. Every method may raise OSError."""

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`; fewer only at the end of the file."""

    def write(self, position: int, parts: Sequence[bytes]) -> None:
        """Write all parts, one after the other, at `position`."""

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """Write all parts and return when they, and the size, are on the disk."""

    def sync(self) -> None:
        """Return when what was written, and the size, is on the disk."""

    def allocate(self, position: int, length: int) -> None:
        """Reserve disk space for a range (ENOSPC comes here, not in `write`)."""

    def size(self) -> int:
        """Bytes from the beginning to the end."""

    def close(self) -> None:
        """Give the file back; what was not synced may be lost."""


class Files(Protocol):
    """A directory tree. Every method may raise OSError."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open for reading and writing; `create` makes the file, which must not exist."""

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, sorted; none if it does not exist."""

    def make_directory(self, path: Path) -> None:
        """Make it and its parents, durably; it may exist."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it; durable after `sync_directory`."""

    def remove(self, path: Path) -> None:
        """Remove a file; durable after `sync_directory`."""

    def sync_directory(self, path: Path) -> None:
        """Return when the names in a directory are on the disk."""

    def map(self, path: Path) -> memoryview:
        """A whole file, read-only, paged in as it is touched."""

    def lock(self, path: Path) -> Callable[[], None]:
        """Own a lock file until the returned function is called, or the process ends.

        Raises:
            StoreLocked: Another process owns it.
        """


class OsFile:
    """A file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._has_dsync = bool(_DSYNC)

    def read(self, position: int, length: int) -> bytes:
        """See `File`."""
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        rest = self.read(position + len(data), length - len(data))
        return data + rest

    def write(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`."""
        for start in range(0, len(parts), _PARTS_MAX):
            some = parts[start : start + _PARTS_MAX]
            length = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            if written < length:
                rest = memoryview(b"".join(some))[written:]
                self._write_rest(position + written, rest)
            position += length

    def _write_rest(self, position: int, rest: memoryview) -> None:
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "a write wrote nothing")
            position += written
            rest = rest[written:]

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`; one system call where the system has it.

        The thread gives up the interpreter once instead of twice, and on a busy broker it
        waits for its return each time: up to sys.getswitchinterval().
        """
        if self._has_dsync and len(parts) <= _PARTS_MAX:
            length = sum(map(len, parts))
            try:
                if os.pwritev(self._descriptor, parts, position, _DSYNC) == length:
                    return
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                # An old kernel, or a sandbox: nothing was tried, nothing failed.
                self._has_dsync = False
        # Short, or more parts than one call takes: once more from the beginning.
        self.write(position, parts)
        self.sync()

    def sync(self) -> None:
        """See `File`; fdatasync also writes a changed size."""
        os.fdatasync(self._descriptor)

    def allocate(self, position: int, length: int) -> None:
        """See `File`."""
        try:
            os.posix_fallocate(self._descriptor, position, length)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            # Not every C library does this where the file system cannot reserve.
            end = position + length
            for start in range(max(position, self.size()), end, _ZERO_BYTES):
                self.write(start, [bytes(min(_ZERO_BYTES, end - start))])

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """See `File`."""
        os.close(self._descriptor)


class OsFiles:
    """The file system of this machine."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return OsFile(os.open(path, flags, 0o640))

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def map(self, path: Path) -> memoryview:
        """See `Files`."""
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def lock(self, path: Path) -> Callable[[], None]:
        """See `Files`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StoreLocked(
                f"another process owns {path.parent}: stop it, or choose another server.data"
            ) from error
        return lambda: os.close(descriptor)


def write_whole(files: Files, path: Path, parts: Sequence[bytes]) -> None:
    """Put a whole file under a name: all of it or, after a crash, what was there before.

    Raises:
        OSError: The name holds what it held before.
    """
    temporary = path.with_name(path.name + ".new")
    if temporary.name in files.names(path.parent):
        files.remove(temporary)
    file = files.open(temporary, create=True)
    try:
        try:
            file.write(0, parts)
            file.sync()
        finally:
            file.close()
    except OSError:
        # Of a full disk it may have taken the last space.
        files.remove(temporary)
        raise
    files.rename(temporary, path)
    files.sync_directory(path.parent)
