"""Receiving: now, or when something arrives."""

from cosmodrome_server.broker.settle_verbs import SettleVerbs
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.long_polling import PULL_GROUP_ID, AnyWaiter, LongPolling
from cosmodrome_server.core.progress import Place
from cosmodrome_server.core.receive import Demand, Found, ReceivePlan
from cosmodrome_server.core.records import Pop
from cosmodrome_server.errors import BadRequest, BrokerError, Forbidden, StoreFull
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.model.receipt_handle import SUFFIXES, ReceiptHandle

# Waiters served in one turn of the loop; the rest is served in the next.
_SERVED_PER_TURN = 64
# What a client may call itself and its receives; both are written with every delivery.
_NAME_CHARS_MAX = 1_024
INFLIGHT_ATTRIBUTE = "inflight.max"


class ReceiveVerbs(SettleVerbs):
    """Implements receiving and waiting of `broker.interface.Messaging`."""

    def _open_polling(self) -> None:
        self._polling = LongPolling(self._settings.waiters_max, self._settings.waiters_per_group)
        self._to_wake: dict[Place, None] = {}
        self._waits_end = False

    def receive(self, query: ReceiveQuery) -> list[Delivery]:
        """See `Messaging`."""
        shard = self._shard
        group = shard.catalogue.groups.get(query.group) or self._group(query.group)
        if group.group.lite_bind_topic:
            return self._receive_lite(query, group)
        topic = shard.catalogue.topics.get(query.topic) or self._topic(query.topic)
        self._check_readable(group, topic, query)
        lease_ms = self._advance()
        consumption = shard.consumptions.by_pair.get((group.group_id, topic.topic_id))
        if consumption is None or consumption.queues < topic.topic.queues:
            consumption = self._begin_on_topic(group, topic)
        is_fifo = group.group.is_fifo
        attempt_id = query.attempt_id if is_fifo else ""
        most = self._settings.inflight_per_group
        if group.group.attributes:
            most = self._inflight_max(group)
        room = min(query.max_messages, most - consumption.inflight)
        if room <= 0:
            self._capped.add(consumption.pair)
            if not attempt_id:
                return []
            room = 0  # What a repeated receive gets is in flight already.
        client_id = query.client_id if query.auto_renew else ""
        if client_id:
            self._live_clients.add(client_id)
        demand = Demand(
            lease_ms,
            shard.next_lease_id(),
            room,
            query.invisible_ms,
            group.group.max_attempts,
            client_id,
            attempt_id,
        )
        matcher = shard.matchers.of(query.filter)
        if is_fifo:
            plan = shard.plan_fifo_receive(consumption, topic, query.queue_id, matcher, demand)
        else:
            plan = shard.plan_receive(consumption, topic, matcher, demand)
        deliveries = self._carry_out(plan, group, topic)
        if plan.is_more:
            self._to_wake[
                group.group_id, topic.topic_id, query.queue_id if is_fifo else ANY_QUEUE
            ] = None
            self._commit.touch()
        return deliveries

    def _receive_lite(self, query: ReceiveQuery, group: GroupState) -> list[Delivery]:
        """What a client of a group that is bound to a LITE topic gets of its lite topics."""
        raise NotImplementedError

    def _begin_on_topic(self, group: GroupState, topic: TopicState) -> Consumption:
        """Let a group begin on the queues of a topic on which it has not."""
        for record in self._shard.plan_begin(group.group_id, group.group, topic, self._now()):
            self._put(record)
        return self._shard.consumptions.by_pair[group.group_id, topic.topic_id]

    def _inflight_max(self, group: GroupState) -> int:
        allowed = self._settings.inflight_per_group
        own = group.group.attributes.get(INFLIGHT_ATTRIBUTE, "")
        return min(allowed, int(own)) if own.isdecimal() else allowed

    def _carry_out(self, plan: ReceivePlan, group: GroupState, topic: TopicState) -> list[Delivery]:
        deliveries: list[Delivery] = []
        try:
            for pop, found in plan.takes:
                self._put_pop(pop)
                if found:
                    self._deliver(pop, found, topic.topic.name, deliveries)
                    body_bytes = 0
                    for _, record in found:
                        body_bytes += len(record.body)
                    key = (topic.topic.name, group.group.name, pop.attempt > 1)
                    self._counters.delivered(key, len(found), body_bytes)
            for ack in plan.settled:
                self._put(ack)
        except StoreFull:
            # What has its lease is delivered: else this would be an attempt nobody made.
            if not deliveries:
                raise
        if plan.exhausted:
            self._shard.consumptions.exhausted.update(dict.fromkeys(plan.exhausted))
            self._commit.touch()
        self._counters.lost_messages += plan.lost
        if group.group.is_fifo and len(plan.takes) > 1:
            deliveries.sort(key=_queue_order)
        return deliveries

    def _deliver(self, pop: Pop, found: Found, topic: str, deliveries: list[Delivery]) -> None:
        base, attempt, invisible_ms = pop.base, pop.attempt, pop.invisible_ms
        sealed = self._handles.seal(
            ReceiptHandle(pop.group_id, pop.topic_id, pop.queue_id, base, pop.lease_id, attempt)
        )
        for queue_offset, record in found:
            handle = sealed + SUFFIXES[queue_offset - base]
            deliveries.append(Delivery(topic, record, handle, attempt, invisible_ms))

    @staticmethod
    def _check_readable(group: GroupState, topic: TopicState, query: ReceiveQuery) -> None:
        if len(query.attempt_id) > _NAME_CHARS_MAX or len(query.client_id) > _NAME_CHARS_MAX:
            raise BadRequest(f"client id and attempt id have at most {_NAME_CHARS_MAX} characters")
        if not group.group.is_consumable:
            raise Forbidden(f"consumer group {query.group} may not consume (is_consumable is off)")
        if not topic.is_readable:
            raise Forbidden(f"topic {query.topic} is not readable: its permission is write only")
        if group.group.is_fifo and not ANY_QUEUE <= query.queue_id < topic.topic.queues:
            last = topic.topic.queues - 1
            raise BadRequest(f"topic {query.topic} has queues 0 to {last}, not {query.queue_id}")

    # Waiting

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
            self._to_wake[group_id, topic_id, queue_id] = None
            self._to_wake[group_id, topic_id, ANY_QUEUE] = None

    def _wake(self) -> None:
        to_wake, self._to_wake = self._to_wake, {}
        budget = _SERVED_PER_TURN
        for place in to_wake:
            if self._wakes_each(place[1]):
                budget = self._wake_each(place, budget)
            while budget and (waiter := self._polling.first(place)) is not None:
                if not self._serve(waiter):
                    break
                budget -= 1
            if not budget:
                self._to_wake[place] = None
                self._commit.touch()

    def _wakes_each(self, topic_id: int) -> bool:
        """Whether a waiter that finds nothing says nothing about the next one."""
        raise NotImplementedError

    def _wake_each(self, place: Place, budget: int) -> int:
        for waiter in self._polling.at(place):
            if budget and self._serve(waiter):
                budget -= 1
        return budget

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
        self._polling.remove(waiter)
        waiter.is_open = False
        waiter.on_ready(deliveries)
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


def _queue_order(delivery: Delivery) -> tuple[int, int]:
    return delivery.message.queue_id, delivery.message.queue_offset
