"""What replay meets when a damaged frame was passed over: a record that stands alone."""

from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import ChangeInvisible, Pop

PLACE = (1, 2, 3)


def pop(lease_id: int, base: int, count: int, mask: int, replaces: int = 0, name: str = "") -> Pop:
    return Pop(
        100,
        *PLACE,
        lease_id,
        base,
        count,
        mask,
        invisible_ms=50,
        replaces=replaces,
        attempt_id=name,
    )


def offsets_of(progress: Progress, lease_id: int) -> list[int]:
    lease = progress.leases.get(lease_id)
    assert lease is not None
    return lease.offsets()


def test_a_lease_taken_over_from_one_that_is_not_known_holds_its_messages() -> None:
    progress = Progress(PLACE, 0)

    progress.pop(pop(8, 0, 0, 0b101, replaces=7))

    assert offsets_of(progress, 8) == [0, 2]
    assert progress.inflight == 2


def test_what_a_lost_record_handed_out_is_ready_and_what_is_known_of_it_holds() -> None:
    progress = Progress(PLACE, 10)

    progress.settle(7, 11)
    assert (progress.cursor, progress.ready) == (12, {10: 1})
    progress.settle_many(7, 13, 0b101)
    assert (progress.cursor, progress.ready) == (16, {10: 1, 12: 1, 14: 1})
    progress.change(ChangeInvisible(100, *PLACE, 7, 16, 8, 50, is_suspended=False))
    progress.pop(pop(9, 18, 0, 1))
    progress.pop(pop(20, 14, 0, 1, replaces=6))
    progress.pop(pop(21, 20, 1, 1))

    assert (progress.cursor, progress.ready) == (21, {10: 1, 12: 1, 17: 1, 19: 1})
    assert [offsets_of(progress, each) for each in (8, 9, 20, 21)] == [[16], [18], [14], [20]]


def test_a_pop_far_beyond_the_cursor_comes_after_a_move_that_was_lost() -> None:
    progress = Progress(PLACE, 10)
    progress.lend(Lease(7, 100_010, 1, 50, 1), 1)

    assert (progress.cursor, progress.done.floor, progress.ready) == (100_011, 100_010, {})


def test_a_dead_letter_that_went_back_hands_nothing_out() -> None:
    progress = Progress(PLACE, 0)
    progress.settle(0, 5)

    assert (progress.cursor, progress.ready) == (0, {})


def test_what_is_taken_over_leaves_its_lease_and_the_rest_stays() -> None:
    progress = Progress(PLACE, 0)
    progress.pop(pop(7, 0, 4, 0b1111))

    progress.pop(pop(8, 1, 0, 0b11, replaces=7))
    assert offsets_of(progress, 7) == [0, 3]
    progress.pop(pop(9, 0, 0, 0b1001, replaces=7))

    assert [lease.lease_id for lease in progress.leases] == [8, 9]
    assert offsets_of(progress, 9) == [0, 3]


def test_a_receive_that_is_repeated_knows_its_leases_by_its_name() -> None:
    progress = Progress(PLACE, 0)
    progress.pop(pop(7, 0, 1, 1, name="a"))
    progress.pop(pop(8, 1, 1, 1, name="a"))
    assert progress.attempts == {"a": [7, 8]}

    progress.pop(pop(9, 0, 0, 1, replaces=7, name="a"))
    assert progress.attempts == {"a": [8, 9]}
    progress.pop(pop(10, 2, 1, 1, name="b"))

    assert progress.attempts == {"a": [8, 9], "b": [10]}


def test_a_receive_that_found_nothing_makes_nobody_forget_another() -> None:
    progress = Progress(PLACE, 0)
    progress.pop(pop(7, 0, 1, 1, name="a"))

    progress.pop(pop(0, 1, 1, 0, name="b"))

    assert progress.attempts == {"a": [7]}
    assert 1 in progress.done


def test_receives_of_which_nothing_is_in_flight_are_forgotten_and_the_oldest_of_too_many() -> None:
    progress = Progress(PLACE, 0)
    for number in range(40):
        progress.pop(pop(number + 1, number, 1, 1, name=f"{number}"))
        progress.pop(pop(number + 101, number + 40, 1, 1, name="settled"))
        progress.settle(number + 101, number + 40)

    assert "settled" not in list(progress.attempts)[:-1]
    assert len(progress.attempts) == 32
    progress.pop(pop(200, 80, 1, 1, name="39"))
    assert list(progress.attempts) == [f"{number}" for number in range(9, 40)]
    assert progress.attempts["39"] == [40, 200]


def test_a_settlement_of_what_was_never_seen_is_kept() -> None:
    progress = Progress(PLACE, 0)

    assert progress.settle(99, 5) is None

    assert 5 in progress.done
    assert 4 not in progress.done
