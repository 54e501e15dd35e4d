"""Lite topics: sending to them, subscribing to them, receiving from those a client reads.

Readiness is looked up, not remembered: a receive goes through the lite topics of its client
and takes from those that have something, so no event can be lost. Each lite topic is read
in order, one batch in flight at a time, and redelivered in place. What is remembered is only
whom news may concern: of a thousand clients that wait, those that read the lite topic.

Subscriptions are kept in memory, where a group is on a lite topic in the log. So a group has its
place on a lite topic, its beginning, in the frame of the first message that is sent while one of
its clients reads it: neither a restart nor the next client lets it begin behind that message.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from cosmodrome_server.broker.lite_news import LiteNews
from cosmodrome_server.broker.operation_verbs import OperationVerbs
from cosmodrome_server.broker.receive_verbs import INFLIGHT_ATTRIBUTE
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.core.lite_subscription import (
    LiteOutcome,
    LiteRules,
    LiteSubscriptions,
    has_something,
    lite_topic_name,
    parent_of,
    rules_of,
    start_of,
)
from cosmodrome_server.core.progress import Place
from cosmodrome_server.core.receive import Demand
from cosmodrome_server.core.records import SetOffset
from cosmodrome_server.core.send import plan_send
from cosmodrome_server.errors import (
    BadRequest,
    CorruptFrame,
    LiteTopicQuotaExceeded,
    ReadFailed,
    StoreFull,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.lite import LiteAction, LiteChange
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import Delivery, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import LITE_PREFIX, Topic, TopicType

_LITE = TopicType.LITE
_SWEEP_EVERY_MS = 10_000
_SWEPT_PER_TURN = 2_000
# Deleting one looks through all queues and groups: more than these wait for a turn of their own.
_DELETED_PER_TURN = 50
_DELETE_MORE_MS = 50
# An idle lite topic lives at least so long, whatever its parent says.
_EXPIRATION_MIN_MS = 900_000
# Waiters served in one turn of the loop; the rest is served in the next.
_SERVED_PER_TURN = 64


class LiteVerbs(OperationVerbs):
    """Implements `Messaging.sync_lite_subscription`, and receiving and sending of LITE topics."""

    def _open_lite(self) -> None:
        self._lite = LiteSubscriptions(self._settings.lite_subscriptions_max)
        self._lite_turn = 0
        self._lite_sweep_ms = self._clock.monotonic_ms() + _SWEEP_EVERY_MS
        self._lite_swept = 0
        # Lite topic id → parent topic id, in the order they were created.
        self._parents: dict[int, int] = {}
        self._news: dict[Place, LiteNews] = {}
        # While those who ask are served: what wildcard groups can read, by group and parent.
        self._looked_up: dict[tuple[int, int], list[TopicState]] | None = None
        for state in self._shard.catalogue.topics.values():
            self._note_lite(state)

    def _note_lite(self, state: TopicState) -> None:
        if state.topic.name.startswith(LITE_PREFIX):
            parent = self._shard.catalogue.topics.get(parent_of(state.topic.name))
            if parent is not None:
                self._parents[state.topic_id] = parent.topic_id

    def has_topic(self, name: str) -> bool:
        """See `Catalogue`; lite topics are not named so."""
        return super().has_topic(name) and not name.startswith(LITE_PREFIX)

    def topics(self) -> list[Topic]:
        """See `Catalogue`; lite topics are not listed."""
        return [each for each in super().topics() if not each.name.startswith(LITE_PREFIX)]

    def delete_topic(self, name: str) -> None:
        """See `Catalogue`; its lite topics go with it."""
        topic_id = self._shard.catalogue.topic(name).topic_id
        for lite_id in [lite for lite, parent in self._parents.items() if parent == topic_id]:
            self._delete_lite(lite_id)
        super().delete_topic(name)

    def _delete_lite(self, lite_id: int) -> None:
        state = self._shard.catalogue.topics_by_id[lite_id]
        record = self._shard.catalogue.plan_topic_deletion(state.topic.name, self._advance())
        self._put_catalogue(record)
        del self._parents[lite_id]
        self._counters.forget_topic(state.topic.name, self._shard.catalogue.groups)

    # Sending

    def _plan_send(
        self, state: TopicState, messages: Sequence[NewMessage], queue_id: int
    ) -> list[MessageRecord]:
        if state.topic.topic_type is not _LITE:
            return super()._plan_send(state, messages, queue_id)
        by_name: dict[str, list[NewMessage]] = {}
        for message in messages:
            by_name.setdefault(message.lite_topic, []).append(message)
        planned: dict[str, Iterator[MessageRecord]] = {}
        for name, of_name in by_name.items():
            lite = self._lite_topic(state, name)
            planned[name] = iter(plan_send(lite, of_name, self._now(), 0))
        return [next(planned[message.lite_topic]) for message in messages]

    def _redrive_target(self, topic: TopicState, message: MessageRecord) -> TopicState:
        if topic.topic.topic_type is not TopicType.LITE:
            return super()._redrive_target(topic, message)
        return self._lite_topic(topic, wire.text_field(message.system, wire.LITE_TOPIC))

    def _lite_topic(self, parent: TopicState, lite_topic: str) -> TopicState:
        """A lite topic a message is about to be sent to; its readers have their place there."""
        state = self._created_lite_topic(parent, lite_topic)
        if not state.next_offsets[0]:
            self._begin_readers(parent, state, lite_topic)
        return state

    def _created_lite_topic(self, parent: TopicState, lite_topic: str) -> TopicState:
        name = lite_topic_name(parent.topic.name, lite_topic)
        known = self._shard.catalogue.topics.get(name)
        if known is not None:
            return known
        if len(self._parents) >= self._settings.lite_topics_max:
            raise LiteTopicQuotaExceeded(
                f"there are {len(self._parents)} lite topics already (lite.topics_max)",
                "lite.topics_max",
            )
        topic = Topic(
            name,
            TopicType.LITE,
            queues=1,
            retention_ms=parent.topic.retention_ms,
            created_ms=self._now(),
        )
        # Time stands still: who redrives holds a progress.
        lease_ms = self._shard.lease_ms
        self._put_catalogue(self._shard.catalogue.plan_topic(topic, lease_ms))
        state = self._shard.catalogue.topic(name)
        self._parents[state.topic_id] = parent.topic_id
        return state

    def _begin_readers(self, parent: TopicState, lite: TopicState, lite_topic: str) -> None:
        """Put the groups that read a lite topic to its beginning, before its first message."""
        for name, is_read in self._lite.groups_of(lite_topic).items():
            group = self._shard.catalogue.groups.get(name)
            if group is None or group.group.lite_bind_topic != parent.topic.name:
                continue
            place = (group.group_id, lite.topic_id, 0)
            is_begun = self._shard.consumptions.find(place) is not None
            if (is_read or self._rules(group).is_wildcard) and not is_begun:
                self._put(SetOffset(self._shard.lease_ms, *place, 0))

    def _rules(self, group: GroupState) -> LiteRules:
        return rules_of(group.group, self._settings.lite_subscriptions_per_client)

    # Subscribing

    def sync_lite_subscription(self, change: LiteChange) -> None:
        """See `Messaging`."""
        parent = self._topic(change.topic)
        group = self._group(change.group)
        rules = self._rules(group)
        is_new = self._lite.of(change.group, change.client_id) is None
        outcome = self._lite.change(change, rules, self._clock.monotonic_ms())
        self._advance()
        try:
            self._begin(change, outcome, rules, is_new=is_new)
        except StoreFull:
            # The client says it again, and must not be taken for one that has begun there.
            self._lite.take_back(change, outcome)
            raise
        for client_id, lite_topic in outcome.evictions:
            self._events.lite_unsubscribed(client_id, change.group, lite_topic)
        place = group.group_id, parent.topic_id, ANY_QUEUE
        self._news_at(place).clients.add(change.client_id)
        self._commit.touch()

    def _begin(
        self, change: LiteChange, outcome: LiteOutcome, rules: LiteRules, *, is_new: bool
    ) -> None:
        """Put the group where it is to begin on what a change added; raises StoreFull."""
        parent, group = self._topic(change.topic), self._group(change.group)
        for name in outcome.restarted:
            self._restart_lite(group, lite_topic_name(change.topic, name))
        names: Iterable[str] = outcome.added
        is_known = change.action is LiteAction.COMPLETE_ADD
        if rules.is_wildcard:
            states = self._lite_topics_of(parent)
            # Who says again where to begin has begun there.
            names = [each for each, state in states if is_new or not self._has_begun(group, state)]
            is_known = any(self._has_begun(group, state) for _, state in states)
        for name in names:
            self._begin_lite(group, lite_topic_name(change.topic, name), change, is_known=is_known)

    def _restart_lite(self, group: GroupState, name: str) -> None:
        """Put the group back to the beginning of a lite topic it has read of."""
        state = self._shard.catalogue.topics.get(name)
        if state is None:
            return
        place = (group.group_id, state.topic_id, 0)
        if self._shard.consumptions.find(place) is not None:
            start = self._bounds(state, 0).min_offset
            self._put(SetOffset(self._shard.lease_ms, *place, start))

    def _has_begun(self, group: GroupState, state: TopicState) -> bool:
        return (group.group_id, state.topic_id) in self._shard.consumptions.by_pair

    def _begin_lite(
        self, group: GroupState, name: str, change: LiteChange, *, is_known: bool
    ) -> None:
        """Put the group where the client wants to begin on a lite topic that is there.

        Who says its whole set has subscribed before (`is_known`): a lite topic the group has no
        place on began since then, while nobody was there to see it, and is read whole.
        """
        state = self._shard.catalogue.topics.get(name)
        if state is None:
            return
        place = (group.group_id, state.topic_id, 0)
        progress = self._shard.consumptions.find(place)
        bounds = self._bounds(state, 0)
        first = 0 if is_known else bounds.max_offset
        start = start_of(change, progress, first, bounds.max_offset)
        if start is not None:
            start = min(max(start, bounds.min_offset), bounds.max_offset)
            self._put(SetOffset(self._shard.lease_ms, *place, start))

    def _lite_topics_of(self, parent: TopicState) -> list[tuple[str, TopicState]]:
        prefix = len(lite_topic_name(parent.topic.name, ""))
        topics = self._shard.catalogue.topics_by_id
        return [
            (topics[lite].topic.name[prefix:], topics[lite])
            for lite, parent_id in self._parents.items()
            if parent_id == parent.topic_id
        ]

    # Receiving

    def _receive_lite(self, query: ReceiveQuery, group: GroupState) -> list[Delivery]:
        bound = group.group.lite_bind_topic
        if bound != query.topic:
            raise BadRequest(f"group {query.group} is bound to {bound}, not to {query.topic}")
        parent = self._topic(query.topic)
        self._check_readable(group, parent, query)
        self._advance()
        if query.auto_renew:
            self._live_clients.add(query.client_id)
        matcher = self._shard.matchers.of(query.filter)
        deliveries: list[Delivery] = []
        most = min(query.max_messages, self._lite_room(group, parent))
        for state in self._readable(group, parent, query.client_id):
            room = most - len(deliveries)
            if room <= 0:
                break
            try:
                if not self._has_begun(group, state):
                    self._put(SetOffset(self._shard.lease_ms, group.group_id, state.topic_id, 0, 0))
                consumption = self._shard.consumptions.of(group.group_id, state.topic_id)
                assert consumption is not None, "it was begun"
                plan = self._shard.plan_fifo_receive(
                    consumption, state, 0, matcher, self._demand(query, group, room)
                )
                deliveries += self._carry_out(plan, group, parent)
                if plan.is_more:
                    place = self._place(group, parent, query)
                    self._news_at(place).clients.add(query.client_id)
                    self._commit.touch()
            except (StoreFull, ReadFailed):
                # Of this one there is nothing now. What has its lease is delivered: else this
                # would be an attempt nobody made.
                if not deliveries:
                    raise
                break
        return deliveries

    def _lite_room(self, group: GroupState, parent: TopicState) -> int:
        """How many messages more the group allows to be in flight, of all lite topics together.

        Of each there is one batch: who does not ask for a bound needs none, nor the counting.
        """
        most = self._inflight_max(group)
        if INFLIGHT_ATTRIBUTE in group.group.attributes:
            by_pair = self._shard.consumptions.by_pair
            for lite_id, parent_id in self._parents.items():
                if parent_id == parent.topic_id:
                    consumption = by_pair.get((group.group_id, lite_id))
                    most -= 0 if consumption is None else consumption.inflight
        return most

    def _demand(self, query: ReceiveQuery, group: GroupState, room: int) -> Demand:
        return Demand(
            self._shard.lease_ms,
            self._shard.next_lease_id(),
            room,
            query.invisible_ms,
            group.group.max_attempts,
            query.client_id if query.auto_renew else "",
        )

    def _readable(
        self, group: GroupState, parent: TopicState, client_id: str
    ) -> Iterator[TopicState]:
        """The lite topics of a client that have something it may have now, in turn."""
        states = self._subscribed(group, parent, client_id)
        if not states:
            return
        self._lite_turn += 1
        turn = self._lite_turn % len(states)
        for state in (*states[turn:], *states[:turn]):
            if self._has_something(group.group_id, state):
                yield state

    def _has_something(self, group_id: int, state: TopicState) -> bool:
        consumption = self._shard.consumptions.by_pair.get((group_id, state.topic_id))
        return has_something(consumption, state.next_offsets[0])

    def _subscribed(
        self, group: GroupState, parent: TopicState, client_id: str
    ) -> list[TopicState]:
        held = self._lite.of(group.group.name, client_id)
        if held is None:
            return []
        if rules_of(group.group, self._settings.lite_subscriptions_per_client).is_wildcard:
            return self._something_of_all(group, parent)
        return list(self._lite_states(parent.topic.name, held.names))

    def _lite_states(self, parent: str, names: Iterable[str]) -> Iterator[TopicState]:
        """Those of some lite topics that are there."""
        topics = self._shard.catalogue.topics
        for name in names:
            state = topics.get(lite_topic_name(parent, name))
            if state is not None:
                yield state

    def _something_of_all(self, group: GroupState, parent: TopicState) -> list[TopicState]:
        """Those of all lite topics that have something; who is served in a turn shares one look."""
        pair = group.group_id, parent.topic_id
        looked_up = {} if self._looked_up is None else self._looked_up
        if pair not in looked_up:
            topics_by_id = self._shard.catalogue.topics_by_id
            all_of = (topics_by_id[lite] for lite, of in self._parents.items() if of == pair[1])
            looked_up[pair] = [each for each in all_of if self._has_something(pair[0], each)]
        return looked_up[pair]

    @contextmanager
    def _one_look(self) -> Iterator[None]:
        self._looked_up = {}
        try:
            yield
        finally:
            self._looked_up = None

    # Waiting

    def _serve_turn(self) -> None:
        with self._one_look():
            super()._serve_turn()

    def _place(self, group: GroupState, topic: TopicState, query: ReceiveQuery) -> Place:
        """Lite topics have no queues to wait at, whichever one an ordered group's client names."""
        if group.group.lite_bind_topic:
            return group.group_id, topic.topic_id, ANY_QUEUE
        return super()._place(group, topic, query)

    def _news_at(self, place: Place) -> LiteNews:
        news = self._news.get(place)
        if news is None:
            news = self._news[place] = LiteNews()
        return news

    def _collect_wakes(self) -> None:
        for topic_id, _ in self._shard.arrived:
            parent_id = self._parents.get(topic_id)
            if parent_id is not None:
                for place in self._polling.places_of(parent_id):
                    self._news_at(place).names.add(self._lite_name(topic_id))
        for group_id, topic_id, _ in self._shard.consumptions.became_ready:
            parent_id = self._parents.get(topic_id)
            if parent_id is not None:
                news = self._news_at((group_id, parent_id, ANY_QUEUE))
                news.names.add(self._lite_name(topic_id))
                group = self._shard.catalogue.groups_by_id[group_id].group
                news.is_for_all = INFLIGHT_ATTRIBUTE in group.attributes
        super()._collect_wakes()

    def _lite_name(self, lite_id: int) -> str:
        name = self._shard.catalogue.topics_by_id[lite_id].topic.name
        return name[len(lite_topic_name(parent_of(name), "")) :]

    def _wake(self) -> None:
        super()._wake()
        news, self._news = self._news, {}
        with self._one_look():
            self._tell(news)

    def _tell(self, news: dict[Place, LiteNews]) -> None:
        budget = _SERVED_PER_TURN
        for place, what in news.items():
            group = self._shard.catalogue.groups_by_id.get(place[0])
            waiters = self._polling.at(place) if group is not None else ()
            is_wildcard = group is not None and self._rules(group).is_wildcard
            for waiter in waiters:
                assert isinstance(waiter, Waiter), "pulls wait elsewhere"
                if not self._concerns(what, waiter.query, is_wildcard=is_wildcard):
                    continue
                if not budget or self._wake_bytes_left <= 0:
                    self._news[place] = what
                    self._commit.touch()
                    break
                if self._serve(waiter):
                    budget -= 1
                elif is_wildcard:
                    break  # Nor is there anything for the next one.

    def _concerns(self, news: LiteNews, query: ReceiveQuery, *, is_wildcard: bool) -> bool:
        held = self._lite.of(query.group, query.client_id)
        if is_wildcard or held is None:
            # That one finds nothing who has yet to say that it reads means nothing to the others.
            return held is not None
        if news.is_for_all or query.client_id in news.clients:
            return True
        # One of a thousand readers got it: the others need not look through all that they read.
        group_id, topics = self._shard.catalogue.groups[query.group].group_id, self._lite_states
        common = news.names & held.names.keys()
        return any(self._has_something(group_id, each) for each in topics(query.topic, common))

    # Ending

    def client_gone(self, client_id: str) -> None:
        """See `Messaging`."""
        self._lite.drop_client(client_id)
        super().client_gone(client_id)

    def _do_later(self) -> None:
        super()._do_later()
        now_ms = self._clock.monotonic_ms()
        if self._has_lite and now_ms >= self._lite_sweep_ms:
            self._lite_sweep_ms = now_ms + _SWEEP_EVERY_MS
            self._lite.expire(now_ms)
            self._expire_lite_topics()

    def _expire_lite_topics(self) -> None:
        """Delete lite topics that were idle for as long as their parent allows."""
        if self._lite_swept >= len(self._parents):
            self._lite_swept = 0
        some = list(islice(self._parents.items(), self._lite_swept, None))[:_SWEPT_PER_TURN]
        topics = self._shard.catalogue.topics_by_id
        now_ms = self._believed.of(self._now())
        deleted = 0
        for lite_id, parent_id in some:
            allowed_ms = topics[parent_id].topic.lite_expiration_ms
            lives_ms = max(allowed_ms, _EXPIRATION_MIN_MS)
            if not allowed_ms or self._idle_ms(topics[lite_id], now_ms) < lives_ms:
                self._lite_swept += 1
                continue
            self._delete_lite(lite_id)
            deleted += 1
            if deleted == _DELETED_PER_TURN:
                self._lite_sweep_ms = self._clock.monotonic_ms() + _DELETE_MORE_MS
                return

    def _idle_ms(self, state: TopicState, now_ms: int) -> int:
        # Not its visible end: a message may be on its way to the disk.
        end = state.next_offsets[0]
        last_ms = state.topic.created_ms
        try:
            if end > self._log.min_offset(state.topic_id, 0):
                last_ms = self._log.timestamp(state.topic_id, 0, end - 1)
        except (CorruptFrame, ReadFailed):
            return 0  # Nobody knows: not now.
        return now_ms - last_ms

    def _next_deadline_ms(self) -> int:
        first = super()._next_deadline_ms()
        return min(first, self._lite_sweep_ms) if self._has_lite else first

    @property
    def _has_lite(self) -> bool:
        """Whether there is a lite topic, or somebody who reads one once it is there."""
        return bool(self._parents) or self._lite.has_clients
