from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueRange
from cosmodrome_spark.planning import (
    ROWS_WORTH_A_TASK,
    TaskLimits,
    limit_bytes,
    limit_offsets,
    plan_tasks,
)

LENGTHS = st.lists(st.integers(0, 300_000), min_size=1, max_size=8)


def queue(number: int) -> MessageQueue:
    return MessageQueue("t", "b", number)


def starts_and_ends(lengths: list[int]) -> tuple[Offsets, Offsets]:
    start = {queue(number): 10 * number for number in range(len(lengths))}
    return start, {each: start[each] + lengths[each.queue_id] for each in start}


@given(LENGTHS, st.integers(1, 400_000))
def test_a_limit_is_kept_and_starves_no_queue(lengths: list[int], rows_max: int) -> None:
    start, end = starts_and_ends(lengths)

    limited = limit_offsets(start, end, rows_max)

    taken = {each: limited[each] - start[each] for each in start}
    assert all((taken[each] > 0) == (end[each] > start[each]) for each in start)
    assert all(limited[each] <= end[each] for each in start)
    assert sum(taken.values()) <= max(rows_max, 0) + len(lengths)


@given(LENGTHS)
def test_a_limit_above_the_backlog_changes_nothing(lengths: list[int]) -> None:
    start, end = starts_and_ends(lengths)

    assert limit_offsets(start, end, sum(lengths) + 1) == end


def test_a_limit_in_bytes_takes_fewer_of_the_larger_messages() -> None:
    start, end = starts_and_ends([1000, 1000])

    limited = limit_bytes(start, end, 110_000, {queue(0): 100.0, queue(1): 1000.0})

    rows = [limited[queue(number)] - start[queue(number)] for number in (0, 1)]
    assert rows == [100, 100]


@given(
    LENGTHS,
    st.none() | st.integers(1, 9),
    st.integers(1, 12),
    st.none() | st.integers(1000, 50_000),
)
def test_tasks_cover_every_offset_exactly_once(
    lengths: list[int], least: int | None, most: int, records: int | None
) -> None:
    start, end = starts_and_ends(lengths)
    spans = [QueueRange(each, start[each], end[each]) for each in start if lengths[each.queue_id]]

    tasks = plan_tasks(spans, TaskLimits(least, most, records, cores=2))

    flat = sorted(span for task in tasks for span in task)
    joined: dict[MessageQueue, int] = {}
    for span in flat:
        assert joined.get(span.queue, start[span.queue]) == span.start
        joined[span.queue] = span.end
    assert joined == {span.queue: span.end for span in spans}
    if records is None:
        assert len(tasks) <= most
    else:
        assert all(sum(map(len, task)) <= records for task in tasks)


def test_many_small_queues_share_one_task() -> None:
    spans = [QueueRange(queue(number), 0, 10) for number in range(200)]

    assert len(plan_tasks(spans, TaskLimits(None, 8, None, cores=4))) == 1


def test_one_long_queue_is_split_over_the_cores() -> None:
    span = QueueRange(queue(0), 0, 10 * ROWS_WORTH_A_TASK)

    tasks = plan_tasks([span], TaskLimits(None, 8, None, cores=4))

    assert [len(task[0]) for task in tasks] == [50_000] * 4
