"""Which receives and pulls wait, for what, and until when.

    place (group id, topic id, queue id or ANY_QUEUE) ─▶ waiters, in the order they came
    deadlines                                         ─▶ heap of (deadline, number)

A pull waits at group id 0: it shares nothing with others, so all of a queue are tried. A
waiter that was served, gave up or was cancelled is gone at once; of its deadline a pair
of integers stays until it surfaces or the heap is more than half stale.
"""

import heapq
from itertools import islice

from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.progress import Place
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.model.queries import PullWaiter, Waiter

AnyWaiter = Waiter | PullWaiter

PULL_GROUP_ID = 0
_STALE_DEADLINES_MAX = 1_024


class LongPolling:
    """The waiters of a shard.

    Args:
        waiters_max: How many there may be in all.
        waiters_per_place: How many of one group on one queue or topic.
    """

    def __init__(self, waiters_max: int, waiters_per_place: int) -> None:
        self._waiters_max = waiters_max
        self._per_place = waiters_per_place
        self._by_place: dict[Place, dict[int, AnyWaiter]] = {}
        self._places_of_topic: dict[int, dict[Place, None]] = {}
        self._places: dict[int, Place] = {}
        self._numbers: dict[int, int] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: Place, waiter: AnyWaiter) -> None:
        """Queue a waiter behind those of its place.

        Raises:
            OverloadedError: There are as many as there may be.
        """
        waiting = self._by_place.get(place)
        if len(self._places) >= self._waiters_max:
            raise OverloadedError(
                f"{self._waiters_max} receives wait already (delivery.waiters_max)",
                "delivery.waiters_max",
            )
        if waiting is not None and len(waiting) >= self._per_place:
            raise OverloadedError(
                f"{self._per_place} receives of this group wait already "
                "(delivery.waiters_per_group)",
                "delivery.waiters_per_group",
            )
        if waiting is None:
            waiting = self._by_place[place] = {}
            self._places_of_topic.setdefault(place[1], {})[place] = None
        self._last_number += 1
        number = self._last_number
        waiting[number] = waiter
        self._places[number] = place
        self._numbers[id(waiter)] = number
        heapq.heappush(self._deadlines, (waiter.deadline_ms, number))

    def remove(self, waiter: AnyWaiter) -> bool:
        """Forget a waiter; whether it was waiting."""
        number = self._numbers.pop(id(waiter), None)
        if number is None:
            return False
        place = self._places.pop(number)
        waiting = self._by_place[place]
        del waiting[number]
        if not waiting:
            del self._by_place[place]
            of_topic = self._places_of_topic[place[1]]
            del of_topic[place]
            if not of_topic:
                del self._places_of_topic[place[1]]
        if len(self._deadlines) > 2 * len(self._places) + _STALE_DEADLINES_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._places]
            heapq.heapify(self._deadlines)
        return True

    def first(self, place: Place) -> AnyWaiter | None:
        """Who has waited longest at a place."""
        waiting = self._by_place.get(place)
        return None if waiting is None else next(iter(waiting.values()))

    def firsts(self, place: Place, most: int) -> list[AnyWaiter]:
        """Up to so many of those who have waited longest at a place, longest first."""
        waiting = self._by_place.get(place)
        return [] if waiting is None else list(islice(waiting.values(), most))

    def at(self, place: Place) -> list[AnyWaiter]:
        """Everybody who waits at a place, longest first."""
        return list(self._by_place.get(place, {}).values())

    def places_of(self, topic_id: int) -> list[Place]:
        """Where somebody waits for a topic."""
        return list(self._places_of_topic.get(topic_id, ()))

    def take_due(self, now_ms: int) -> list[AnyWaiter]:
        """Take out the waiters whose deadline has come, on the monotonic clock."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            number = heapq.heappop(self._deadlines)[1]
            place = self._places.get(number)
            if place is not None:
                waiter = self._by_place[place][number]
                self.remove(waiter)
                due.append(waiter)
        return due

    def take_all(self) -> list[AnyWaiter]:
        """Take out everybody."""
        waiters = [waiter for waiting in self._by_place.values() for waiter in waiting.values()]
        for waiter in waiters:
            self.remove(waiter)
        return waiters

    def next_deadline_ms(self) -> int:
        """When `take_due` may next have something, on the monotonic clock."""
        return self._deadlines[0][0] if self._deadlines else NEVER_MS
