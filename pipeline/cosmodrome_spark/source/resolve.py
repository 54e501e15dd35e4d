"""From what a user asked for to queues and offsets of this moment.

Asks a `Cluster`, decides in plain functions; no Spark here.
"""

import re
from collections.abc import Iterable

from cosmodrome_spark.errors import DataLoss, InvalidOption, TopicNotFound
from cosmodrome_spark.offsets import (
    EARLIEST,
    LATEST,
    MessageQueue,
    Offsets,
    QueueBounds,
    QueueRange,
)
from cosmodrome_spark.option_values import OffsetChoice, TopicChoice
from cosmodrome_spark.read.base import Cluster

Bounds = dict[MessageQueue, QueueBounds]


def choose_queues(cluster: Cluster, topics: TopicChoice) -> list[MessageQueue]:
    """The queues to read, sorted. A topic that is not there (yet) gives none.

    Raises:
        UnsupportedByServer: A pattern, and the server cannot list topics.
    """
    if topics.queues:
        wanted = set(topics.queues)
        there: set[MessageQueue] = set()
        for topic in sorted({queue.topic for queue in wanted}):
            there.update(_queues_or_none(cluster, topic))
        return sorted(wanted & there)
    names: Iterable[str] = topics.topics
    if topics.pattern:
        names = [name for name in cluster.topics() if re.fullmatch(topics.pattern, name)]
    return sorted(queue for name in set(names) for queue in _queues_or_none(cluster, name))


def must_find(topics: TopicChoice, found: Iterable[MessageQueue]) -> None:
    """Check that what was asked for by name is there: a batch of nothing is a typing error.

    Raises:
        InvalidOption: A topic or a queue does not exist.
    """
    queues = set(found)
    lost = [str(queue) for queue in topics.queues if queue not in queues]
    lost += [name for name in topics.topics if name not in {queue.topic for queue in queues}]
    if lost:
        raise InvalidOption(f"not found on the broker: {', '.join(sorted(lost))}")


def starting_offsets(
    cluster: Cluster, choice: OffsetChoice, bounds: Bounds, group: str | None
) -> Offsets:
    """Where to begin on each queue.

    Raises:
        InvalidOption: A named queue does not exist, or no message is as young as asked.
    """
    _check_named(choice, bounds)
    offsets = {queue: each.min_offset for queue, each in bounds.items()}
    if choice.word == "latest":
        offsets = {queue: each.max_offset for queue, each in bounds.items()}
    elif choice.word == "group":
        offsets |= cluster.committed(group or "", bounds)
    offsets |= _placed(choice.by_queue, bounds)
    by_time = _by_time(cluster, choice, bounds)
    if not choice.latest_if_none:
        young = [queue for queue, at in by_time.items() if at >= bounds[queue].max_offset]
        if young:
            raise InvalidOption(
                f"no message of {young[0]} is as young as the starting timestamp; "
                "startingOffsetsByTimestampStrategy=latest begins at the end instead"
            )
    return offsets | by_time


def ending_offsets(cluster: Cluster, choice: OffsetChoice, bounds: Bounds) -> Offsets:
    """Where to end on each queue, for a batch.

    Raises:
        InvalidOption: A named queue does not exist.
    """
    _check_named(choice, bounds)
    offsets = {queue: each.max_offset for queue, each in bounds.items()}
    offsets |= _placed(choice.by_queue, bounds)
    return offsets | _by_time(cluster, choice, bounds)


def checked_ranges(
    start: Offsets, end: Offsets, bounds: Bounds, *, fails: bool
) -> tuple[list[QueueRange], list[str]]:
    """The ranges between two offsets that are still there.

    Args:
        start: From; a queue it lacks begins at its earliest offset.
        end: To.
        bounds: What the queues hold now; a queue it lacks is gone.
        fails: Whether a loss is an error.

    Returns:
        The ranges, and one sentence for each loss that was let pass.

    Raises:
        DataLoss: Offsets are gone, and `fails`.
    """
    ranges, losses = [], []
    for queue in sorted(end):
        loss = ""
        if queue not in bounds:
            if start.get(queue, 0) < end[queue]:
                losses.append(f"{queue} is gone with [{start.get(queue, 0)}, {end[queue]})")
            continue
        low, high = bounds[queue].min_offset, bounds[queue].max_offset
        first = start.get(queue, low)
        if first > end[queue]:
            loss = f"{queue} begins again: it was read up to {first} and ends at {end[queue]} now"
            first = low
        elif first < low and first < end[queue]:
            loss = f"retention took [{first}, {min(low, end[queue])}) of {queue}"
            first = low
        if end[queue] > high:
            loss = f"{queue} ends at {high}, {end[queue]} was promised: it was created anew"
        if loss:
            losses.append(loss)
        if first < min(end[queue], high):
            ranges.append(QueueRange(queue, first, min(end[queue], high)))
    gone = [queue for queue in start if queue not in end and queue not in bounds]
    losses += [f"{queue} is gone" for queue in sorted(gone)]
    if losses and fails:
        raise DataLoss(f"{'; '.join(losses)}; set failOnDataLoss=false to go on with what is there")
    return ranges, losses


def _queues_or_none(cluster: Cluster, topic: str) -> list[MessageQueue]:
    try:
        return cluster.queues(topic)
    except TopicNotFound:
        return []


def _check_named(choice: OffsetChoice, bounds: Bounds) -> None:
    lost = [queue for queue in (*choice.by_queue, *choice.timestamps_ms) if queue not in bounds]
    if lost:
        raise InvalidOption(f"offsets name {lost[0]}, which is not among the queues to read")


def _placed(by_queue: Offsets, bounds: Bounds) -> Offsets:
    """Offsets of a user's JSON, with the words for earliest and latest replaced."""
    placed: Offsets = {}
    for queue, offset in by_queue.items():
        words = {EARLIEST: bounds[queue].min_offset, LATEST: bounds[queue].max_offset}
        placed[queue] = words.get(offset, offset)
    return placed


def _by_time(cluster: Cluster, choice: OffsetChoice, bounds: Bounds) -> Offsets:
    if choice.timestamp_ms is not None:
        asked = dict.fromkeys(bounds, choice.timestamp_ms)
    else:
        asked = choice.timestamps_ms
    return cluster.offsets_at(asked) if asked else {}
