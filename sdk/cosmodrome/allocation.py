"""How the members of a group share the queues of a topic: RocketMQ 4's six strategies.

Pure functions `(queues, members, me) -> my queues`. Every member must be given the same queues
and members; both are sorted first. With each of them the shares are disjoint and, together,
all queues (FIXED: as far as the lists say so).
"""

import hashlib
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence

from cosmodrome.errors import IllegalArgument
from cosmodrome.offsets import Place

Strategy = Callable[[Sequence[Place], Sequence[str], str], list[Place]]
NameOf = Callable[[Place], str]
VIRTUAL_NODES = 10


def averagely(queues: Sequence[Place], members: Sequence[str], me: str) -> list[Place]:
    """Neighbouring queues to each, the first members one more where it does not divide."""
    ordered, names = sorted(queues), sorted(members)
    index = names.index(me)
    share, rest = divmod(len(ordered), len(names))
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]


def averagely_by_circle(queues: Sequence[Place], members: Sequence[str], me: str) -> list[Place]:
    """One queue to each in turn, round and round."""
    names = sorted(members)
    return sorted(queues)[names.index(me) :: len(names)]


def fixed(shares: Mapping[str, Sequence[Place]]) -> Strategy:
    """The queues somebody wrote down for each member."""

    def strategy(queues: Sequence[Place], _members: Sequence[str], me: str) -> list[Place]:
        there = set(queues)
        return [queue for queue in shares.get(me, ()) if queue in there]

    return strategy


def by_consistent_hash(queues: Sequence[Place], members: Sequence[str], me: str) -> list[Place]:
    """A ring of hashed members: one that comes or goes moves only its own share."""
    ring = sorted(
        (_point(f"{name}-{node}"), name) for name in members for node in range(VIRTUAL_NODES)
    )
    points = [point for point, _ in ring]
    return [
        queue
        for queue in sorted(queues)
        if ring[bisect(points, _point(f"{queue[0]}-{queue[1]}")) % len(ring)][1] == me
    ]


def by_machine_room(rooms: Mapping[str, str], mine: frozenset[str], broker_of: NameOf) -> Strategy:
    """Only queues of brokers in the rooms this group consumes from, averagely.

    Args:
        rooms: Broker → room.
        mine: The rooms to consume from.
        broker_of: Tells the broker of a queue.
    """

    def strategy(queues: Sequence[Place], members: Sequence[str], me: str) -> list[Place]:
        return averagely([q for q in queues if rooms.get(broker_of(q)) in mine], members, me)

    return strategy


def nearby(
    inner: Strategy, room_of_queue: NameOf, room_of_member: Callable[[str], str]
) -> Strategy:
    """Queues to members in their own room by `inner`; those of rooms without members to all."""

    def strategy(queues: Sequence[Place], members: Sequence[str], me: str) -> list[Place]:
        by_room: dict[str, list[Place]] = {}
        for queue in queues:
            by_room.setdefault(room_of_queue(queue), []).append(queue)
        mine: list[Place] = []
        for room, there in sorted(by_room.items()):
            near = [name for name in members if room_of_member(name) == room]
            if not near:
                mine += inner(there, members, me)
            elif me in near:
                mine += inner(there, near, me)
        return mine

    return strategy


def share(
    strategy: Strategy, queues: Sequence[Place], members: Sequence[str], me: str
) -> list[Place]:
    """Apply a strategy.

    Raises:
        IllegalArgument: `me` is not among the members.
    """
    if me not in members:
        raise IllegalArgument(f"{me} is none of the {len(members)} members")
    return strategy(queues, members, me) if queues else []


def _point(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big")
