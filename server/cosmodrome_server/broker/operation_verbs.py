"""The verbs of operators."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cosmodrome_server.broker.timer_verbs import TimerVerbs
from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.dead_letter import REDRIVE_GROUP, redriven_of
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import Ack, SetOffset
from cosmodrome_server.errors import (
    BrokerError,
    CorruptFrame,
    MessageNotFound,
    OverloadedError,
    StoreError,
    TopicNotFound,
    Unsupported,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.queries import (
    MessageSearch,
    QueueBounds,
    Redriven,
    RedriveQuery,
    Waiting,
)
from cosmodrome_server.model.topic import dead_letter_topic

# What one call, which is one turn of the loop, looks at: letters it reads, and offsets.
_REDRIVE_READ_MAX = 1_024
_REDRIVE_BYTES_MAX = 16 << 20
_REDRIVE_SCAN_MAX = 16_384
# Searches that may wait for their turn.
_SEARCHES_MAX = 16
_EVER_MS = 1 << 62

# (topic id, key, [begin, end) in ms, at most) → messages at their places, newest first. Blocks.
Finder = Callable[[int, str, tuple[int, int], int], list[MessageRecord]]


class OperationVerbs(TimerVerbs):
    """Implements `broker.interface.Operations`."""

    def redrive(self, query: RedriveQuery) -> Redriven:
        """See `Operations`."""
        self._shard.catalogue.group(query.group)
        source = self._shard.catalogue.topics.get(dead_letter_topic(query.group))
        if source is None:
            return Redriven(0, 0)
        lease_ms = self._advance()
        progress = self._redrive_progress(source)
        bounds = self._bounds(source, 0)
        moved = looked_at = next_offset = 0
        bytes_left = _REDRIVE_BYTES_MAX
        stranded: list[str] = []
        for queue_offset in self._redrivable(query, bounds, progress):
            is_enough = looked_at == _REDRIVE_READ_MAX or bytes_left <= 0
            if is_enough or moved == query.max_messages:
                next_offset = queue_offset
                break
            looked_at += 1
            message = self._dead_letter_at(source, queue_offset)
            bytes_left -= 0 if message is None else len(message.body)
            origin = None if message is None else wire.dead_letter_origin(message.system)
            if message is None or origin is None or query.topic not in {"", origin[0]}:
                continue
            target = self._shard.catalogue.topics.get(origin[0])
            if target is None:
                stranded.append(origin[0])
                continue
            if not query.dry_run:
                target = self._redrive_target(target, message)
                self._put_messages([redriven_of(message, target, self._now())])
                self._put(Ack(lease_ms, *progress.place, 0, queue_offset))
            moved += 1
        if stranded and not (moved or next_offset):
            raise TopicNotFound(
                f"topic {stranded[0]} does not exist, where {len(stranded)} dead letters of "
                f"{query.group} came from: create it, and redrive again"
            )
        held = bounds.max_offset - bounds.min_offset
        return Redriven(moved, held - self.redriven(source.topic.name), next_offset)

    def redriven(self, topic: str) -> int:
        """See `Operations`."""
        source = self._shard.catalogue.topics.get(topic)
        redriver = self._shard.catalogue.groups.get(REDRIVE_GROUP)
        if source is None or redriver is None:
            return 0
        place = (redriver.group_id, source.topic_id, 0)
        if self._shard.consumptions.find(place) is None:
            return 0
        bounds = self._bounds(source, 0)
        done = self._shard.consumptions.at(place).done
        return done.count(bounds.min_offset, bounds.max_offset)

    def _redrive_target(self, topic: TopicState, message: MessageRecord) -> TopicState:
        """Where a dead letter goes back to, of the topic it came from."""
        del message
        return topic

    def waiting(self) -> Waiting:
        """See `Operations`; delayed messages are counted together, under ""."""
        topics = self._shard.catalogue.topics_by_id
        counts = {
            topics[topic_id].topic.name: both
            for topic_id, both in self._shard.transactions.counts().items()
        }
        half = {name: asked for name, (asked, _) in counts.items() if asked}
        parked = {name: left for name, (_, left) in counts.items() if left}
        timers, now_ms = self._shard.timers, self._now()
        delayed = len(timers)
        return Waiting(
            {"": delayed} if delayed else {},
            half,
            parked,
            max(0, now_ms - timers.next_deadline_ms()),
            timers.overdue(now_ms),
            len(timers.uncopied),
        )

    # Looking for messages

    def _open_search(self, finder: Finder | None) -> None:
        self._finder = finder
        self._searches = 0
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix="search")

    def find(
        self, search: MessageSearch, on_found: Callable[[list[StoredMessage] | BrokerError], None]
    ) -> None:
        """See `Operations`."""
        topic = self._shard.catalogue.topic(search.topic)
        if self._finder is None:
            raise Unsupported("this broker's log has no key index")
        if self._searches >= _SEARCHES_MAX:
            raise OverloadedError(f"{self._searches} searches wait already, try again later")
        self._searches += 1
        job = partial(
            self._finder,
            topic.topic_id,
            search.key,
            (search.begin_ms, search.end_ms or _EVER_MS),
            search.max_messages,
        )
        done = self._loop.run_in_executor(self._searcher, job)
        done.add_done_callback(partial(self._found, topic, on_found))

    def _found(
        self,
        topic: TopicState,
        on_found: Callable[[list[StoredMessage] | BrokerError], None],
        done: "asyncio.Future[list[MessageRecord]]",
    ) -> None:
        self._searches -= 1
        try:
            records = done.result()
        except OSError as error:
            on_found(StoreError(f"the log cannot be searched: {error}"))
            return
        except BrokerError as error:
            on_found(error)
            return
        name = topic.topic.name
        on_found(
            [
                StoredMessage(
                    name,
                    record.queue_id,
                    record.queue_offset,
                    record.store_timestamp_ms,
                    record.system,
                    record.user,
                    record.body,
                )
                for record in records
            ]
        )

    def _redrive_progress(self, source: TopicState) -> Progress:
        """Which dead letters were sent back; its done set is all that is used of it."""
        if REDRIVE_GROUP not in self._shard.catalogue.groups:
            self.create_group(Group(REDRIVE_GROUP, created_ms=self._now()))
        group_id = self._shard.catalogue.group(REDRIVE_GROUP).group_id
        place = (group_id, source.topic_id, 0)
        if self._shard.consumptions.find(place) is None:
            self._put(SetOffset(self._shard.lease_ms, *place, 0))
        return self._shard.consumptions.at(place)

    def _redrivable(
        self, query: RedriveQuery, bounds: QueueBounds, progress: Progress
    ) -> Iterator[int]:
        """Those asked for that did not go back yet; at last where one call has looked enough."""
        start = max(bounds.min_offset, progress.done.floor, query.from_offset)
        end = min(bounds.max_offset, start + _REDRIVE_SCAN_MAX)
        for queue_offset in query.queue_offsets or range(start, end):
            if queue_offset not in progress.done and start <= queue_offset < bounds.max_offset:
                yield queue_offset
        if end < bounds.max_offset and not query.queue_offsets:
            yield end

    def _dead_letter_at(self, source: TopicState, queue_offset: int) -> MessageRecord | None:
        try:
            return self._log.read(source.topic_id, 0, queue_offset)
        except (CorruptFrame, MessageNotFound) as error:
            self._counters.lost_messages += isinstance(error, CorruptFrame)
            return None
