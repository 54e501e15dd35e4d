"""Receiving what is there now."""

from cosmodrome_server.broker.settle_verbs import SettleVerbs
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.progress import Place
from cosmodrome_server.core.receive import Demand, Found, ReceivePlan
from cosmodrome_server.core.records import Pop
from cosmodrome_server.errors import BadRequest, Forbidden, StoreFull
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.receipt_handle import SUFFIXES, ReceiptHandle

# What a client may call itself and its receives; both are written with every delivery.
_NAME_CHARS_MAX = 1_024
INFLIGHT_ATTRIBUTE = "inflight.max"


class ReceiveVerbs(SettleVerbs):
    """Implements receiving of `broker.interface.Messaging`; waiting is a layer above."""

    def _open_receives(self) -> None:
        # Places where the next turn looks again for whom it finds waiting.
        self._to_wake: dict[Place, None] = {}

    def receive(self, query: ReceiveQuery) -> list[Delivery]:
        """See `Messaging`."""
        self._check_names(query)
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
        room = query.max_messages
        if room > most - consumption.inflight:
            self._capped.add(consumption.pair)
            room = max(0, most - consumption.inflight)
            # What a repeated receive gets is in flight already.
            if not (room or attempt_id):
                return []
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
    def _check_names(query: ReceiveQuery) -> None:
        if len(query.attempt_id) > _NAME_CHARS_MAX or len(query.client_id) > _NAME_CHARS_MAX:
            raise BadRequest(f"client id and attempt id have at most {_NAME_CHARS_MAX} characters")

    @staticmethod
    def _check_readable(group: GroupState, topic: TopicState, query: ReceiveQuery) -> None:
        if not group.group.is_consumable:
            raise Forbidden(f"consumer group {query.group} may not consume (is_consumable is off)")
        if not topic.is_readable:
            raise Forbidden(
                f"topic {query.topic} is not readable: its permission is {topic.topic.permission}"
            )
        if group.group.is_fifo and not ANY_QUEUE <= query.queue_id < topic.topic.queues:
            last = topic.topic.queues - 1
            raise BadRequest(f"topic {query.topic} has queues 0 to {last}, not {query.queue_id}")


def _queue_order(delivery: Delivery) -> tuple[int, int]:
    return delivery.message.queue_id, delivery.message.queue_offset
