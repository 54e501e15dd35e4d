"""Where a group begins on a queue, and how far behind it is.

Source: protocol.md 12.1. AUTO is the reference's rule in our terms: from the beginning
while nothing was deleted and the first message is young, else from the newest message.
"In memory" is the reference's measure of young; ours is an age, so that it does not
depend on the machine.
"""

from collections.abc import Iterable

from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.errors import IllegalOffset
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.log import QueueReader
from cosmodrome_server.model.queries import Accumulation

YOUNG_MS = 72 * 3_600_000

Queue = tuple[int, int]


def start_offset(group: Group, queue: Queue, visible: int, reader: QueueReader, now_ms: int) -> int:
    """The offset a group begins at on a queue = (topic id, queue id) it has never read."""
    first = min(reader.min_offset(*queue), visible)
    match group.consume_from:
        case ConsumeFrom.FIRST:
            return first
        case ConsumeFrom.LAST:
            return visible
        case ConsumeFrom.TIMESTAMP:
            return min(reader.offset_at(*queue, group.consume_timestamp_ms), visible)
        case ConsumeFrom.AUTO:
            if visible == 0:
                return 0
            is_young = first == 0 and reader.timestamp(*queue, 0) > now_ms - YOUNG_MS
            return 0 if is_young else max(first, visible - 1)


def check_bounds(queue_offset: int, first: int, end: int) -> None:
    """Refuse an offset outside [first, end].

    Raises:
        IllegalOffset: With the nearest offset inside.
    """
    if queue_offset < first:
        raise IllegalOffset(
            f"offset {queue_offset} is before the first stored, {first}", corrected=first
        )
    if queue_offset > end:
        raise IllegalOffset(f"offset {queue_offset} is beyond the end, {end}", corrected=end)


def accumulation(
    consumption: Consumption | None, topic_id: int, visible: Iterable[int], reader: QueueReader
) -> Accumulation:
    """How far a group is behind; messages a filter will pass over are counted."""
    ready = 0
    oldest_unconsumed = oldest_ready = 0
    for queue_id, end in enumerate(visible):
        progress = None if consumption is None else consumption.find(queue_id)
        first = min(reader.min_offset(topic_id, queue_id), end)
        floor = first if progress is None else max(first, progress.done.floor)
        cursor = first if progress is None else max(first, progress.cursor)
        ready += max(0, end - cursor) + (0 if progress is None else len(progress.ready))
        if floor < end:
            oldest_unconsumed = _older(
                oldest_unconsumed, reader.timestamp(topic_id, queue_id, floor)
            )
        waiting = [cursor] if progress is None else [cursor, *progress.ready]
        next_ready = min(offset for offset in waiting if offset >= first)
        if next_ready < end:
            oldest_ready = _older(oldest_ready, reader.timestamp(topic_id, queue_id, next_ready))
    inflight = 0 if consumption is None else consumption.inflight
    return Accumulation(ready, inflight, oldest_unconsumed, oldest_ready)


def _older(known_ms: int, other_ms: int) -> int:
    return other_ms if known_ms == 0 else min(known_ms, other_ms)
