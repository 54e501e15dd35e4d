"""The verbs of operators."""

from collections.abc import Iterator, Sequence

from cosmodrome_server.broker.timer_verbs import TimerVerbs
from cosmodrome_server.core.catalogue import TopicState
from cosmodrome_server.core.dead_letter import REDRIVE_GROUP, redriven_of
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import Ack, SetOffset
from cosmodrome_server.errors import CorruptFrame, MessageNotFound
from cosmodrome_server.model import wire
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord
from cosmodrome_server.model.queries import Redriven
from cosmodrome_server.model.topic import dead_letter_topic

# Dead letters one redrive looks at for those it was asked for.
_REDRIVE_SCAN_MAX = 65_536


class OperationVerbs(TimerVerbs):
    """Implements `broker.interface.Operations`."""

    def redrive(
        self,
        group: str,
        *,
        topic: str,
        queue_offsets: Sequence[int],
        max_messages: int,
        dry_run: bool,
    ) -> Redriven:
        """See `Operations`."""
        self._shard.catalogue.group(group)
        source = self._shard.catalogue.topics.get(dead_letter_topic(group))
        if source is None:
            return Redriven(0, 0)
        lease_ms = self._advance()
        progress = self._redrive_progress(source)
        moved = 0
        for queue_offset, message in self._dead_letters(source, progress, queue_offsets):
            if moved == max_messages:
                break
            origin = wire.dead_letter_origin(message.system)
            if origin is None or topic not in {"", origin[0]}:
                continue
            target = self._shard.catalogue.topic(origin[0])
            if not dry_run:
                self._put_messages([redriven_of(message, target, self._now())])
                self._put(Ack(lease_ms, *progress.place, 0, queue_offset))
            moved += 1
        bounds = self._bounds(source, 0)
        done = progress.done.count(bounds.min_offset, bounds.max_offset)
        return Redriven(moved, bounds.max_offset - bounds.min_offset - done)

    def _redrive_progress(self, source: TopicState) -> Progress:
        """Which dead letters were sent back; its done set is all that is used of it."""
        if REDRIVE_GROUP not in self._shard.catalogue.groups:
            self.create_group(Group(REDRIVE_GROUP, created_ms=self._now()))
        group_id = self._shard.catalogue.group(REDRIVE_GROUP).group_id
        place = (group_id, source.topic_id, 0)
        if self._shard.consumptions.find(place) is None:
            self._put(SetOffset(self._shard.lease_ms, *place, 0))
        return self._shard.consumptions.at(place)

    def _dead_letters(
        self, source: TopicState, progress: Progress, wanted: Sequence[int]
    ) -> Iterator[tuple[int, MessageRecord]]:
        bounds = self._bounds(source, 0)
        start = max(bounds.min_offset, progress.done.floor)
        end = min(bounds.max_offset, start + _REDRIVE_SCAN_MAX)
        for queue_offset in wanted or range(start, end):
            if queue_offset in progress.done or not start <= queue_offset < bounds.max_offset:
                continue
            try:
                yield queue_offset, self._log.read(source.topic_id, 0, queue_offset)
            except (CorruptFrame, MessageNotFound):
                self._counters.lost_messages += 1
