"""One group's progress on one topic: awake where something goes on, else an offset.

    queue id    0     1     2     3
    awake             ●                 a `Progress` each
    resting     17          0     9_001 a number each (`core.resting`)

Whether a queue is awake is never to be seen from outside: rows say the same of both.
"""

from collections.abc import Iterator
from operator import attrgetter

from cosmodrome_server.core import progress_row
from cosmodrome_server.core.machine import Row
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.resting import RestingQueues

Pair = tuple[int, int]

_ready = attrgetter("ready")


class Consumption:
    """One group's progress on one topic.

    Attributes:
        pair: (group id, topic id).
        awake: Queue id → progress, of the queues where it is not at rest.
        turn: The queue the next receive begins with.
        is_ready_first: Whether the odd place of the next batch is for a redelivery.
        inflight: Messages under leases.
        pops: How often messages were handed out.
        queues: On how many queues the group has begun.
    """

    __slots__ = (
        "_resting",
        "awake",
        "inflight",
        "is_ready_first",
        "pair",
        "pops",
        "queues",
        "turn",
    )

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.awake: dict[int, Progress] = {}
        self._resting = RestingQueues()
        self.turn = 0
        self.is_ready_first = False
        self.inflight = 0
        self.pops = 0
        self.queues = 0

    def __contains__(self, queue_id: int) -> bool:
        """Whether the group has begun on a queue."""
        return queue_id in self.awake or self._resting.get(queue_id) is not None

    def begin(self, progress: Progress) -> None:
        """The group begins on a queue, or a start takes that back; it is awake there."""
        self.awake[progress.place[2]] = progress
        self.queues += 1

    @property
    def is_waited_on(self) -> bool:
        """Whether any message is ready to be delivered again."""
        return any(map(_ready, self.awake.values()))

    def find(self, queue_id: int) -> Progress | None:
        """The progress on a queue, to be read; None if the group has not begun there."""
        progress = self.awake.get(queue_id)
        if progress is None:
            queue_offset = self._resting.get(queue_id)
            if queue_offset is not None:
                return Progress((*self.pair, queue_id), queue_offset)
        return progress

    def at(self, queue_id: int) -> Progress:
        """`find` of a queue where the group is known to have begun."""
        progress = self.find(queue_id)
        assert progress is not None, f"it has not begun on queue {queue_id}"
        return progress

    def cursor(self, queue_id: int) -> int:
        """`at(queue_id).cursor`, of a queue that is not awake."""
        queue_offset = self._resting.get(queue_id)
        assert queue_offset is not None, f"it has not begun on queue {queue_id}"
        return queue_offset

    def wake(self, queue_id: int) -> Progress | None:
        """The progress on a queue that is not awake, to be changed; None if there is none."""
        queue_offset = self._resting.take(queue_id)
        if queue_offset is None:
            return None
        progress = self.awake[queue_id] = Progress((*self.pair, queue_id), queue_offset)
        return progress

    def rest(self, queue_id: int) -> None:
        """Keep nothing but the offset of a progress that is at rest."""
        self._resting.lay(queue_id, self.awake.pop(queue_id).cursor, is_saved=False)
        if not self.awake:
            # A dict never shrinks by itself.
            self.awake = {}

    def restore(self, queue_id: int, queue_offset: int) -> None:
        """Take back a progress at rest, at start."""
        self._resting.lay(queue_id, queue_offset, is_saved=True)
        self.queues += 1

    def reached(self) -> Iterator[tuple[int, int]]:
        """(queue id, the first offset of which nothing is known) of all progress."""
        for queue_id, progress in self.awake.items():
            yield queue_id, progress.reached
        yield from self._resting

    def rows(self) -> Iterator[Row]:
        """All progress."""
        for progress in self.awake.values():
            yield progress_row.encode_key(progress.place), progress_row.value_of(progress)
        yield from progress_row.resting_rows(self.pair, self._resting)

    def dirty_rows(self) -> Iterator[Row]:
        """What was laid down before its row was taken."""
        yield from progress_row.resting_rows(self.pair, self._resting.save())

    def keys(self) -> Iterator[bytes]:
        """The keys of all progress."""
        for queue_id in (*self.awake, *(queue_id for queue_id, _ in self._resting)):
            yield progress_row.encode_key((*self.pair, queue_id))
