"""A real disk on which only what was synced outlives the process: a kill is a power cut.

    write           kept in memory; some of it, whole or torn, reaches the file early
    sync            all of it does
    create, rename, done, and noted in a journal beside the data until the directory is
    remove          synced; `cut_power` undoes what the journal still has

So `kill -9` and `cut_power` leave what a machine leaves that lost its power, in the worst
case and in some in between. Satisfies `store.files.Files`, of a process of its own.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import RLock
from typing import Any

from cosmodrome_server.store.files import File, OsFile, OsFiles

_Write = tuple[int, bytes]


class UnsyncedFile(OsFile):
    """An open file; handles of one file share what is not synced."""

    def __init__(self, descriptor: int, pending: list[_Write], random: Random) -> None:
        super().__init__(descriptor)
        self._pending = pending
        self._random = random

    def read(self, position: int, length: int) -> bytes:
        """See `File`: the process sees what it wrote."""
        pending = list(self._pending)
        end = min(position + length, self.size())
        data = bytearray(super().read(position, length))
        data.extend(bytes(max(0, end - position - len(data))))
        for start, written in pending:
            first, last = max(start, position), min(start + len(written), end)
            if first < last:
                data[first - position : last - position] = written[first - start : last - start]
        return bytes(data)

    def write(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`."""
        data = b"".join(parts)
        self._pending.append((position, data))
        reached = self._random.choice((0, 0, self._random.randint(0, len(data)), len(data)))
        super().write(position, [data[:reached]])

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`: this is on the disk, and nothing that was written before it."""
        data = b"".join(parts)
        if self._pending:
            self._pending.append((position, data))
        super().write(position, [data])
        super().sync()

    def sync(self) -> None:
        """See `File`."""
        for position, data in self._pending:
            super().write(position, [data])
        self._pending.clear()
        super().sync()

    def size(self) -> int:
        """See `File`."""
        written = (start + len(data) for start, data in list(self._pending))
        return max(super().size(), max(written, default=0))


class UnsyncedFiles(OsFiles):
    """See the module; all instances of a process are one disk."""

    _lock = RLock()
    _pending: dict[int, list[_Write]] = {}  # noqa: RUF012 - by inode, of the process
    _names = 0

    def __init__(self) -> None:
        self._random = Random(os.getpid())

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        if create:
            self._note(path, "create")
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = os.open(path, flags, 0o640)
        number = os.fstat(descriptor).st_ino
        with self._lock:
            if create:
                self._pending[number] = []
            pending = self._pending.setdefault(number, [])
        return UnsyncedFile(descriptor, pending, self._random)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        self._note(target, "rename", source=str(source))
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        self._note(path, "remove")
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        with self._lock:
            journal = journal_of(path)
            entries = entries_of(journal)
            _rewrite(journal, [entry for entry in entries if not _is_in(entry, path)])
            for entry in entries:
                if entry["kept"] and _is_in(entry, path):
                    Path(entry["kept"]).unlink(missing_ok=True)
        super().sync_directory(path)

    def _note(self, path: Path, operation: str, **more: str) -> None:
        with self._lock:
            journal = journal_of(path.parent)
            kept = ""
            if operation != "create" and path.exists():
                UnsyncedFiles._names += 1
                kept = str(journal.with_name(f"{journal.name}-{os.getpid()}-{self._names}"))
                os.link(path, kept)
            entry = {"operation": operation, "path": str(path), "kept": kept, **more}
            with journal.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def journal_of(directory: Path) -> Path:
    """Where the unsynced names of a directory are noted: beside the data it belongs to."""
    data = [each for each in (directory, *directory.parents) if each.name == "data"]
    return (data[0] if data else directory / "data").with_name("names")


def entries_of(journal: Path) -> list[dict[str, Any]]:
    """What is not synced, oldest first."""
    return list(map(json.loads, journal.read_text().splitlines())) if journal.exists() else []


def _is_in(entry: dict[str, Any], directory: Path) -> bool:
    return Path(entry["path"]).parent == directory


def _rewrite(journal: Path, entries: list[dict[str, Any]]) -> None:
    temporary = journal.with_name("names.new")
    temporary.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    temporary.rename(journal)


def cut_power(data: Path, random: Random) -> int:
    """After the process was killed: take back names that were not synced, newest first.

    Returns:
        How many.
    """
    journal = journal_of(data)
    entries = entries_of(journal)
    undone = entries[random.randint(0, len(entries)) :] if random.random() < 0.5 else entries
    for entry in reversed(undone):
        _undo(entry)
    _rewrite(journal, [])
    return len(undone)


def _undo(entry: dict[str, Any]) -> None:
    path, undo = Path(entry["path"]), _UNDO[entry["operation"]]
    undo(path, entry)
    if entry["kept"]:
        Path(entry["kept"]).rename(path)


def _undo_rename(path: Path, entry: dict[str, Any]) -> None:
    if path.exists() and not Path(entry["source"]).exists():
        path.rename(entry["source"])


_UNDO: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "create": lambda path, _: path.unlink(missing_ok=True),
    "rename": _undo_rename,
    "remove": lambda *_: None,
}
