"""Which segments may go: the oldest ones, whole, by age and by size.

Progress of consumers never keeps a segment (RocketMQ's rule); how far they lag behind is a
metric. A topic that asks for longer keeps the segments with its messages from growing too old,
not from being too many. Three things keep a segment whatever its age and size:

    the active segment        it is being written
    a floor of the core       an open half message or a delayed one not yet copied lies in it
    an entry of a later one   a half message committed there is indexed where it lies
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cosmodrome_server.clock import BelievedTime, Clock
from cosmodrome_server.errors import ReadFailed
from cosmodrome_server.model.log import KeptLonger
from cosmodrome_server.store import key_index, sealed_index
from cosmodrome_server.store.consume_queue import ConsumeQueues, key_of
from cosmodrome_server.store.message_reader import MessageReader
from cosmodrome_server.store.segment import Segment, SegmentHeader, path_of, segment_of

_log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """A sealed segment.

    Attributes:
        number: Its number.
        last_ms: The latest store timestamp in it.
        oldest_number: The number of the oldest segment its entries point into.
        size: Bytes of its file.
    """

    number: int
    last_ms: int
    oldest_number: int
    size: int


class Limits(NamedTuple):
    """What may be kept.

    Attributes:
        before_ms: Messages stored before this time may go.
        bytes_max: More bytes than this may not stay; 0 for no bound.
        floor_number: This segment and those after it must stay.
        young_number: This segment and those after it are not too old.
    """

    before_ms: int
    bytes_max: int
    floor_number: int
    young_number: int = 1 << 63


class KeptQueue(NamedTuple):
    """A queue whose topic keeps its messages for a time of its own.

    Attributes:
        topic_id: Of the topic.
        queue_id: Of the queue.
        before_ms: Messages stored before this time may go.
    """

    topic_id: int
    queue_id: int
    before_ms: int


def first_to_keep(sealed: list[Stored], active: Stored, limits: Limits) -> int:
    """The number of the oldest segment that stays.

    Args:
        sealed: Oldest first.
        active: The segment that takes frames.
        limits: See there.
    """
    kept_bytes = active.size + sum(segment.size for segment in sealed)
    floor = min(limits.floor_number, active.number)
    gone = 0
    for segment in sealed:
        is_old = segment.last_ms < limits.before_ms and segment.number < limits.young_number
        is_too_much = 0 < limits.bytes_max < kept_bytes
        if segment.number >= floor or not (is_old or is_too_much):
            break
        kept_bytes -= segment.size
        gone += 1
    # What stays may point into what would go: segments that point at each other go together.
    needed_from = min(segment.oldest_number for segment in [*sealed[gone:], active])
    while gone and sealed[gone - 1].number >= needed_from:
        gone -= 1
        needed_from = min(needed_from, sealed[gone].oldest_number)
    return [*sealed[gone:], active][0].number


class Retention:
    """Applies `first_to_keep` to a log; on the loop's thread.

    Args:
        clock: Says how old is old.
        reader: Knows the segments; stops reading those that go.
        queues: Knows what points where; forgets those that go.
    """

    def __init__(self, clock: Clock, reader: MessageReader, queues: ConsumeQueues) -> None:
        self._believed = BelievedTime(clock)
        # (frame, the oldest position needed as of it), of the last one on the disk and later ones.
        self._floors: deque[tuple[int, int]] = deque()
        self._reader = reader
        self._queues = queues
        self._sizes: dict[int, int] = {}
        self._is_keeper_said = False

    def floor_on_disk(self, lsn: int, floor_position: int, synced_lsn: int) -> int:
        """The oldest position that is needed even if a power cut takes all that it can take.

        What fired, or was taken back, a moment ago is needed again when that frame is lost.

        Args:
            lsn: The last frame with something in it.
            floor_position: The oldest position needed as of that frame, or by later ones.
            synced_lsn: The last frame that is on the disk.
        """
        floors = self._floors
        if floors and floors[-1][0] == lsn:
            floors.pop()  # Of one frame the last word counts, and an idle log has one for long.
        floors.append((lsn, floor_position))
        while len(floors) > 1 and floors[1][0] <= synced_lsn:
            floors.popleft()
        lsn, floor_position = floors[0]
        return floor_position if lsn <= synced_lsn else 0

    def before_ms(self, now_ms: int, retention_ms: int) -> int:
        """Messages stored before this may go; `retention_ms` 0 for none, whatever their age."""
        return self._believed.of(now_ms) - retention_ms if retention_ms else 0

    def kept(self, now_ms: int, longer: Iterable[KeptLonger]) -> Iterator[KeptQueue]:
        """The queues of topics that keep their messages for longer."""
        for topic in longer:
            before_ms = self.before_ms(now_ms, topic.retention_ms)
            for queue_id in range(topic.queues):
                yield KeptQueue(topic.topic_id, queue_id, before_ms)

    def take(
        self, active: Segment, limits: Limits, kept: Iterable[KeptQueue] = ()
    ) -> list[SegmentHeader]:
        """Forget the segments that may go, and return them, oldest first.

        Args:
            active: The segment that takes frames.
            limits: Of what is kept.
            kept: Asked only if segments are too old.
        """
        sealed = [
            Stored(number, last_ms, segment_of(oldest), self._size(number, limits))
            for number, last_ms, oldest in self._queues.sealed_bounds()
        ]
        oldest = min(self._queues.oldest_foreign_position, active.base)
        last = Stored(active.number, 0, segment_of(oldest), active.capacity)
        first_kept = first_to_keep(sealed, last, limits)
        old = [each for each in sealed if each.last_ms < limits.before_ms]
        young = self._first_young([each for each in old if each.number < first_kept], kept)
        if young is not None:
            first_kept = first_to_keep(sealed, last, limits._replace(young_number=young))
        gone = [header for header in self._reader.segments() if header.number < first_kept]
        for header in gone:
            self._reader.remove(header.number)
            self._sizes.pop(header.number, None)
        if gone:
            self._queues.forget_before(first_kept)
        return gone

    def _first_young(self, going: list[Stored], kept: Iterable[KeptQueue]) -> int | None:
        """The first segment with a message that its topic keeps still."""
        # There may be thousands of topics, and mostly nothing is old.
        queues = list(kept) if going else []
        for segment in going:
            try:
                keeper = self._keeper_of(segment, queues)
            except ReadFailed:
                return segment.number  # Nobody knows now.
            if keeper is not None:
                self._say_keeper(segment.number, keeper)
                return segment.number
        return None

    def _keeper_of(self, segment: Stored, queues: list[KeptQueue]) -> KeptQueue | None:
        for queue in queues:
            # Where no message is young enough no queue's is. Time 0 is that of no message.
            if queue.before_ms <= segment.last_ms:
                key = key_of(queue.topic_id, queue.queue_id)
                if self._queues.sealed_ms(segment.number, key) >= max(1, queue.before_ms):
                    return queue
        return None

    def _say_keeper(self, number: int, queue: KeptQueue) -> None:
        """Once: whoever wonders where the disk's space is must find it."""
        if not self._is_keeper_said:
            self._is_keeper_said = True
            what = "segments_kept_longer first=%d topic_id=%d queue_id=%d"
            _log.info(what, number, queue.topic_id, queue.queue_id)

    def _size(self, number: int, limits: Limits) -> int:
        """Bytes of a sealed segment; asked of the disk once, and only where it matters."""
        if not limits.bytes_max:
            return 0
        if number not in self._sizes:
            try:
                self._sizes[number] = self._reader.file(number).size()
            except OSError as error:
                # Asked again in a while; until then nothing more goes for its sake.
                _log.warning("segment_size_unknown segment=%d error=%s", number, error)
                return 0
        return self._sizes[number]


def paths_of(directory: Path, header: SegmentHeader) -> tuple[list[Path], list[Path]]:
    """The file of a segment, and those derived from it."""
    derived = [
        sealed_index.path_of(directory, header.number),
        key_index.path_of(directory, header.number),
    ]
    return [path_of(directory, header)], derived
