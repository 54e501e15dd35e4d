"""Receives that are answered later: at the end of the turn, or when something arrives.

What of a turn asks for the same is one receive, shared out in the order it came: one plan, one
lease, one record, however many calls.

    receive_soon ──end of the turn──▶ then(messages | none | error)
    wait ──something arrives, or the deadline──▶ on_ready(messages | none)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from cosmodrome_server.broker.receive_verbs import ReceiveVerbs
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.core.long_polling import PULL_GROUP_ID, AnyWaiter, LongPolling
from cosmodrome_server.core.progress import Place
from cosmodrome_server.core.records import LEASE_SPAN
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.model.filter import Filter
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter

# Waiters served in one turn of the loop; the rest is served in the next.
_SERVED_PER_TURN = 64
# Bodies that those who asked in a turn get in it, and those who wait, give or take a receive; the
# others are served in the next one.
_BYTES_PER_TURN = 32 << 20

Then: TypeAlias = Callable[[list[Delivery] | Exception], None]
_Asker: TypeAlias = tuple[ReceiveQuery, Then]
# Group, topic, filter, invisible time, and who renews: what one lease has one of.
_Alike: TypeAlias = tuple[str, str, Filter, int, str]


class WaitingVerbs(ReceiveVerbs):
    """Implements waiting of `broker.interface.Messaging`."""

    def _open_polling(self) -> None:
        self._open_receives()
        self._polling = LongPolling(self._settings.waiters_max, self._settings.waiters_per_group)
        self._asked: dict[_Alike, list[_Asker]] = {}
        self._wake_bytes_left = 0
        self._waits_end = False

    # At the end of the turn

    def receive_soon(self, query: ReceiveQuery, then: Then) -> None:
        """See `Messaging`."""
        self._check_names(query)
        alike = _alike(query)
        askers = self._asked.get(alike)
        if askers is None:
            self._asked[alike] = [(query, then)]
            self._commit.touch()
        else:
            askers.append((query, then))

    def _serve_turn(self) -> None:
        super()._serve_turn()
        if not self._asked:
            return
        asked, self._asked = self._asked, {}
        room = _BYTES_PER_TURN
        for alike, askers in asked.items():
            for some in self._parts(askers):
                if room > 0:
                    room -= self._answer(some)
                else:
                    self._asked.setdefault(alike, []).extend(some)
        if self._asked:
            self._commit.touch()

    def _parts(self, askers: Sequence[_Asker]) -> Iterable[Sequence[_Asker]]:
        """Those that are answered together."""
        if len(askers) == 1:
            return (askers,)
        return _of_one_lease(askers) if self._is_shared(askers[0][0]) else ([one] for one in askers)

    def _is_shared(self, query: ReceiveQuery) -> bool:
        """Whether what one consumer of the group gets does not depend on which one asks."""
        group = self._shard.catalogue.groups.get(query.group)
        return group is not None and not group.group.is_fifo and not group.group.lite_bind_topic

    def _answer(self, askers: Sequence[_Asker]) -> int:
        """Let them receive; how many bytes they got."""
        try:
            shares = self._shares([query for query, _ in askers])
        except Exception as error:  # also a bug: the turn's frame must be written
            for _, then in askers:
                then(error)
            return 0
        taken = 0
        for (_, then), share in zip(askers, shares, strict=True):
            for delivery in share:
                taken += len(delivery.message.body)
            then(share)
        return taken

    def _shares(self, queries: Sequence[ReceiveQuery]) -> list[list[Delivery]]:
        """What each of these that ask for the same gets of one receive."""
        if len(queries) == 1:
            return [self.receive(queries[0])]
        wanted = sum([query.max_messages for query in queries])
        found = self.receive(msgspec.structs.replace(queries[0], max_messages=wanted))
        shares = []
        at = 0
        for query in queries:
            stop = at + query.max_messages
            shares.append(found[at:stop])
            at = stop
        return shares

    # When something arrives

    def wait(self, waiter: Waiter) -> None:
        """See `Messaging`."""
        if self._waits_end:
            self._turn_away(waiter)
            return
        group = self._group(waiter.query.group)
        topic = self._topic(waiter.query.topic)
        self._polling.add(self._place(group, topic, waiter.query), waiter)
        self._commit.touch()

    def cancel(self, waiter: AnyWaiter) -> None:
        """See `Messaging`."""
        waiter.is_open = False
        self._polling.remove(waiter)

    def _place(self, group: GroupState, topic: TopicState, query: ReceiveQuery) -> Place:
        queue_id = query.queue_id if group.group.is_fifo else ANY_QUEUE
        return group.group_id, topic.topic_id, queue_id

    def _do_later(self) -> None:
        super()._do_later()
        # While a frame is being written the next one waits for it, so who waits may as well
        # wait for more messages of that one.
        if not self._commit.is_writing:
            self._collect_wakes()
            self._wake()
        self._answer_late()

    def _collect_wakes(self) -> None:
        arrived, self._shard.arrived = self._shard.arrived, {}
        for topic_id, queue_id in arrived:
            for place in self._polling.places_of(topic_id):
                if place[2] in (ANY_QUEUE, queue_id) and place[0] != PULL_GROUP_ID:
                    self._to_wake[place] = None
        visible, self._shard.became_visible = self._shard.became_visible, {}
        for topic_id, queue_id in visible:
            pulls = PULL_GROUP_ID, topic_id, queue_id
            if self._polling.first(pulls) is not None:
                self._to_wake[pulls] = None
        consumptions = self._shard.consumptions
        ready, consumptions.became_ready = consumptions.became_ready, {}
        for group_id, topic_id, queue_id in ready:
            if (group_id, topic_id) in self._capped:
                # Who found no room may find some now, at whichever queue; or is noted again.
                for place in self._polling.places_of(topic_id):
                    if place[0] == group_id:
                        self._capped.discard((group_id, topic_id))
                        self._to_wake[place] = None
            self._to_wake[group_id, topic_id, queue_id] = None
            self._to_wake[group_id, topic_id, ANY_QUEUE] = None

    def _wake(self) -> None:
        to_wake, self._to_wake = self._to_wake, {}
        budget = _SERVED_PER_TURN
        self._wake_bytes_left = _BYTES_PER_TURN
        for place in to_wake:
            most = 1
            while budget and (served := self._serve_first(place, min(most, budget))):
                budget = budget - served if self._wake_bytes_left > 0 else 0
                most *= 2  # Who waits is looked at only if so many may get something.
            if not budget:
                self._to_wake[place] = None
                self._commit.touch()

    def _serve_first(self, place: Place, most: int) -> int:
        """Try to answer up to so many of those who wait longest; how many were."""
        waiters = self._polling.firsts(place, most)
        alike = _prefix_alike(waiters)
        if len(alike) < 2 or not self._is_shared(alike[0].query):
            return int(bool(waiters) and self._serve(waiters[0]))
        try:
            shares = self._shares([waiter.query for waiter in alike])
        except BrokerError:
            return int(self._serve(waiters[0]))
        served = 0
        for waiter, share in zip(alike, shares, strict=True):
            if share:
                self._let_go(waiter, share)
                served += 1
        return served

    def _let_go(self, waiter: Waiter, deliveries: list[Delivery]) -> None:
        self._polling.remove(waiter)
        waiter.is_open = False
        for delivery in deliveries:
            self._wake_bytes_left -= len(delivery.message.body)
        waiter.on_ready(deliveries)

    def _serve(self, waiter: AnyWaiter) -> bool:
        """Try to answer a waiter; whether it was."""
        assert isinstance(waiter, Waiter), "pulls wait elsewhere"
        try:
            deliveries = self.receive(waiter.query)
        except BrokerError:
            # The topic or the group went away, or became unreadable: the next receive of
            # this client is told why.
            deliveries = []
        else:
            if not deliveries:
                return False
        self._let_go(waiter, deliveries)
        return True

    def _answer_late(self) -> None:
        for waiter in self._polling.take_due(self._clock.monotonic_ms()):
            waiter.is_open = False
            self._give_up(waiter)

    def _turn_away(self, waiter: AnyWaiter) -> None:
        """Answer with nothing, after whoever waits has returned from asking."""
        waiter.is_open = False
        self._loop.call_soon(self._give_up, waiter)

    def _give_up(self, waiter: AnyWaiter) -> None:
        assert isinstance(waiter, Waiter), "pulls wait elsewhere"
        waiter.on_ready([])

    def _next_deadline_ms(self) -> int:
        return min(super()._next_deadline_ms(), self._polling.next_deadline_ms())


def _alike(query: ReceiveQuery) -> _Alike:
    renewer = query.client_id if query.auto_renew else ""
    return query.group, query.topic, query.filter, query.invisible_ms, renewer


def _prefix_alike(waiters: Sequence[AnyWaiter]) -> list[Waiter]:
    """Those at the beginning that ask for the same, as much as one lease can hold."""
    found: list[Waiter] = []
    wanted = 0
    for waiter in waiters:
        if not isinstance(waiter, Waiter) or (
            found and _alike(waiter.query) != _alike(found[0].query)
        ):
            break
        wanted += waiter.query.max_messages
        if found and wanted > LEASE_SPAN:
            break
        found.append(waiter)
    return found


def _of_one_lease(askers: Sequence[_Asker]) -> Iterator[list[_Asker]]:
    """In parts that a queue can give all they want at once."""
    some: list[_Asker] = []
    room = LEASE_SPAN
    for asker in askers:
        wanted = asker[0].max_messages
        if wanted > room and some:
            yield some
            some, room = [], LEASE_SPAN
        some.append(asker)
        room -= wanted
    yield some
