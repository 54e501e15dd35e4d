"""One shard: its machines put together, and the one door through which records change them.

                    ┌─ catalogue       topics, groups, kept values
                    ├─ consumptions    who was delivered what, and until when
    apply(record) ──┼─ transactions    half messages
                    ├─ timers          delayed messages
                    └─ message index   queue offset → position (the log's)
    rows ◀──────────── all of them, each under its own first byte

Deterministic: the same records in the same order give the same rows, whether they arrive
live or from the log. What is only about the present (who waits, which client lives, what
is staged but not durable) is not state and not in the rows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct

from cosmodrome_server.core import timer
from cosmodrome_server.core.catalogue import Catalogue, CatalogueRecord, TopicState
from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.consumptions import Consumptions
from cosmodrome_server.core.delivery_runs import DeliveryRuns
from cosmodrome_server.core.machine import NEVER_MS, DirtyRow, Matcher, Row
from cosmodrome_server.core.matchers import Matchers
from cosmodrome_server.core.message_group import FifoPlanner, MessageGroups
from cosmodrome_server.core.offsets import start_offset
from cosmodrome_server.core.priority import from_top, is_from_top
from cosmodrome_server.core.receive import Demand, ReceivePlan, ReceivePlanner
from cosmodrome_server.core.records import (
    Ack,
    AckMany,
    ChangeInvisible,
    ConsumptionRecord,
    DeadLetter,
    Pop,
    Renew,
    SetOffset,
    record_at_ms,
)
from cosmodrome_server.core.timer import Timers
from cosmodrome_server.core.transaction import (
    EndTransaction,
    TransactionRules,
    Transactions,
    TransactionTouch,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.digests import blake2b
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import (
    Log,
    MessageRecord,
    MessageState,
    RecordKind,
    ReplayedDeliveries,
    ReplayedItem,
    ReplayedRow,
    ReplayedRun,
)
from cosmodrome_server.model.queries import ANY_QUEUE
from cosmodrome_server.model.topic import TopicType

_CLOCK_KEY = b"M"
_CLOCK = Struct("<QQQ")
# Lease ids begin with the lease clock, so that ids handed out before a crash and lost
# with it are not handed out again: a million of them a millisecond.
_LEASE_ID_SHIFT = 20

# Where messages lie differs between a log and its replay, what becomes of them does not;
# and clocks go on without records.
_NOT_STATE = frozenset((timer.UNCOPIED_KEY, _CLOCK_KEY))

_CATALOGUE_PREFIXES = frozenset((b"N", b"T", b"G", b"K"))
_TOUCHES = frozenset((RecordKind.TRANSACTION_CHECK, RecordKind.EXPIRE))
OtherRecord = EndTransaction | TransactionTouch | timer.Fire | timer.Recall

# Looking a member up in its enum takes longer than what is done with it.
_VISIBLE, _PRIORITY = MessageState.VISIBLE, TopicType.PRIORITY
_ACK, _POP = RecordKind.ACK, RecordKind.POP

_DECODERS: dict[RecordKind, Callable[[bytes], ConsumptionRecord]] = {
    RecordKind.ACK_MANY: AckMany.decode,
    RecordKind.CHANGE_INVISIBLE: ChangeInvisible.decode,
    RecordKind.RENEW: Renew.decode,
    RecordKind.DEAD_LETTER: DeadLetter.decode,
    RecordKind.COMMIT_OFFSET: SetOffset.decode,
    RecordKind.RESET_OFFSET: SetOffset.decode,
}

Ends = dict[tuple[int, int], int]


class Shard:
    """The deterministic state of a shard.

    Args:
        log: Read from, and told what to index; never staged to.
        rules: Of half messages.
    """

    def __init__(self, log: Log, rules: TransactionRules | None = None) -> None:
        self._log = log
        self.catalogue = Catalogue()
        self.consumptions = Consumptions(self.catalogue)
        self._delivery_runs = DeliveryRuns(self.consumptions)
        self.transactions = Transactions(rules)
        self.timers = Timers()
        self.matchers = Matchers()
        self._message_groups = MessageGroups()
        self.lease_ms = 0
        self._stored_ms = 0
        # Queues with news since somebody last emptied it: staged, and durable.
        self.arrived: dict[tuple[int, int], None] = {}
        self.became_visible: dict[tuple[int, int], None] = {}
        # Records passed over in replay because what they are about is unknown.
        self.orphans = 0
        self._staged_ends: Ends = {}

    # Starting

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Take back the rows of a checkpoint, in any order."""
        self.consumptions.starting()
        later = []
        for key, value in rows:
            if key == _CLOCK_KEY:
                self._restore_clocks(value)
            elif key[:1] in _CATALOGUE_PREFIXES:
                self.catalogue.restore(key, value)
            else:
                later.append((key, value))
        for key, value in later:
            if key[:1] == self.consumptions.row_prefix:
                self.consumptions.restore(key, value)
            elif key[:1] == self.timers.row_prefix:
                self.timers.restore(key, value)
            else:
                self.transactions.restore(key, value)
        self.transactions.restored()

    def replay(self, replayed: ReplayedItem) -> None:
        """Apply one record of the log, or one run of records."""
        if isinstance(replayed, ReplayedRow):
            # The state is known, but not how late it was: what ended by then has ended, and the
            # next life must not begin before, or its leases end at once in a start from here.
            if replayed.key == _CLOCK_KEY:
                self._restore_clocks(replayed.value)
                self.advance(self.lease_ms)
            elif self._log.damages and replayed.key[:1] in _CATALOGUE_PREFIXES:
                self.catalogue.take_up(replayed.key, replayed.value)
            return
        if isinstance(replayed, ReplayedDeliveries):
            runs = self._delivery_runs
            self.orphans += runs.apply(replayed, self.lease_ms)
            self.lease_ms = runs.lease_ms
            return
        try:
            if isinstance(replayed, ReplayedRun):
                self.catalogue.mend_queues(replayed.topic_id, replayed.queue_id)
                self._apply_run(*replayed[:4])
            elif replayed.kind is RecordKind.MESSAGE:
                message = replayed.message
                assert message is not None, "a MESSAGE record holds a message"
                self.catalogue.mend_queues(message.topic_id, message.queue_id)
                self.apply_message(message, replayed.position)
            else:
                self.apply(replayed.kind, replayed.payload)
        except KeyError:
            # The record that made its topic or group was in a damaged frame.
            self.orphans += len(replayed.entries) if isinstance(replayed, ReplayedRun) else 1
            lost = replayed if isinstance(replayed, ReplayedRun) else replayed.message
            if lost is not None:
                self.catalogue.skip_topic(lost.topic_id)

    def _restore_clocks(self, row: bytes) -> None:
        lease_ms, lease_id, stored_ms = _CLOCK.unpack(row)
        self.lease_ms = max(self.lease_ms, lease_ms)
        self.consumptions.last_lease_id = max(self.consumptions.last_lease_id, lease_id)
        self._stored_ms = max(self._stored_ms, stored_ms)

    def started(self) -> None:
        """All records were replayed: what they say is durable."""
        self.consumptions.started()
        if self._log.damages:
            self._pass_over_lost()
        self._staged_ends.clear()
        self.arrived.clear()
        self.catalogue.read_ends(self._log)

    def _pass_over_lost(self) -> None:
        """Messages lost at the end of a queue keep their offsets, as far as groups know of them.

        A new message at an offset that a group is done with would be hidden from it.
        """
        for (_, topic_id), consumption in self.consumptions.by_pair.items():
            for queue_id, queue_offset in consumption.reached():
                self._log.pass_over(topic_id, queue_id, queue_offset, self._stored_ms)

    # Applying: the only mutators

    def advance(self, lease_ms: int) -> None:
        """Let the lease clock reach `lease_ms`; it never goes back."""
        # At the same time too: what was hidden for 0 ms a moment ago is due.
        self.lease_ms = max(self.lease_ms, lease_ms)
        self.consumptions.advance(self.lease_ms)

    def apply_message(self, record: MessageRecord, position: int) -> None:
        """A message has its place."""
        self._stored_ms = max(self._stored_ms, record.store_timestamp_ms)
        topic = self.catalogue.topics_by_id[record.topic_id]
        if record.state is _VISIBLE:
            self.append(
                topic,
                record.queue_id,
                record.queue_offset,
                (position, record.tag_hash, record.store_timestamp_ms),
            )
            return
        # It takes its turn now: the next one goes elsewhere, also before this one is visible.
        topic.last_queue = record.queue_id
        if record.state is MessageState.HALF:
            self.transactions.apply_half(wire.message_id(record.system), record, position)
        else:
            self.timers.apply_delayed(record.due_ms, position)

    def apply_messages(self, records: Sequence[MessageRecord], positions: Sequence[int]) -> None:
        """`apply_message` for each message of a send; mostly they are a run of one queue."""
        first, last = records[0], records[-1]
        queue_id = first.queue_id
        span = last.queue_offset - first.queue_offset
        if 0 < span == len(records) - 1 and last.topic_id == first.topic_id:
            entries = [
                (position, record.tag_hash, record.store_timestamp_ms)
                for record, position in zip(records, positions, strict=True)
                if record.queue_id == queue_id and record.state is _VISIBLE
            ]
            if len(entries) == len(records):
                self._apply_run(first.topic_id, queue_id, first.queue_offset, entries)
                return
        for record, position in zip(records, positions, strict=True):
            self.apply_message(record, position)

    def _apply_run(
        self, topic_id: int, queue_id: int, queue_offset: int, entries: list[tuple[int, int, int]]
    ) -> None:
        """Messages take the next offsets of a queue."""
        self._stored_ms = max(self._stored_ms, entries[-1][2])
        topic = self.catalogue.topics_by_id[topic_id]
        self._log.index_run(topic_id, queue_id, queue_offset, entries)
        self._ended(topic, queue_id, queue_offset + len(entries))

    def append(
        self, topic: TopicState, queue_id: int, queue_offset: int, entry: tuple[int, int, int]
    ) -> None:
        """A message takes the next offset of a queue; pulled once its frame is durable."""
        self._log.index(topic.topic_id, queue_id, queue_offset, entry)
        self._ended(topic, queue_id, queue_offset + 1)

    def _ended(self, topic: TopicState, queue_id: int, next_offset: int) -> None:
        topic.next_offsets[queue_id] = next_offset
        topic.last_queue = queue_id
        queue = topic.topic_id, queue_id
        self._staged_ends[queue] = next_offset
        self.arrived[queue] = None

    def apply(self, kind: RecordKind, payload: bytes) -> None:
        """Apply a state record as it is in the log; a start does so a hundred thousand times."""
        self.advance(record_at_ms(payload))
        if kind is _ACK:
            self.consumptions.apply_ack(Ack.decode(payload))
        elif kind is _POP:
            self.consumptions.apply_pop(Pop.decode(payload))
        elif (decode := _DECODERS.get(kind)) is not None:
            self.consumptions.apply(decode(payload))
        elif kind is RecordKind.END_TRANSACTION:
            ended = EndTransaction.decode(payload)
            self.catalogue.mend_queues(ended.topic_id, ended.queue_id)
            self.apply_other(ended)
        elif kind in _TOUCHES:
            self.apply_other(TransactionTouch.decode(kind, payload))
        elif kind is RecordKind.TIMER_FIRE:
            self.apply_other(timer.Fire.decode(payload))
        elif kind is RecordKind.RECALL:
            self.apply_other(timer.Recall.decode(payload))
        else:
            self.apply_catalogue(CatalogueRecord(kind, payload))

    def apply_other(self, record: OtherRecord) -> None:
        """Apply a record about half or delayed messages."""
        match record:
            case EndTransaction():
                topic = self.catalogue.topics_by_id[record.topic_id]
                self.transactions.apply_end(record)
                if record.is_commit:
                    self.append(
                        topic,
                        record.queue_id,
                        record.queue_offset,
                        (record.position, record.tag_hash, record.store_timestamp_ms),
                    )
            case TransactionTouch():
                self.transactions.apply_touch(record)
            case timer.Fire():
                self.timers.apply_fire(record)
            case timer.Recall():
                self.timers.apply_recall(record)

    def apply_catalogue(self, record: CatalogueRecord) -> None:
        """Apply a record of `core.catalogue`."""
        number = self.catalogue.apply(record.kind, record.payload)
        if record.kind is RecordKind.TOPIC_DELETED:
            self.consumptions.drop_topic(number)
            self.transactions.drop_topic(number)
            self._log.drop_queues(number)
        elif record.kind is RecordKind.GROUP_DELETED:
            self.consumptions.drop_group(number)

    # Visibility

    def take_staged_ends(self) -> Ends:
        """The queue ends of the open frame, when it is given to the writer."""
        ends, self._staged_ends = self._staged_ends, {}
        return ends

    def put_back_ends(self, ends: Ends) -> None:
        """Undo `take_staged_ends`: the writer was busy."""
        self._staged_ends = ends

    def make_visible(self, ends: Ends) -> None:
        """The frame of these ends is durable: its messages may be pulled."""
        topics = self.catalogue.topics_by_id
        for (topic_id, queue_id), end in ends.items():
            topic = topics.get(topic_id)
            if topic is not None:
                # The writer may tell of a frame after the loop has told of the next one.
                topic.visible_offsets[queue_id] = max(end, topic.visible_offsets[queue_id])
                self.became_visible[topic_id, queue_id] = None

    # Planning

    def next_lease_id(self) -> int:
        """The first lease id that was never given out."""
        return max(self.consumptions.last_lease_id + 1, self.lease_ms << _LEASE_ID_SHIFT)

    def skip_lease_ids(self, count: int) -> None:
        """At a start: give none out that an earlier life gave, and a crash took with its record.

        The clock alone does not see to it: after a jump back it goes on where the records end,
        as that life did.

        Args:
            count: Drawn anew for each life, of a range that leaves no chance of a second draw.
        """
        self.consumptions.last_lease_id = self.next_lease_id() + count

    def plan_begin(
        self, group_id: int, group: Group, topic: TopicState, now_ms: int
    ) -> list[SetOffset]:
        """Where a group begins on the queues of a topic it has not begun on."""
        consumption = self.consumptions.of(group_id, topic.topic_id)
        # Not always the first queues: a group may have committed an offset on any.
        records = []
        for queue_id in range(topic.topic.queues):
            if consumption is not None and queue_id in consumption:
                continue
            queue = (topic.topic_id, queue_id)
            # A queue added under a group that reads the topic holds only news for it.
            offset = (
                self._log.min_offset(*queue)
                if consumption is not None
                else start_offset(group, queue, topic.visible_offsets[queue_id], self._log, now_ms)
            )
            records.append(SetOffset(self.lease_ms, group_id, *queue, offset))
        return records

    def plan_receive(
        self, consumption: Consumption, topic: TopicState, matcher: Matcher, demand: Demand
    ) -> ReceivePlan:
        """What a receive of a group that is not ordered gets."""
        queues = topic.topic.queues
        turn = consumption.turn % queues
        order: Iterable[int] = chain(range(turn, queues), range(turn))
        if topic.topic.topic_type is _PRIORITY:
            group = self.catalogue.groups_by_id[consumption.pair[0]].group
            if is_from_top(consumption.pops, group.priority_factor):
                order = from_top(queues)
                demand.is_ready_last = True
        planner = ReceivePlanner(demand, matcher, self._log)
        # Not `visible_offsets`: a message may be received in the very frame that stores it. The
        # reply rests on the lease, which is in this frame or a later one.
        return planner.receive(consumption, order, topic.next_offsets)

    def plan_fifo_receive(
        self,
        consumption: Consumption,
        topic: TopicState,
        queue_id: int,
        matcher: Matcher,
        demand: Demand,
    ) -> ReceivePlan:
        """What a receive of an ordered group gets from one queue, or from all."""
        planner = FifoPlanner(demand, matcher, self._log, self._message_groups)
        queues: Sequence[int] = (
            self._order(consumption, topic) if queue_id == ANY_QUEUE else (queue_id,)
        )
        if demand.attempt_id:
            awake = consumption.awake
            if planner.repeat([awake[each] for each in queues if each in awake]):
                return planner.plan
        for each in queues:
            if not planner.is_full:
                planner.receive(consumption.at(each), topic.next_offsets[each])
        return planner.plan

    def _order(self, consumption: Consumption, topic: TopicState) -> list[int]:
        queues = topic.topic.queues
        turn = consumption.turn % queues
        return [*range(turn, queues), *range(turn)]

    # Rows

    def rows(self) -> Iterator[Row]:
        """All of the state."""
        yield _CLOCK_KEY, self._clock_row()
        yield from self.catalogue.rows()
        yield from self.consumptions.rows()
        yield from self.transactions.rows()
        yield from self.timers.rows()

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """What changed since the last call."""
        yield _CLOCK_KEY, self._clock_row()
        yield from self.catalogue.dirty_rows()
        yield from self.consumptions.dirty_rows()
        yield from self.transactions.dirty_rows()
        yield from self.timers.dirty_rows()

    def _clock_row(self) -> bytes:
        return _CLOCK.pack(self.lease_ms, self.consumptions.last_lease_id, self._stored_ms)

    @property
    def log_ms(self) -> int:
        """The log's time never begins before this again, wherever the wall clock went.

        A message that was delayed by a clock behind what has fired would never fire.
        """
        return max(self._stored_ms, self.timers.fired_until_ms)

    def state_hash(self) -> str:
        """A digest of all rows that are state; equal states have equal hashes."""
        digest = blake2b(digest_size=16)
        for key, value in sorted(row for row in self.rows() if row[0] not in _NOT_STATE):
            digest.update(len(key).to_bytes(4, "little") + key)
            digest.update(len(value).to_bytes(4, "little") + value)
        return digest.hexdigest()

    def oldest_needed_position(self) -> int:
        """The first message that retention must leave in the log, whatever its age."""
        floors = (self.transactions.oldest_position(), self.timers.oldest_position())
        return min((floor for floor in floors if floor is not None), default=NEVER_MS)

    def next_deadline_ms(self) -> int:
        """When `advance` next has something to do, on the lease clock."""
        return self.consumptions.next_deadline_ms()
