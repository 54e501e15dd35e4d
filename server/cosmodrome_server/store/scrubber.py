"""Reading sealed segments again, slowly, to find rot while there may still be a backup.

Each step verifies a few frames; a tour of the log begins at most once a week. A damaged
frame is reported once a tour; its messages answer CorruptFrame when they are read, all others
are served as ever.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from cosmodrome_server.clock import Clock
from cosmodrome_server.store import segment
from cosmodrome_server.store.files import Files
from cosmodrome_server.store.scanner import Found, Tail, scan
from cosmodrome_server.store.segment import SegmentHeader

_log = logging.getLogger(__name__)

# Rot is rare: a year's tours find it on 0.03 % of disks.
_TOUR_MS = 7 * 86_400_000


class Scrubber:
    """A tour of the sealed segments, on the background thread.

    Args:
        files: The disk.
        directory: Of the shard.
        clock: Says when a tour is due.
        segments: Gives the segments, oldest first; the last one is being written.

    Attributes:
        damaged_ranges: How many bad ranges the tour under way, or the last one, found.
        bytes_verified: In all tours.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        clock: Clock,
        segments: Callable[[], list[SegmentHeader]],
    ) -> None:
        self._clock = clock
        self._next_tour_ms = clock.monotonic_ms()
        self._files = files
        self._directory = directory
        self._segments = segments
        self._tour: Iterator[int] = iter(())
        self.damaged_ranges = 0
        self.bytes_verified = 0

    def step(self, bytes_max: int) -> None:
        """Verify about so many bytes; begin a new tour when one is due and none under way."""
        verified = 0
        while verified < bytes_max:
            found = next(self._tour, None)
            if found is None:
                if self._clock.monotonic_ms() < self._next_tour_ms:
                    break
                self._next_tour_ms = self._clock.monotonic_ms() + _TOUR_MS
                self._tour = self._go()
                continue
            verified += found
        self.bytes_verified += verified

    def _go(self) -> Iterator[int]:
        self.damaged_ranges = 0
        for header, following in pairwise(self._segments()):
            # What its name alone is known of says nothing about frames.
            is_next = following.number == header.number + 1
            ends_lsn = following.first_lsn - 1 if is_next else 0
            try:
                yield from self._verify(header, ends_lsn)
            except OSError as error:
                _log.warning("scrub_passed_over segment=%d error=%s", header.number, error)

    def _verify(self, header: SegmentHeader, ends_lsn: int) -> Iterator[int]:
        """Bytes of each good frame of a segment, whose last is `ends_lsn`; raises OSError."""
        path = segment.path_of(self._directory, header)
        if not self._is_there(path):
            return  # Retention was faster.
        file = self._files.open(path)
        lsn = 0
        try:
            for item in scan(file, header):
                if isinstance(item, Found):
                    lsn = item.header.lsn
                    yield item.end - item.start
                # A tail is where it ends, if nothing is missing.
                elif not (isinstance(item, Tail) and lsn >= ends_lsn) and self._is_there(path):
                    self.damaged_ranges += 1
                    end = file.size() if isinstance(item, Tail) else item.end
                    _log.error(
                        "scrub_found_corruption segment=%d bytes=[%d,%d) reason=%s",
                        header.number,
                        item.start,
                        end,
                        item.reason,
                    )
        finally:
            file.close()

    def _is_there(self, path: Path) -> bool:
        """Whether a segment has its name still: recycled, its file is another one's."""
        return path.name in self._files.names(self._directory)
