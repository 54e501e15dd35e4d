"""Where a pull consumer keeps how far it is: in memory, in a file, or with the broker.

    store = FileOffsetStore(Path("progress.json"))
    async with PullConsumer("127.0.0.1:8081", group="audit", offset_store=store) as consumer: …

A store is any object with the methods of `OffsetStore`. Offsets are the next ones to read.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cosmodrome.errors import ClientError

Place = tuple[str, int]  # topic, queue id


class OffsetStoreError(ClientError):
    """The stored offsets cannot be read or written."""


class OffsetStore(Protocol):
    """Keeps offsets; called on the client's loop."""

    async def load(self, group: str, topic: str, queue_id: int) -> int | None:
        """The stored offset; None for none."""

    async def save(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Keep offsets of several queues."""


class MemoryOffsetStore:
    """Forgets with the process."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str, int], int] = {}

    async def load(self, group: str, topic: str, queue_id: int) -> int | None:
        """See `OffsetStore`."""
        return self._offsets.get((group, topic, queue_id))

    async def save(self, group: str, offsets: Mapping[Place, int]) -> None:
        """See `OffsetStore`."""
        for (topic, queue_id), offset in offsets.items():
            self._offsets[group, topic, queue_id] = offset


class FileOffsetStore:
    """A JSON file, replaced whole: {group: {topic: {queue: offset}}}; for one process at a time.

    The file before the last change stays beside it with `.bak` and is read when it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._content: dict[str, dict[str, dict[str, int]]] | None = None

    async def load(self, group: str, topic: str, queue_id: int) -> int | None:
        """See `OffsetStore`."""
        return self._read().get(group, {}).get(topic, {}).get(str(queue_id))

    async def save(self, group: str, offsets: Mapping[Place, int]) -> None:
        """See `OffsetStore`.

        Raises:
            OffsetStoreError: The file cannot be written.
        """
        content = self._read()
        for (topic, queue_id), offset in offsets.items():
            content.setdefault(group, {}).setdefault(topic, {})[str(queue_id)] = offset
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            if self._path.exists():
                self._path.replace(self._backup)
            temporary.replace(self._path)
        except OSError as error:
            raise OffsetStoreError(f"cannot write {self._path}: {error.strerror}") from error

    def _read(self) -> dict[str, dict[str, dict[str, int]]]:
        if self._content is None:
            self._content = self._parsed(self._path) or self._parsed(self._backup) or {}
        return self._content

    def _parsed(self, path: Path) -> dict[str, dict[str, dict[str, int]]] | None:
        try:
            content: dict[str, dict[str, dict[str, int]]] = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            if path == self._backup:
                raise OffsetStoreError(f"cannot read {path}: {error}") from error
            return None
        return content
