"""Who waits, in which order, until when."""

import pytest

from cosmodrome_server.core.long_polling import LongPolling
from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.model.queries import ReceiveQuery, Waiter

PLACE = (1, 2, -1)


def waiter(deadline_ms: int = 100) -> Waiter:
    query = ReceiveQuery("g", "t", -1, "c", 1, 1_000)
    return Waiter(query, deadline_ms, lambda _: None)


def test_waiters_are_found_in_the_order_they_came() -> None:
    polling = LongPolling(10, 10)
    first, second = waiter(), waiter()
    polling.add(PLACE, first)
    polling.add(PLACE, second)
    assert polling.first(PLACE) is first
    polling.remove(first)
    assert polling.first(PLACE) is second
    assert polling.places_of(2) == [PLACE]
    polling.remove(second)
    assert polling.first(PLACE) is None
    assert polling.places_of(2) == []


def test_waiters_come_due_by_their_deadlines() -> None:
    polling = LongPolling(10, 10)
    late, soon = waiter(200), waiter(100)
    polling.add(PLACE, late)
    polling.add(PLACE, soon)
    assert polling.next_deadline_ms() == 100
    assert polling.take_due(99) == []
    assert polling.take_due(100) == [soon]
    assert polling.take_due(200) == [late]
    assert polling.next_deadline_ms() == NEVER_MS


def test_a_removed_waiter_is_gone_and_removing_it_again_says_so() -> None:
    polling = LongPolling(10, 10)
    gone = waiter()
    polling.add(PLACE, gone)
    assert polling.remove(gone)
    assert not polling.remove(gone)
    assert polling.take_due(1_000) == []
    assert len(polling) == 0


def test_cancelled_waits_leave_nothing_behind() -> None:
    polling = LongPolling(10, 10)
    stays = waiter(50_000)
    polling.add(PLACE, stays)
    for number in range(5_000):
        passing = waiter(10_000 + number)
        polling.add(PLACE, passing)
        polling.remove(passing)
    assert len(polling._deadlines) < 1_100
    assert polling.at(PLACE) == [stays]


def test_there_is_a_bound_for_a_place_and_for_all() -> None:
    polling = LongPolling(3, 2)
    polling.add(PLACE, waiter())
    polling.add(PLACE, waiter())
    with pytest.raises(OverloadedError, match="waiters_per_group"):
        polling.add(PLACE, waiter())
    polling.add((1, 3, -1), waiter())
    with pytest.raises(OverloadedError, match="waiters_max"):
        polling.add((1, 4, -1), waiter())
