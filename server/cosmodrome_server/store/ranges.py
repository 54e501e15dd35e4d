"""Where the messages of a range lie, for readers that take them by the thousand.

    queue offsets [start, end) ──▶ positions, tag hashes, times       on the loop
    segment number             ──▶ its bytes, mapped                  on any thread
    pin                        ──▶ retention waits for who reads      on the loop

A reader pins before it leaves the loop with positions: retention would otherwise give the
segment away, and a recycled file holds another segment's bytes. A pin ends by itself.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cosmodrome_server.errors import MessageNotFound, OverloadedError, ReadFailed
from cosmodrome_server.store import segment
from cosmodrome_server.store.consume_queue import ConsumeQueues, key_of
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.message_reader import MessageReader
from cosmodrome_server.store.sealed_index import WORDS

PINS_MAX = 1_024
_UNPINNED = 1 << 63


class Entries(NamedTuple):
    """Consecutive offsets of one queue.

    Attributes:
        start: The first offset.
        words: Position, tag hash and store time of each, as native u64 bytes.
    """

    start: int
    words: bytes


class SealedPart(NamedTuple):
    """The offsets [start, end) of one queue in a segment whose index is in a file."""

    number: int
    salt: int
    start: int
    end: int
    bytes: int


class _Pin(msgspec.Struct, frozen=True):
    position: int
    until_ms: int


class Ranges:
    """The view of one shard's log that bulk readers have."""

    def __init__(
        self, queues: ConsumeQueues, reader: MessageReader, files: Files, directory: Path
    ) -> None:
        self._queues = queues
        self._reader = reader
        self._files = files
        self.directory = directory
        self._pins: dict[int, _Pin] = {}
        self._numbers = itertools.count(1)

    def entries(self, topic_id: int, queue_id: int, start: int, end: int) -> list[Entries]:
        """Where the stored offsets of [start, end) lie, in order, copied."""
        found = []
        for run in self._queues.runs(topic_id, queue_id, start, end):
            words = run.words[run.start : run.start + WORDS * (run.end - run.base)]
            found.append(Entries(run.base, words.tobytes()))
        return found

    def sealed(self, topic_id: int, queue_id: int, start: int, end: int) -> list[SealedPart]:
        """The parts of [start, end) that lie in sealed segments, in order."""
        found = []
        for header, run in self._queues.sealed_runs(topic_id, queue_id):
            low, high = max(start, run.base), min(end, run.end)
            if low < high:
                size = self._path(header.number).stat().st_size
                found.append(SealedPart(header.number, header.salt, low, high, size))
        return found

    @staticmethod
    def key_of(topic_id: int, queue_id: int) -> int:
        """What an index file calls a queue."""
        return key_of(topic_id, queue_id)

    def map(self, number: int) -> memoryview:
        """The bytes of a segment as they are now; call it while a pin holds.

        Raises:
            MessageNotFound: The segment is gone.
            ReadFailed: The disk refuses it now.
        """
        try:
            return self._files.map(self._path(number))
        except FileNotFoundError as error:
            raise MessageNotFound(f"segment {number} is gone: {error}") from error
        except OSError as error:
            raise ReadFailed(f"segment {number} cannot be read: {error}") from error

    def pin(self, position: int, until_ms: int) -> int:
        """Keep everything from a position on until a time; return the pin's number.

        Raises:
            OverloadedError: There are too many pins.
        """
        if len(self._pins) >= PINS_MAX:
            raise OverloadedError(f"{len(self._pins)} readers hold segments already")
        number = next(self._numbers)
        self._pins[number] = _Pin(position, until_ms)
        return number

    def release(self, number: int) -> None:
        """End a pin; again is fine."""
        self._pins.pop(number, None)

    def pinned_position(self, now_ms: int) -> int:
        """The lowest position that a pin holds; above all positions for none."""
        self._pins = {n: pin for n, pin in self._pins.items() if pin.until_ms > now_ms}
        return min((pin.position for pin in self._pins.values()), default=_UNPINNED)

    def _path(self, number: int) -> Path:
        headers: Sequence[segment.SegmentHeader] = self._reader.segments()
        for header in reversed(headers):
            if header.number == number:
                return segment.path_of(self.directory, header)
        raise MessageNotFound(f"segment {number} is not stored: retention took it")
