"""The verbs about offsets, and pulling, which rests on nothing else."""

from cosmodrome_server.broker.waiting_verbs import WaitingVerbs
from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.long_polling import PULL_GROUP_ID, AnyWaiter
from cosmodrome_server.core.offsets import accumulation, check_bounds
from cosmodrome_server.core.progress import Place
from cosmodrome_server.core.records import SetOffset
from cosmodrome_server.errors import (
    BadRequest,
    BrokerError,
    CorruptFrame,
    Forbidden,
    IllegalOffset,
    MessageNotFound,
    OffsetNotFound,
)
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.queries import (
    Accumulation,
    Pulled,
    PullQuery,
    PullWaiter,
    QueueBounds,
)

# Offsets one pull looks at for messages that match.
_PULL_SCAN_MAX = 16_384
# What one pull reads of messages that do not match, each counted with what reading any costs: a
# filter that nothing matches must not hold the loop.
_PULL_PASSED_BYTES_MAX = 8 << 20
_READ_COST_BYTES = 2_048
# About how many bytes of bodies one pull returns.
_PULL_BYTES_MAX = 4 << 20
# Messages one pull reads together, as long as their bodies have fewer bytes on average: 32 large
# ones would be far more than a pull returns.
_PULL_TOGETHER = 64
_SMALL_BYTES = 16 << 10


class OffsetVerbs(WaitingVerbs):
    """Implements `broker.interface.Offsets` and the pull verbs of `Messaging`."""

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """See `Offsets`."""
        return self._bounds(self._queue_of(topic, queue_id), queue_id)

    def place_of(self, topic: str, queue_id: int) -> tuple[int, QueueBounds]:
        """The number of a topic, and what a queue of it holds; raises as `bounds`."""
        state = self._queue_of(topic, queue_id)
        return state.topic_id, self._bounds(state, queue_id)

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """See `Offsets`."""
        state = self._queue_of(topic, queue_id)
        found = self._log.offset_at(state.topic_id, queue_id, timestamp_ms)
        return min(found, state.visible_offsets[queue_id])

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int:
        """See `Offsets`."""
        state = self._queue_of(topic, queue_id)
        owner = self._shard.catalogue.group(group)
        progress = self._shard.consumptions.find((owner.group_id, state.topic_id, queue_id))
        if progress is None:
            raise OffsetNotFound(f"consumer group {group} committed nothing on {topic} {queue_id}")
        return progress.done.floor

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """See `Offsets`."""
        state = self._queue_of(topic, queue_id)
        owner = self._group(group)
        if queue_offset < 0:
            raise IllegalOffset(f"offset {queue_offset} is negative")
        progress = self._shard.consumptions.find((owner.group_id, state.topic_id, queue_id))
        if progress is not None and progress.is_reset_pending:
            return
        # Beyond the end it would pass over what is yet to come.
        queue_offset = min(queue_offset, state.next_offsets[queue_id])
        self._set_offset((owner.group_id, state.topic_id, queue_id), queue_offset)

    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """See `Offsets`."""
        state = self._queue_of(topic, queue_id)
        owner = self._shard.catalogue.group(group)
        bounds = self._bounds(state, queue_id)
        check_bounds(queue_offset, bounds.min_offset, bounds.max_offset)
        self._set_offset((owner.group_id, state.topic_id, queue_id), queue_offset, is_reset=True)

    def _set_offset(self, place: Place, queue_offset: int, *, is_reset: bool = False) -> None:
        self._put(SetOffset(self._advance(), *place, queue_offset, is_reset))

    def accumulation(self, group: str, topic: str) -> Accumulation:
        """See `Offsets`."""
        owner = self._shard.catalogue.group(group)
        state = self._shard.catalogue.topic(topic)
        consumption = self._shard.consumptions.of(owner.group_id, state.topic_id)
        return accumulation(consumption, state.topic_id, state.visible_offsets, self._log)

    def topics_of(self, group: str) -> list[str]:
        """See `Offsets`."""
        group_id = self._shard.catalogue.group(group).group_id
        topics = self._shard.catalogue.topics_by_id
        return sorted(
            topics[pair[1]].topic.name
            for pair in self._shard.consumptions.by_pair
            if pair[0] == group_id
        )

    def topics_by_group(self) -> dict[str, list[str]]:
        """See `Offsets`."""
        catalogue = self._shard.catalogue
        groups, topics = catalogue.groups_by_id, catalogue.topics_by_id
        found: dict[str, list[str]] = {}
        for group_id, topic_id in self._shard.consumptions.by_pair:
            name = topics[topic_id].topic.name
            found.setdefault(groups[group_id].group.name, []).append(name)
        for names in found.values():
            names.sort()
        return found

    # Pulling

    def pull(self, query: PullQuery) -> Pulled:
        """See `Messaging`."""
        state = self._queue_of(query.topic, query.queue_id)
        if not state.topic.permission.is_readable:
            raise Forbidden(
                f"topic {query.topic} is not readable: its permission is {state.topic.permission}"
            )
        bounds = self._bounds(state, query.queue_id)
        check_bounds(query.queue_offset, bounds.min_offset, bounds.max_offset)
        self._notice_reset(state, query, bounds)
        end = min(bounds.max_offset, query.queue_offset + _PULL_SCAN_MAX)
        if self._shard.matchers.of(query.filter).is_everything:
            return self._pull_all(state, query, end)
        return self._pull_matching(state, query, end)

    def _pull_all(self, state: TopicState, query: PullQuery, end: int) -> Pulled:
        """Read on until there is enough, neighbours together while they are small."""
        found: list[StoredMessage] = []
        at, room, step = query.queue_offset, _PULL_BYTES_MAX, 1
        while at < end and len(found) < query.max_messages and room > 0:
            stop = min(end, at + step, at + query.max_messages - len(found))
            records = self._log.read_many(state.topic_id, query.queue_id, at, stop)
            size = 0
            for queue_offset, record in enumerate(records, at):
                # Once more alone when it could not be read: that counts what is lost.
                message = (
                    self._read(state, query, queue_offset)
                    if record is None
                    else _stored(query, queue_offset, record)
                )
                if message is not None:
                    found.append(message)
                    size += len(message.body)
            at, room = stop, room - size
            step = min(2 * step, _PULL_TOGETHER) if size <= step * _SMALL_BYTES else 1
        return Pulled(found, at)

    def _pull_matching(self, state: TopicState, query: PullQuery, end: int) -> Pulled:
        """Look at one message after the other; those of another tag are not read."""
        found: list[StoredMessage] = []
        at, room = query.queue_offset, _PULL_BYTES_MAX
        hashes = None if at == end else self._shard.matchers.of(query.filter).tag_hashes
        stored = (
            None
            if hashes is None
            else self._log.tag_hashes(state.topic_id, query.queue_id, at, end)
        )
        matches, passed = self._shard.matchers.of(query.filter).matches, _PULL_PASSED_BYTES_MAX
        while at < end and len(found) < query.max_messages and room > 0 and passed > 0:
            if stored is None or hashes is None or stored[at - query.queue_offset] in hashes:
                record = self._record(state, query, at)
                if record is not None and matches(record):
                    found.append(_stored(query, at, record))
                    room -= len(record.body)
                elif record is not None:
                    passed -= _READ_COST_BYTES + len(record.body)
            at += 1
        return Pulled(found, at)

    def _read(self, state: TopicState, query: PullQuery, at: int) -> StoredMessage | None:
        record = self._record(state, query, at)
        return None if record is None else _stored(query, at, record)

    def _record(self, state: TopicState, query: PullQuery, at: int) -> MessageRecord | None:
        try:
            return self._log.read(state.topic_id, query.queue_id, at)
        except (CorruptFrame, MessageNotFound) as error:
            self._counters.lost_messages += isinstance(error, CorruptFrame)
            return None

    def _notice_reset(self, state: TopicState, query: PullQuery, bounds: QueueBounds) -> None:
        """A consumer that pulls where its group was reset to knows of it: commits count again.

        Where retention took that offset, it pulls from the first that is left.
        """
        owner = self._shard.catalogue.groups.get(query.group)
        if owner is None:
            return
        place = (owner.group_id, state.topic_id, query.queue_id)
        progress = self._shard.consumptions.find(place)
        if (
            progress is not None
            and progress.is_reset_pending
            and max(progress.cursor, bounds.min_offset) == query.queue_offset
        ):
            self._set_offset(place, query.queue_offset)

    def wait_pull(self, waiter: PullWaiter) -> None:
        """See `Messaging`."""
        if self._waits_end:
            self._turn_away(waiter)
            return
        query = waiter.query
        state = self._queue_of(query.topic, query.queue_id)
        place = (PULL_GROUP_ID, state.topic_id, query.queue_id)
        self._polling.add(place, waiter)
        self._to_wake[place] = None
        self._commit.touch()

    def _serve(self, waiter: AnyWaiter) -> bool:
        if not isinstance(waiter, PullWaiter):
            return super()._serve(waiter)
        try:
            pulled = self.pull(waiter.query)
        except BrokerError:
            pulled = Pulled([], waiter.query.queue_offset)
        if not pulled.messages and pulled.next_offset == waiter.query.queue_offset:
            return False
        self._polling.remove(waiter)
        waiter.is_open = False
        waiter.on_ready(pulled)
        return True

    def _give_up(self, waiter: AnyWaiter) -> None:
        if isinstance(waiter, PullWaiter):
            waiter.on_ready(Pulled([], waiter.query.queue_offset))
        else:
            super()._give_up(waiter)

    def _queue_of(self, topic: str, queue_id: int) -> TopicState:
        state = self._topic(topic)
        if not 0 <= queue_id < state.topic.queues:
            raise BadRequest(
                f"topic {topic} has queues 0 to {state.topic.queues - 1}, not {queue_id}"
            )
        return state

    def _bounds(self, state: TopicState, queue_id: int) -> QueueBounds:
        end = state.visible_offsets[queue_id]
        return QueueBounds(min(self._log.min_offset(state.topic_id, queue_id), end), end)


def _stored(query: PullQuery, queue_offset: int, record: MessageRecord) -> StoredMessage:
    return StoredMessage(
        query.topic,
        query.queue_id,
        queue_offset,
        record.store_timestamp_ms,
        record.system,
        record.user,
        record.body,
    )
