"""How much one batch takes, and which task reads what.

    backlog   q0 ████████████████  q1 ██  q2 █
    limit     q0 ██████            q1 █   q2 █      in proportion, nobody starves
    tasks     [q0 a] [q0 b, q1, q2]                 long ranges split, short ones merged

A Python task of Spark costs about 55 ms of a core whatever it reads, which is the time to
read some 50,000 messages. So the number of tasks follows the work, not the queues.

Pure: no Spark, no network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueRange

ROWS_WORTH_A_TASK = 20_000


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """How the work may be cut into tasks.

    Attributes:
        min_partitions: As many tasks as this if there are that many offsets; None lets the
            amount of work decide, up to `cores`.
        max_partitions: Not more tasks than this, unless `max_records` asks for more.
        max_records: Not more offsets than this in one task; None for no bound.
        cores: How many tasks run at a time.
    """

    min_partitions: int | None
    max_partitions: int
    max_records: int | None
    cores: int


def limit_offsets(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], rows_max: int
) -> Offsets:
    """Cut `end` so that about `rows_max` offsets lie between, shared in proportion.

    Every queue with a backlog advances by at least one offset, even where that exceeds
    `rows_max`: a small queue beside a large one must not wait for ever.
    """
    backlogs = {queue: max(0, end[queue] - start[queue]) for queue in end}
    total = sum(backlogs.values())
    if total <= rows_max:
        return dict(end)
    limited: Offsets = {}
    for queue, rows in backlogs.items():
        share = rows * rows_max // total
        limited[queue] = min(end[queue], start[queue] + max(share, 1 if rows else 0))
    return limited


def limit_bytes(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    bytes_max: int,
    mean_bytes: Mapping[MessageQueue, float],
) -> Offsets:
    """Cut `end` so that about `bytes_max` bytes lie between, shared in proportion.

    Args:
        start: Where the batch begins.
        end: Where it could end.
        bytes_max: The bound, in bytes of messages.
        mean_bytes: The estimated size of a message, by queue.
    """
    weights = {
        queue: max(0, end[queue] - start[queue]) * mean_bytes.get(queue, 1.0) for queue in end
    }
    total = sum(weights.values())
    if total <= bytes_max:
        return dict(end)
    factor = bytes_max / total
    limited: Offsets = {}
    for queue in end:
        rows = max(0, end[queue] - start[queue])
        limited[queue] = min(end[queue], start[queue] + max(int(rows * factor), 1 if rows else 0))
    return limited


def plan_tasks(ranges: Sequence[QueueRange], limits: TaskLimits) -> list[list[QueueRange]]:
    """Cut ranges into tasks of about equal length, in order of queue and offset.

    Returns:
        One list of ranges per task; every offset of `ranges` is in exactly one of them.
    """
    total = sum(len(each) for each in ranges)
    if total == 0:
        return []
    rows_per_task = _rows_per_task(total, limits)
    tasks: list[list[QueueRange]] = [[]]
    room = rows_per_task
    for each in sorted(ranges):
        start = each.start
        while start < each.end:
            if room == 0:
                tasks.append([])
                room = rows_per_task
            end = min(each.end, start + room)
            tasks[-1].append(QueueRange(each.queue, start, end))
            room -= end - start
            start = end
    return tasks


def _rows_per_task(total: int, limits: TaskLimits) -> int:
    if limits.min_partitions is None:
        wanted = min(limits.cores, -(-total // ROWS_WORTH_A_TASK))
    else:
        wanted = limits.min_partitions
    tasks = max(1, min(wanted, limits.max_partitions, total))
    rows = -(-total // tasks)
    return min(rows, limits.max_records) if limits.max_records else rows
