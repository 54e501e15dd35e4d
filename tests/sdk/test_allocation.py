"""The six allocate strategies (clients.md 4-25), as properties."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome import IllegalArgument, allocation
from cosmodrome.allocation import Strategy
from cosmodrome.offsets import Place

NAMES = st.lists(
    st.text("abcdefgh0123", min_size=1, max_size=4), min_size=1, max_size=9, unique=True
)
QUEUES = st.lists(
    st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 40)), max_size=40, unique=True
)


def room_of_queue(queue: Place) -> str:
    return f"room{queue[1] % 3}"


def room_of_member(name: str) -> str:
    return f"room{len(name) % 2}"


COMPLETE: dict[str, Strategy] = {
    "averagely": allocation.averagely,
    "averagely_by_circle": allocation.averagely_by_circle,
    "by_consistent_hash": allocation.by_consistent_hash,
    "by_machine_room": allocation.by_machine_room(
        {f"room{n}": f"room{n}" for n in range(3)},
        frozenset({"room0", "room1", "room2"}),
        room_of_queue,
    ),
    "nearby": allocation.nearby(allocation.averagely, room_of_queue, room_of_member),
}


@pytest.mark.parametrize("strategy", COMPLETE.values(), ids=COMPLETE)
@given(queues=QUEUES, members=NAMES)
def test_shares_are_disjoint_and_together_all_queues(
    strategy: Strategy, queues: list[Place], members: list[str]
) -> None:
    given_out = Counter(
        queue for me in members for queue in allocation.share(strategy, queues, members, me)
    )
    assert given_out == Counter(queues)


@pytest.mark.parametrize("strategy", COMPLETE.values(), ids=COMPLETE)
@given(queues=QUEUES, members=NAMES, data=st.data())
def test_the_order_in_which_members_and_queues_are_told_does_not_matter(
    strategy: Strategy, queues: list[Place], members: list[str], data: st.DataObject
) -> None:
    me = members[0]
    shuffled = data.draw(st.permutations(queues)), data.draw(st.permutations(members))
    assert allocation.share(strategy, *shuffled, me) == allocation.share(
        strategy, queues, members, me
    )


@pytest.mark.parametrize("name", ["averagely", "averagely_by_circle"])
@given(queues=QUEUES, members=NAMES)
def test_shares_differ_by_one_at_most(name: str, queues: list[Place], members: list[str]) -> None:
    sizes = [len(COMPLETE[name](queues, members, me)) for me in members]
    assert max(sizes) - min(sizes) <= 1


@given(queues=QUEUES, members=NAMES)
def test_on_the_ring_a_member_that_leaves_moves_only_its_own_share(
    queues: list[Place], members: list[str]
) -> None:
    rest = members[1:]
    for me in rest:
        before = set(allocation.by_consistent_hash(queues, members, me))
        assert before <= set(allocation.by_consistent_hash(queues, rest, me))


@given(queues=QUEUES, members=NAMES)
def test_queues_of_a_room_with_members_stay_in_it(queues: list[Place], members: list[str]) -> None:
    manned = {room_of_member(name) for name in members}
    for me in members:
        for queue in COMPLETE["nearby"](queues, members, me):
            assert room_of_queue(queue) in {room_of_member(me)} | (
                {"room0", "room1", "room2"} - manned
            )


def test_only_rooms_of_the_group_are_consumed_from() -> None:
    queues = [("t", n) for n in range(6)]
    rooms = {"room0": "here", "room1": "there", "room2": "there"}
    strategy = allocation.by_machine_room(rooms, frozenset({"here"}), room_of_queue)
    assert strategy(queues, ["me"], "me") == [("t", 0), ("t", 3)]


def test_fixed_shares_are_those_written_down_that_exist() -> None:
    strategy = allocation.fixed({"me": [("t", 1), ("t", 9)]})
    assert strategy([("t", 0), ("t", 1)], ["me", "you"], "me") == [("t", 1)]
    assert strategy([("t", 0), ("t", 1)], ["me", "you"], "you") == []


def test_averagely_gives_neighbours_and_by_circle_gives_turns() -> None:
    queues = [("t", n) for n in range(5)]
    assert allocation.averagely(queues, ["a", "b"], "a") == queues[:3]
    assert allocation.averagely_by_circle(queues, ["a", "b"], "a") == queues[::2]


def test_who_is_no_member_gets_no_share() -> None:
    with pytest.raises(IllegalArgument, match="none of the 2 members"):
        allocation.share(allocation.averagely, [("t", 0)], ["a", "b"], "c")
