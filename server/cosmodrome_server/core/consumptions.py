"""All progress of all groups: what records do to it, and what time does to it.

    (group, topic) ─▶ Consumption ─┬─ awake    queue ─▶ Progress ─▶ leases
                                   └─ resting  queue ─▶ offset       ▲
                                                                     │
    young      the newest leases: most end before their time, and never get farther
    deadlines  heap of (deadline, lease id, progress): one entry per lease, however many
               messages it holds; an entry whose lease was settled or renewed since is
               passed over when it surfaces
    packed     the same of blocks of leases: (first deadline, last id, progress, block).
               Leases are packed when the heaps are swept; those due soon are unpacked
               and get an entry each, so that all end in one order, packed or not
    renewals   the same, of leases whose client is asked for, a while before the deadline

Time is a record like any other: each one carries the lease clock, and `advance` ends the
leases due by then before the record is applied. Live, the shell advances more often; as
what an expiry does depends on the lease alone, the state is the same.

A progress that is nothing but an offset is laid down as such (`core.resting`), when many
were changed or a checkpoint takes their rows. Touched, it is awake again. Rows say the same
of both.
"""

import heapq
from collections.abc import Iterable, Iterator

from cosmodrome_server.core import progress_row
from cosmodrome_server.core.catalogue import Catalogue
from cosmodrome_server.core.consumption import Consumption, Pair
from cosmodrome_server.core.lease import Lease, LeaseBlock
from cosmodrome_server.core.machine import NEVER_MS, DirtyRow, Row
from cosmodrome_server.core.progress import Place, Progress
from cosmodrome_server.core.records import (
    Ack,
    AckMany,
    ChangeInvisible,
    ConsumptionRecord,
    DeadLetter,
    Pop,
    Renew,
    SetOffset,
)
from cosmodrome_server.model.group import ConsumeFrom

# A lease is renewed this long before it ends, or at half its time if that is shorter.
RENEW_AHEAD_MS = 10_000
# Changed progress that is laid down no earlier, where it is at rest.
_LAY_MIN = 4_096
# Leases that are young at a time; in replay many end that live took minutes, for 20 MB at most.
_YOUNG_MAX = 1_024
_YOUNG_REPLAYED_MAX = 65_536
# Entries of heaps that are swept no earlier.
_SWEEP_MIN = 1_024
# Leases of a block that are due within this of its first are unpacked with it.
_UNPACK_AHEAD_MS = 1_000


def _renew_ms(lease: Lease) -> int:
    """When somebody who renews it is to be asked for."""
    ahead = min(RENEW_AHEAD_MS, (lease.deadline_ms - lease.popped_ms) // 2)
    return lease.deadline_ms - ahead


class Consumptions:
    """The machine of deliveries. See `core.machine` for the contract of its methods."""

    row_prefix = progress_row.PREFIX

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.by_pair: dict[Pair, Consumption] = {}
        self.last_lease_id = 0
        # What time and records left for others to do; whoever does it empties them.
        self.became_ready: dict[Place, None] = {}
        self.exhausted: dict[tuple[Place, int], None] = {}
        # No lease ends before.
        self.due_ms = NEVER_MS
        self._young: dict[int, Progress] = {}
        self._young_max = _YOUNG_MAX
        self._deadlines: list[tuple[int, int, Progress]] = []
        self._packed: list[tuple[int, int, Progress, LeaseBlock]] = []
        self._renewals: list[tuple[int, int, Progress]] = []
        self._sweep_at = _SWEEP_MIN
        self._leases_of_client: dict[str, dict[int, Progress]] = {}
        self._dirty: list[Progress] = []
        self._lay_at = _LAY_MIN
        # Where progress was laid down before its row was taken.
        self._laid: dict[Pair, None] = {}
        self._deleted: dict[bytes, None] = {}

    def of(self, group_id: int, topic_id: int) -> Consumption | None:
        """The consumption of a group on a topic, None before its first."""
        return self.by_pair.get((group_id, topic_id))

    def at(self, place: Place) -> Progress:
        """The progress at a place that is known to exist, to be held until time advances."""
        progress = self._awake(self.by_pair[place[:2]], place[2])
        assert progress is not None, f"nothing was begun at {place}"
        return progress

    def find(self, place: Place) -> Progress | None:
        """The progress at a place as it is now, to be read; None if there is none."""
        consumption = self.by_pair.get(place[:2])
        return None if consumption is None else consumption.find(place[2])

    def apply(self, record: ConsumptionRecord) -> None:
        """Do what the record says; `advance` to its time was called before."""
        match record:
            case Ack() | DeadLetter():
                self.apply_ack(record)
            case Pop():
                self.apply_pop(record)
            case AckMany():
                self._apply_many(record)
            case ChangeInvisible():
                self._apply_change(record)
            case Renew():
                self._apply_renew(record)
            case _:
                self._apply_offset(record)

    def apply_pop(self, record: Pop) -> None:
        """Hand messages out."""
        consumption = self.by_pair.get((record.group_id, record.topic_id))
        progress = None if consumption is None else consumption.awake.get(record.queue_id)
        if consumption is None or progress is None:
            consumption, progress = self._place_of(record)
        replaced = progress.leases.get(record.replaces) if record.replaces else None
        lease = progress.pop(record)
        if replaced is not None:
            consumption.inflight -= record.mask.bit_count()
            if not replaced.mask:
                self._ended(replaced)
        self.popped(consumption, progress, lease, record.count)

    def popped(
        self, consumption: Consumption, progress: Progress, lease: Lease | None, count: int
    ) -> None:
        """The progress did what a `Pop` of so many unseen messages says; all else it says."""
        consumption.turn = progress.place[2] + 1
        consumption.pops += 1
        consumption.is_ready_first = count > 0
        if lease is not None:
            consumption.inflight += lease.mask.bit_count()
            self.last_lease_id = max(self.last_lease_id, lease.lease_id)
            self._watch(progress, lease)
        # Soiled already, as a rule: not worth a call.
        progress.row = None
        if not progress.is_dirty:
            self._soil(progress)

    def apply_ack(self, record: Ack | DeadLetter) -> None:
        """End a delivery for good."""
        consumption, progress = self._place_of(record)
        lease = progress.settle(record.lease_id, record.queue_offset)
        self.settled(consumption, progress, lease)

    def settled(self, consumption: Consumption, progress: Progress, lease: Lease | None) -> None:
        """The progress did what an `Ack` says; a message left that lease."""
        if lease is not None:
            consumption.inflight -= 1
            if not lease.mask:
                self._ended(lease)
        progress.row = None
        if not progress.is_dirty:
            self._soil(progress)

    def _apply_many(self, record: AckMany) -> None:
        consumption, progress = self._place_of(record)
        lease, left = progress.settle_many(record.lease_id, record.base, record.mask)
        if lease is not None:
            consumption.inflight -= left
            if not lease.mask:
                self._ended(lease)
        self._soil(progress)

    def _place_of(
        self, record: Pop | Ack | AckMany | ChangeInvisible | Renew | DeadLetter
    ) -> tuple[Consumption, Progress]:
        consumption = self.by_pair.get((record.group_id, record.topic_id))
        if consumption is None:
            return self._mend(record)
        progress = self._awake(consumption, record.queue_id)
        return self._mend(record) if progress is None else (consumption, progress)

    def _awake(self, consumption: Consumption, queue_id: int) -> Progress | None:
        progress = consumption.awake.get(queue_id)
        if progress is None:
            progress = consumption.wake(queue_id)
            if progress is not None:
                self._soil(progress)
        return progress

    def _mend(
        self, record: Pop | Ack | AckMany | ChangeInvisible | Renew | DeadLetter
    ) -> tuple[Consumption, Progress]:
        """In replay: the frame that began this progress was damaged. Begin it anew.

        It may have handed messages out besides: they come again, and what lay before them too.
        Only a group that begins with what is new had seen nothing before its first pop.

        Raises:
            KeyError: Its group or topic is as unknown.
        """
        group = self._catalogue.groups_by_id[record.group_id].group
        is_from_last = group.consume_from is ConsumeFrom.LAST
        start = record.base if is_from_last and isinstance(record, Pop) else 0
        place = (record.group_id, record.topic_id, record.queue_id)
        self._apply_offset(SetOffset(record.at_ms, *place, start))
        return self._place_of(record)

    def _apply_change(self, record: ChangeInvisible) -> None:
        consumption, progress = self._place_of(record)
        old, lease = progress.change(record)
        if old is None:
            consumption.inflight += 1
        elif not old.mask:
            self._ended(old)
        self.last_lease_id = max(self.last_lease_id, lease.lease_id)
        self._watch(progress, lease)
        self._soil(progress)

    def _apply_renew(self, record: Renew) -> None:
        _, progress = self._place_of(record)
        lease = progress.leases.get(record.lease_id)
        if lease is None:
            return
        progress.leases.discard(lease.lease_id)
        lease.deadline_ms = record.at_ms + record.invisible_ms
        lease.renewals += 1
        progress.leases.add(lease)
        if record.is_last:
            self._forget_client(lease)
            lease.client_id = ""
        self._watch(progress, lease)
        self._soil(progress)

    def _apply_offset(self, record: SetOffset) -> None:
        place = (record.group_id, record.topic_id, record.queue_id)
        consumption = self.by_pair.get(place[:2])
        if consumption is None:
            consumption = self._begin(place[:2])
        progress = self._awake(consumption, record.queue_id)
        if progress is None:
            self._catalogue.mend_queues(record.topic_id, record.queue_id)
            progress = Progress(place, record.queue_offset)
            progress.is_reset_pending = record.is_reset
            consumption.begin(progress)
        else:
            consumption.inflight -= progress.inflight
            for lease in progress.leases:
                self._forget_client(lease)
            progress.move_to(record.queue_offset, is_reset=record.is_reset)
        self.became_ready[place] = None
        self._soil(progress)

    def _begin(self, pair: Pair) -> Consumption:
        group_id, topic_id = pair
        known = self._catalogue
        if group_id not in known.groups_by_id or topic_id not in known.topics_by_id:
            raise KeyError(f"group {group_id} or topic {topic_id} is unknown")
        consumption = self.by_pair[pair] = Consumption(pair)
        return consumption

    def _watch(self, progress: Progress, lease: Lease) -> None:
        self._young[lease.lease_id] = progress
        first_ms = _renew_ms(lease) if lease.client_id else lease.deadline_ms
        self.due_ms = min(self.due_ms, first_ms)
        if len(self._young) >= self._young_max:
            self._enter_young()

    def _enter_young(self) -> None:
        young, self._young = self._young, {}
        for lease_id, progress in young.items():
            lease = progress.leases.get(lease_id)
            if lease is not None:
                self._enter(progress, lease)
        if len(self._deadlines) + len(self._renewals) >= self._sweep_at:
            self._sweep()

    def _enter(self, progress: Progress, lease: Lease) -> None:
        heapq.heappush(self._deadlines, (lease.deadline_ms, lease.lease_id, progress))
        self.due_ms = min(self.due_ms, lease.deadline_ms)
        if lease.client_id:
            heapq.heappush(self._renewals, (_renew_ms(lease), lease.lease_id, progress))
            self._leases_of_client.setdefault(lease.client_id, {})[lease.lease_id] = progress

    def _sweep(self) -> None:
        """Drop the entries of leases that are no more, and pack those that pile up."""
        self._renewals = [entry for entry in self._renewals if entry[1] in entry[2].leases]
        heapq.heapify(self._renewals)
        self._packed = [entry for entry in self._packed if entry[3]]
        heapq.heapify(self._packed)
        live = [entry for entry in self._deadlines if entry[1] in entry[2].leases]
        packed: set[int] = set()
        for progress in dict.fromkeys(entry[2] for entry in live):
            for block in progress.leases.pack():
                self._watch_block(progress, block)
                packed.update(block.ids)
        self._deadlines = [entry for entry in live if entry[1] not in packed]
        heapq.heapify(self._deadlines)
        self._sweep_at = max(_SWEEP_MIN, 2 * (len(self._deadlines) + len(self._renewals)))

    def _watch_block(self, progress: Progress, block: LeaseBlock) -> None:
        entry = (block.first_deadline_ms, block.last_id, progress, block)
        heapq.heappush(self._packed, entry)

    def _ended(self, lease: Lease) -> None:
        self._young.pop(lease.lease_id, None)
        if lease.client_id:
            self._forget_client(lease)

    def _forget_client(self, lease: Lease) -> None:
        of_client = self._leases_of_client.get(lease.client_id)
        if of_client is not None:
            of_client.pop(lease.lease_id, None)
            if not of_client:
                del self._leases_of_client[lease.client_id]

    def _soil(self, progress: Progress) -> None:
        progress.row = None
        if not progress.is_dirty:
            progress.is_dirty = True
            self._dirty.append(progress)

    def advance(self, lease_ms: int) -> None:
        """End every lease due at or before `lease_ms`."""
        # Now, because nobody holds a progress over a change of the time.
        if len(self._dirty) >= self._lay_at:
            self._lay_down()
        if lease_ms >= self.due_ms:
            self._end_due(lease_ms)

    def _end_due(self, lease_ms: int) -> None:
        self._enter_young()
        while self._packed and self._packed[0][0] <= lease_ms:
            _, _, progress, block = heapq.heappop(self._packed)
            for due in progress.leases.unpack_due(block, lease_ms + _UNPACK_AHEAD_MS):
                heapq.heappush(self._deadlines, (due.deadline_ms, due.lease_id, progress))
            if block:
                self._watch_block(progress, block)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= lease_ms:
            deadline_ms, lease_id, progress = heapq.heappop(deadlines)
            lease = progress.leases.get(lease_id)
            if lease is not None and lease.deadline_ms <= deadline_ms:
                self._expire(progress, lease)
        self.due_ms = deadlines[0][0] if deadlines else NEVER_MS
        if self._packed:
            self.due_ms = min(self.due_ms, self._packed[0][0])

    def _expire(self, progress: Progress, lease: Lease) -> None:
        self._forget_client(lease)
        offsets = progress.expire(lease)
        group_id, topic_id, _ = progress.place
        self.by_pair[group_id, topic_id].inflight -= len(offsets)
        if progress.ready[offsets[0]] > self._catalogue.groups_by_id[group_id].group.max_attempts:
            for queue_offset in offsets:
                self.exhausted[progress.place, queue_offset] = None
        self.became_ready[progress.place] = None
        self._soil(progress)

    def due_renewals(self, lease_ms: int) -> list[tuple[Progress, Lease]]:
        """Take the leases whose client must be looked for now."""
        if lease_ms >= self.due_ms:
            self._enter_young()
        renewals = self._renewals
        due = []
        while renewals and renewals[0][0] <= lease_ms:
            _, lease_id, progress = heapq.heappop(renewals)
            lease = progress.leases.get(lease_id)
            # An earlier entry of a lease renewed since is early: its own entry follows.
            if (
                lease is not None
                and lease.client_id
                and _renew_ms(lease) <= lease_ms < lease.deadline_ms
            ):
                due.append((progress, lease))
        return due

    def renew_later(self, due: Iterable[tuple[Progress, Lease]], lease_ms: int) -> None:
        """Give leases of `due_renewals` back, to be due again then."""
        for progress, lease in due:
            heapq.heappush(self._renewals, (lease_ms, lease.lease_id, progress))

    def leases_of(self, client_id: str) -> list[tuple[Progress, Lease]]:
        """The leases that are renewed for a client."""
        self._enter_young()
        of_client = self._leases_of_client.get(client_id, {})
        return [
            (progress, lease)
            for lease_id, progress in of_client.items()
            if (lease := progress.leases.get(lease_id)) is not None
        ]

    def next_deadline_ms(self) -> int:
        """When `advance` or `due_renewals` may next have something to do, on the lease clock."""
        if self._renewals and self._renewals[0][0] < self.due_ms:
            return self._renewals[0][0]
        return self.due_ms

    def drop_topic(self, topic_id: int) -> None:
        """Forget what groups did on a deleted topic."""
        # There may be as many topics as there are clients, and each is deleted one day.
        pairs = [(group_id, topic_id) for group_id in self._catalogue.groups_by_id]
        self._drop([pair for pair in pairs if pair in self.by_pair])

    def drop_group(self, group_id: int) -> None:
        """Forget what a deleted group did."""
        self._drop([pair for pair in self.by_pair if pair[0] == group_id])

    def _drop(self, pairs: list[Pair]) -> None:
        for pair in pairs:
            consumption = self.by_pair.pop(pair)
            self._deleted.update(dict.fromkeys(consumption.keys()))
            for progress in consumption.awake.values():
                for lease in progress.leases:
                    self._forget_client(lease)
                progress.leases.clear()
        gone = set(pairs)
        # Not only what is awake: what became ready may have been laid down since.
        for place in [place for place in self.became_ready if place[:2] in gone]:
            del self.became_ready[place]
        for work in [work for work in self.exhausted if work[0][:2] in gone]:
            del self.exhausted[work]

    def rows(self) -> Iterator[Row]:
        """All progress."""
        for consumption in self.by_pair.values():
            yield from consumption.rows()

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """Progress that changed since the last call."""
        self._lay_down()
        deleted, self._deleted = self._deleted, {}
        dirty, self._dirty = self._dirty, []
        laid, self._laid = self._laid, {}
        for key in deleted:
            yield key, None
        for progress in dirty:
            progress.is_dirty = False
            yield progress_row.encode_key(progress.place), progress_row.value_of(progress)
        for pair in laid:
            consumption = self.by_pair.get(pair)
            if consumption is not None:
                yield from consumption.dirty_rows()

    def _lay_down(self) -> None:
        """Keep nothing but the offsets of what changed and is at rest."""
        dirty, self._dirty = self._dirty, []
        for progress in dirty:
            group_id, topic_id, queue_id = progress.place
            consumption = self.by_pair.get((group_id, topic_id))
            if consumption is None:
                continue  # Dropped since.
            if progress.is_at_rest:
                consumption.rest(queue_id)
                self._laid[consumption.pair] = None
            else:
                self._dirty.append(progress)
        self._lay_at = max(_LAY_MIN, 2 * len(self._dirty))

    def starting(self) -> None:
        """A start begins: rows come, and records by the hundred thousand."""
        self._young_max = _YOUNG_REPLAYED_MAX

    def started(self) -> None:
        """That was all."""
        self._young_max = _YOUNG_MAX
        self._enter_young()

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one progress; groups and topics are there already."""
        place = group_id, topic_id, queue_id = progress_row.decode_key(key)
        consumption = self.by_pair.get((group_id, topic_id))
        if consumption is None:
            consumption = self.by_pair[group_id, topic_id] = Consumption((group_id, topic_id))
        queue_offset = progress_row.resting_offset(value)
        if queue_offset is not None:
            consumption.restore(queue_id, queue_offset)
            return
        progress = progress_row.decode(place, value)
        consumption.begin(progress)
        consumption.inflight += progress.inflight
        for lease in progress.leases:
            self._enter(progress, lease)
        if len(self._deadlines) >= self._sweep_at:
            self._sweep()
        attempts_max = self._catalogue.groups_by_id[group_id].group.max_attempts
        for queue_offset, attempt in progress.ready.items():
            if attempt > attempts_max:
                self.exhausted[progress.place, queue_offset] = None
