"""Pops and acknowledgements of a start, applied in the runs in which they lie.

    head   length · kind · at · group · topic · queue · lease · offset     read by the log
    tail   what else a pop says: for most pops of a consumer the same bytes, read once

A start applies hundreds of thousands of them. What one of them does to the state is what it does
live, by the same methods; what neighbours have in common - their group and topic, the time until
the next lease ends, the terms of a pop - is looked up once, and no record becomes an object. What
is not plain (an ordered group, a lease that is taken over, a progress that is at rest or lost)
is applied by itself, as live.
"""

from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.consumptions import Consumptions
from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import Ack, Pop
from cosmodrome_server.model.log import DELIVERY_HEAD, DeliveryHead, RecordKind, ReplayedDeliveries

_ACK = int(RecordKind.ACK)
# Behind the head that all state records have.
_PAYLOAD_AT = 5
# Tails known by heart; as many as there are consumers that name themselves.
_KNOWN_MAX = 4_096

# Of a plain pop: count, mask, invisible_ms, attempt, client_id. See `Pop`.
_Terms = tuple[int, int, int, int, str]


class DeliveryRuns:
    """Applies runs to the consumptions of a shard.

    Attributes:
        lease_ms: The lease clock, as far as the records of the last run brought it.
    """

    def __init__(self, consumptions: Consumptions) -> None:
        self._consumptions = consumptions
        self._known: dict[bytes, _Terms] = {}
        self.lease_ms = 0

    def apply(self, run: ReplayedDeliveries, lease_ms: int) -> int:
        """Apply the records of a run; return how many are about an unknown group or topic.

        Args:
            run: At least one record.
            lease_ms: The lease clock before it.
        """
        consumptions, tails = self._consumptions, iter(run.tails)
        group = topic = -1
        orphans = 0
        consumption: Consumption | None = None
        awake: dict[int, Progress] = {}
        for head in run.heads:
            _, kind, at_ms, group_id, topic_id, queue_id, lease_id, queue_offset = head
            if at_ms > lease_ms or lease_ms >= consumptions.due_ms:
                lease_ms = max(lease_ms, at_ms)
                consumptions.advance(lease_ms)
                group = -1
            if topic_id != topic or group_id != group:
                group, topic = group_id, topic_id
                consumption = consumptions.by_pair.get((group_id, topic_id))
                awake = {} if consumption is None else consumption.awake
            progress = awake.get(queue_id)
            tail = b"" if kind == _ACK else next(tails)
            if consumption is None or progress is None:
                orphans += self._apply_one(head, tail)
                group = -1
            elif kind == _ACK:
                lease = progress.settle(lease_id, queue_offset)
                consumptions.settled(consumption, progress, lease)
            else:
                terms = self._known.get(tail)
                if terms is None:
                    pop = _pop_of(head, tail)
                    self._learn(tail, pop)
                    consumptions.apply_pop(pop)
                    continue
                count, mask, invisible_ms, attempt, client_id = terms
                lease = Lease(lease_id, queue_offset, mask, at_ms + invisible_ms, attempt)
                if client_id:
                    lease.client_id, lease.popped_ms = client_id, at_ms
                progress.lend(lease, count)
                consumptions.popped(consumption, progress, lease, count)
        self.lease_ms = lease_ms
        return orphans

    def _learn(self, tail: bytes, pop: Pop) -> None:
        """Keep the terms of a pop, if it is a plain one."""
        if pop.mask and not (pop.replaces or pop.held or pop.attempt_id):
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            terms = pop.count, pop.mask, pop.invisible_ms, pop.attempt, pop.client_id
            self._known[tail] = terms

    def _apply_one(self, head: DeliveryHead, tail: bytes) -> bool:
        """Apply one record as live; return whether its group or topic is unknown."""
        try:
            if head[1] == _ACK:
                self._consumptions.apply_ack(Ack(*head[2:]))
            else:
                self._consumptions.apply_pop(_pop_of(head, tail))
        except KeyError:
            return True
        return False


def _pop_of(head: DeliveryHead, tail: bytes) -> Pop:
    return Pop.decode(DELIVERY_HEAD.pack(*head)[_PAYLOAD_AT:] + tail)
