"""From what a user asked for to queues, offsets and ranges of the moment."""

from collections.abc import Iterable, Mapping

import pytest

from cosmodrome_spark.errors import DataLoss, InvalidOption, TopicNotFound
from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueBounds, QueueRange
from cosmodrome_spark.option_values import OffsetChoice, TopicChoice
from cosmodrome_spark.source import resolve

A0, A1 = MessageQueue("a", "b", 0), MessageQueue("a", "b", 1)


class FakeCluster:
    """Two topics; messages are one second apart from 100 s on."""

    def topics(self) -> list[str]:
        return ["a", "ab", "other"]

    def queues(self, topic: str) -> list[MessageQueue]:
        if topic not in {"a", "ab"}:
            raise TopicNotFound(topic, code=40402)
        return [MessageQueue(topic, "b", number) for number in (0, 1)]

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        return {queue: QueueBounds(5, 50) for queue in queues}

    def offsets_at(self, timestamps_ms: Mapping[MessageQueue, int]) -> Offsets:
        return {queue: min(50, ms // 1000 - 100) for queue, ms in timestamps_ms.items()}

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        return {queue: 20 for queue in queues if group == "g" and queue.queue_id == 0}

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    def close(self) -> None: ...


CLUSTER = FakeCluster()
BOUNDS = CLUSTER.bounds([A0, A1])


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (TopicChoice(topics=("a", "missing")), ["a", "a"]),
        (TopicChoice(pattern="a.*"), ["a", "a", "ab", "ab"]),
        (TopicChoice(queues=(A1, MessageQueue("a", "b", 9))), ["a"]),
    ],
)
def test_queues_by_name_by_pattern_and_one_by_one(choice: TopicChoice, found: list[str]) -> None:
    assert [queue.topic for queue in resolve.choose_queues(CLUSTER, choice)] == found


def test_a_batch_of_a_topic_that_is_not_there_is_a_typing_error() -> None:
    with pytest.raises(InvalidOption, match="missing"):
        resolve.must_find(TopicChoice(topics=("a", "missing")), [A0])


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (OffsetChoice("earliest"), {A0: 5, A1: 5}),
        (OffsetChoice("latest"), {A0: 50, A1: 50}),
        (OffsetChoice("group"), {A0: 20, A1: 5}),
        (OffsetChoice("earliest", by_queue={A1: 30}), {A0: 5, A1: 30}),
        (OffsetChoice("earliest", by_queue={A0: -1, A1: -2}), {A0: 50, A1: 5}),
        (OffsetChoice("latest", timestamp_ms=110_000), {A0: 10, A1: 10}),
        (OffsetChoice("earliest", timestamps_ms={A0: 112_000}), {A0: 12, A1: 5}),
    ],
)
def test_where_to_begin(choice: OffsetChoice, found: Offsets) -> None:
    assert resolve.starting_offsets(CLUSTER, choice, BOUNDS, "g") == found


def test_a_timestamp_that_no_message_reaches_is_an_error_or_the_end() -> None:
    with pytest.raises(InvalidOption, match="as young"):
        resolve.starting_offsets(CLUSTER, OffsetChoice("x", timestamp_ms=900_000), BOUNDS, None)

    late = OffsetChoice("x", timestamp_ms=900_000, latest_if_none=True)
    assert resolve.starting_offsets(CLUSTER, late, BOUNDS, None) == {A0: 50, A1: 50}


@pytest.mark.parametrize(
    ("start", "end", "bounds", "reason", "kept"),
    [
        ({A0: 5}, {A0: 9}, {A0: QueueBounds(5, 50)}, "", [QueueRange(A0, 5, 9)]),
        ({A0: 5}, {A0: 9}, {A0: QueueBounds(7, 50)}, "retention", [QueueRange(A0, 7, 9)]),
        ({A0: 5}, {A0: 9}, {}, "is gone", []),
        ({A0: 40}, {A0: 9}, {A0: QueueBounds(0, 9)}, "begins again", [QueueRange(A0, 0, 9)]),
        ({A0: 5}, {A0: 9}, {A0: QueueBounds(0, 8)}, "created anew", [QueueRange(A0, 5, 8)]),
        ({}, {A1: 9}, {A1: QueueBounds(3, 9)}, "", [QueueRange(A1, 3, 9)]),
        ({A0: 5, A1: 2}, {A1: 2}, {A1: QueueBounds(0, 2)}, "b:0 is gone", []),
    ],
)
def test_what_is_gone_is_an_error_or_is_passed_over_with_a_word(
    start: Offsets,
    end: Offsets,
    bounds: resolve.Bounds,
    reason: str,
    kept: list[QueueRange],
) -> None:
    ranges, losses = resolve.checked_ranges(start, end, bounds, fails=False)

    assert ranges == kept
    assert reason in "; ".join(losses)
    if reason:
        with pytest.raises(DataLoss, match=reason):
            resolve.checked_ranges(start, end, bounds, fails=True)
