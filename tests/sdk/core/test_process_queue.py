"""What a push consumer holds of a queue, and what a new assignment changes."""

import pytest

from cosmodrome import Filter, MessageView
from cosmodrome._core import endpoints
from cosmodrome._core.process_queue import ProcessQueue, Thresholds, change, thresholds
from cosmodrome._core.route import MessageQueue
from cosmodrome.message import Receipt

BROKER = endpoints.parse("127.0.0.1:8081")


def queue(number: int) -> MessageQueue:
    return MessageQueue("orders", number, "broker", BROKER)


def held(number: int, **values: float) -> ProcessQueue:
    return ProcessQueue(queue(number), Filter(), **values)  # type: ignore[arg-type]  # passed through


def view(number: int, size: int = 10) -> MessageView:
    return MessageView(
        f"id-{number}", "orders", bytes(size), queue_offset=number, receipt=Receipt("h", "e")
    )


def test_room_is_what_count_and_bytes_leave() -> None:
    one = held(0)
    bounds = Thresholds(4, 100)
    assert one.room(bounds) == 4
    one.cache([view(1), view(2)])
    assert one.room(bounds) == 2
    assert (len(one), one.body_bytes) == (2, 20)
    large = view(3, size=90)
    one.cache([large])
    assert one.room(bounds) == 0
    one.evict(large)
    one.evict(large)
    assert (len(one), one.body_bytes) == (2, 20)
    one.reserve(1)
    assert one.room(bounds) == 1
    one.reserve(-1)
    assert one.room(bounds) == 2


def test_a_second_delivery_of_a_cached_message_is_counted_and_forgotten_by_itself() -> None:
    one = held(0)
    first, second = view(1), view(1)
    one.cache([first])
    one.cache([second])
    assert (len(one), one.body_bytes) == (2, 20)
    one.evict(first)
    one.evict(second)
    assert (len(one), one.body_bytes) == (0, 0)


def test_a_full_queue_fetches_again_when_a_fifth_is_free() -> None:
    one = held(0)
    bounds = Thresholds(10, 10_000)
    views = [view(n) for n in range(10)]
    one.cache(views)
    one.evict(views[0])
    assert not one.has_low_water(bounds)
    one.evict(views[1])
    assert one.has_low_water(bounds)


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        (0, Thresholds(0, 0)),
        (1, Thresholds(100, 50)),
        (3, Thresholds(33, 16)),
        (999, Thresholds(1, 1)),
    ],
)
def test_the_bounds_are_shared_among_queues(queues: int, expected: Thresholds) -> None:
    assert thresholds(100, 50, queues) == expected


def test_an_assignment_adds_what_is_missing_and_drops_what_is_gone() -> None:
    first, second = held(0, active_s=100), held(1, active_s=100)
    plan = change([first, second], [queue(1), queue(2)], Filter(), now_s=100, longest_fetch_s=23)
    assert plan.dropped == [first]
    assert plan.added == [queue(2)]


def test_the_same_assignment_twice_begins_no_second_loop() -> None:
    plan = change([held(0)], [queue(0), queue(0)], Filter(), now_s=0, longest_fetch_s=23)
    assert (plan.dropped, plan.added) == ([], [])


def test_an_empty_assignment_drops_everything() -> None:
    one = held(0)
    assert change([one], [], Filter(), now_s=0, longest_fetch_s=23).dropped == [one]


def test_another_filter_means_fetching_anew() -> None:
    one = held(0)
    plan = change([one], [queue(0)], Filter("paid"), now_s=0, longest_fetch_s=23)
    assert (plan.dropped, plan.added) == ([one], [queue(0)])


@pytest.mark.parametrize(
    ("active_s", "full_s", "expired"),
    [(31.1, float("-inf"), False), (31, float("-inf"), True), (0, 99, False), (0, 31, True)],
)
def test_a_queue_expires_after_three_fetches_without_life(
    active_s: float, full_s: float, expired: bool
) -> None:
    one = held(0, active_s=active_s, full_s=full_s)
    assert one.is_expired(100, 23) is expired
    plan = change([one], [queue(0)], Filter(), now_s=100, longest_fetch_s=23)
    assert bool(plan.added) is expired
