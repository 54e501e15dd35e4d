"""The verbs that end or extend deliveries, and what time does to them."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from cosmodrome_server.broker.send_verbs import SendVerbs
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.core.consumption import Pair
from cosmodrome_server.core.dead_letter import dead_letter_of
from cosmodrome_server.core.lite_subscription import parent_of
from cosmodrome_server.core.machine import NEVER_MS
from cosmodrome_server.core.progress import Place, Progress
from cosmodrome_server.core.records import Ack, DeadLetter
from cosmodrome_server.core.settle import (
    leased,
    plan_ack,
    plan_ack_many,
    plan_change,
    plan_release,
    plan_renewal,
    stale,
)
from cosmodrome_server.errors import (
    CorruptFrame,
    InvalidReceiptHandle,
    MessageNotFound,
    OverloadedError,
    ReadFailed,
    StoreFull,
)
from cosmodrome_server.model.recall_handle import RecallHandles
from cosmodrome_server.model.receipt_handle import (
    LIFE_BYTES,
    ReceiptHandle,
    ReceiptHandles,
    lease_of,
    suffix,
)
from cosmodrome_server.model.topic import Topic, dead_letter_topic

RECEIPT_KEY = "broker/receipt-key"
# Of lease ids a start leaves out: a quarter of an hour of them at most.
_SKIPPED_BYTES = 5
# Dead letters copied in one turn of the loop, and their bytes; the rest goes on in the next.
_DEAD_LETTERS_PER_TURN = 128
_DEAD_LETTER_BYTES_PER_TURN = 8 << 20
# With no space for copies, exhausted messages rest this long before the next try.
_DEAD_LETTER_RETRY_MS = 1_000
# With no space for renewals, they rest this long; most begin 10 s before they are needed.
_RENEWAL_RETRY_MS = 1_000


class SettleVerbs(SendVerbs):
    """Implements the consumers' part of `broker.interface.Messaging`, but for receiving."""

    _dead_letters_resume_ms = 0

    def _open_receipts(self, random_bytes: Callable[[int], bytes]) -> None:
        """Take up the key of receipt handles, or draw one on the first start."""
        key = self._shard.catalogue.kept.get(RECEIPT_KEY)
        if key is None:
            key = random_bytes(32)
            self.keep(RECEIPT_KEY, key)
        self._handles = ReceiptHandles(key, life=random_bytes(LIFE_BYTES))
        self._recall_handles = RecallHandles(key)
        self._live_clients: set[str] = set()
        # Leases of before this start are not renewed: the reply that carried their messages may
        # have died with the last process, and a client that lives would hide them for hours.
        self._last_lease_id_replayed = self._shard.consumptions.last_lease_id
        # What is made in this life may have the number of what a power cut took.
        self._next_ids_replayed = self._shard.catalogue.next_ids
        self._advance()
        self._shard.skip_lease_ids(int.from_bytes(random_bytes(_SKIPPED_BYTES), "little"))
        # Groups and topics whose receives found as much in flight as may be.
        self._capped: set[Pair] = set()

    def ack(self, group: str, topic: str, handle: str) -> None:
        """See `Messaging`."""
        receipt, queue_offset = self._handles.open(handle)
        lease_ms = self._advance()
        owner, progress = self._owner(group, topic, receipt)
        try:
            record = plan_ack(progress, receipt, queue_offset, lease_ms)
        except InvalidReceiptHandle:
            self._counters.late(topic, group)
            raise
        if record is not None:
            self._put(record)
            self._counters.acknowledged(topic, group)
            if owner.is_ordered or self._capped:
                self._freed(owner, progress)

    def ack_many(
        self, group: str, topic: str, handles: Sequence[str]
    ) -> list[InvalidReceiptHandle | None]:
        """See `Messaging`; neighbours of one lease, mostly all of them, become one record."""
        results: list[InvalidReceiptHandle | None] = []
        start, end = 0, len(handles)
        while start < end:
            lease = lease_of(handles[start])
            stop = start + 1
            while stop < end and lease_of(handles[stop]) == lease:
                stop += 1
            run = handles[start:stop]
            if len(run) > 1 and self._ack_run(group, topic, run):
                results += [None] * len(run)
            else:
                results += [self._try_ack(group, topic, handle) for handle in run]
            start = stop
        return results

    def _ack_run(self, group: str, topic: str, handles: Sequence[str]) -> bool:
        """Acknowledge messages of one lease together; False, and nothing done, if that fails."""
        try:
            opened = [self._handles.open(handle) for handle in handles]
            lease_ms = self._advance()
            receipt = opened[0][0]
            owner, progress = self._owner(group, topic, receipt)
        except InvalidReceiptHandle:
            return False
        record = plan_ack_many(progress, receipt, [at for _, at in opened], lease_ms)
        if record is None:
            return False
        self._put(record)
        self._counters.acknowledged(topic, group, len(handles))
        if owner.is_ordered or self._capped:
            self._freed(owner, progress)
        return True

    def _try_ack(self, group: str, topic: str, handle: str) -> InvalidReceiptHandle | None:
        try:
            self.ack(group, topic, handle)
        except InvalidReceiptHandle as error:
            return error
        return None

    def change_invisible_duration(
        self, group: str, topic: str, handle: str, invisible_ms: int, *, suspend: bool
    ) -> str:
        """See `Messaging`."""
        receipt, queue_offset = self._handles.open(handle)
        lease_ms = self._advance()
        _, progress = self._owner(group, topic, receipt)
        lease = leased(progress, receipt, queue_offset)
        lease_id = self._shard.next_lease_id()
        change = (queue_offset, invisible_ms, suspend)
        record = plan_change(progress, lease, change, lease_id, lease_ms)
        attempt = lease.attempt
        self._put(record)
        sealed = self._handles.seal(ReceiptHandle(*progress.place, queue_offset, lease_id, attempt))
        return sealed + suffix(0)

    def return_undelivered(self, group: str, handles: Iterable[str]) -> None:
        """See `Messaging`."""
        lease_ms = self._advance()
        for handle in handles:
            try:
                receipt, queue_offset = self._handles.open(handle)
                progress = self._progress(group, receipt)
                lease = leased(progress, receipt, queue_offset)
            except InvalidReceiptHandle:
                continue
            change = (queue_offset, 0, True)
            lease_id = self._shard.next_lease_id()
            self._put(plan_change(progress, lease, change, lease_id, lease_ms))
        # Invisible for 0 ms is over at once.
        self._shard.consumptions.advance(lease_ms)

    def forward_to_dead_letter_queue(self, group: str, topic: str, handle: str) -> None:
        """See `Messaging`."""
        receipt, queue_offset = self._handles.open(handle)
        lease_ms = self._advance()
        owner, progress = self._owner(group, topic, receipt)
        lease = leased(progress, receipt, queue_offset)
        self._dead_letter(owner, progress, (lease.lease_id, queue_offset), lease_ms)

    def client_gone(self, client_id: str) -> None:
        """See `Messaging`."""
        self._live_clients.discard(client_id)
        lease_ms = self._advance()
        for progress, lease in self._shard.consumptions.leases_of(client_id):
            record = plan_release(progress, lease, lease_ms)
            if record is not None:
                self._put(record)

    def _was_replayed(self, receipt: ReceiptHandle) -> bool:
        """Whether what a handle of an earlier life names may be what that life gave out."""
        next_topic_id, next_group_id = self._next_ids_replayed
        return (
            receipt.lease_id <= self._last_lease_id_replayed
            and receipt.topic_id < next_topic_id
            and receipt.group_id < next_group_id
        )

    def _owner(self, group: str, topic: str, receipt: ReceiptHandle) -> tuple[GroupState, Progress]:
        """The group and the progress a handle is about.

        Raises:
            InvalidReceiptHandle: It is of another group or topic, or they are gone; or of a lease
                that a crash took, maybe with its message: another one may have its offset now.
        """
        if not (receipt.is_of_this_life or self._was_replayed(receipt)):
            raise stale(receipt, receipt.base)
        catalogue = self._shard.catalogue
        owner = catalogue.groups.get(group)
        where = catalogue.topics.get(topic)
        if (
            owner is None
            or where is None
            or owner.group_id != receipt.group_id
            or not self._is_of(where, receipt.topic_id)
        ):
            raise InvalidReceiptHandle(
                f"receipt handle is not of consumer group {group} and topic {topic}"
            )
        consumption = self._shard.consumptions.by_pair.get((receipt.group_id, receipt.topic_id))
        progress = None if consumption is None else consumption.find(receipt.queue_id)
        if progress is None:
            raise stale(receipt, receipt.base)
        return owner, progress

    def _is_of(self, where: TopicState, topic_id: int) -> bool:
        """Whether a message of topic `topic_id` is one of `where`: of itself or a lite topic."""
        if where.topic_id == topic_id:
            return True
        lite = self._shard.catalogue.topics_by_id.get(topic_id)
        return lite is not None and parent_of(lite.topic.name) == where.topic.name

    def _progress(self, group: str, receipt: ReceiptHandle) -> Progress:
        topic = self._shard.catalogue.topics_by_id.get(receipt.topic_id)
        if topic is None:
            raise stale(receipt, receipt.base)
        return self._owner(group, topic.topic.name, receipt)[1]

    # Later

    def _do_later(self) -> None:
        self._renew()
        self._bury_exhausted()
        super()._do_later()

    def _renew(self) -> None:
        lease_ms = self._shard.lease_ms
        consumptions = self._shard.consumptions
        due = consumptions.due_renewals(lease_ms)
        for at, (progress, lease) in enumerate(due):
            is_ours = lease.lease_id > self._last_lease_id_replayed
            if is_ours and lease.client_id in self._live_clients:
                group = self._shard.catalogue.groups_by_id[progress.place[0]].group
                total_ms = self._settings.renew_total_ms
                renewal = plan_renewal(progress, lease, group.backoff, lease_ms, total_ms=total_ms)
                try:
                    self._put(renewal)
                except StoreFull:
                    # Who waits is answered nevertheless.
                    consumptions.renew_later(due[at:], lease_ms + _RENEWAL_RETRY_MS)
                    return

    def _bury_exhausted(self) -> None:
        consumptions = self._shard.consumptions
        lease_ms = self._shard.lease_ms
        if not consumptions.exhausted or lease_ms < self._dead_letters_resume_ms:
            return
        bytes_left = _DEAD_LETTER_BYTES_PER_TURN
        for place, queue_offset in list(islice(consumptions.exhausted, _DEAD_LETTERS_PER_TURN)):
            try:
                bytes_left -= self._bury(place, queue_offset, lease_ms)
            except (StoreFull, OverloadedError, ReadFailed):
                self._dead_letters_resume_ms = lease_ms + _DEAD_LETTER_RETRY_MS
                return
            consumptions.exhausted.pop((place, queue_offset), None)
            if bytes_left <= 0:
                break
        if consumptions.exhausted:
            self._commit.touch()

    def _bury(self, place: Place, queue_offset: int, lease_ms: int) -> int:
        """Move a message that was delivered too often; how many bytes were copied."""
        progress = self._shard.consumptions.find(place)
        owner = self._shard.catalogue.groups_by_id.get(place[0])
        if progress is None or owner is None:
            return 0
        if progress.ready.get(queue_offset, 0) <= owner.group.max_attempts:
            return 0
        return self._dead_letter(owner, progress, (0, queue_offset), lease_ms)

    def _dead_letter(
        self, owner: GroupState, progress: Progress, message: tuple[int, int], lease_ms: int
    ) -> int:
        """Move message = (lease id or 0, queue offset) to the dead letters of its group.

        Returns how many bytes were copied.
        """
        lease_id, queue_offset = message
        _, topic_id, queue_id = progress.place
        try:
            original = self._log.read(topic_id, queue_id, queue_offset)
        except (CorruptFrame, MessageNotFound) as error:
            # What retention took is not damaged.
            self._counters.lost_messages += isinstance(error, CorruptFrame)
            self._put(Ack(lease_ms, *progress.place, lease_id, queue_offset))
            self._freed(owner, progress)
            return 0
        target = self._dead_letter_topic(owner)
        origin = parent_of(self._shard.catalogue.topics_by_id[topic_id].topic.name)
        copy = dead_letter_of(original, origin, target, self._now())
        self._put_messages([copy])
        self._put(DeadLetter(lease_ms, *progress.place, lease_id, queue_offset, copy.queue_offset))
        self._counters.dead(origin, owner.group.name)
        self._freed(owner, progress)
        return len(copy.body)

    def _freed(self, owner: GroupState, progress: Progress) -> None:
        """A message was settled: others may go that it held back, or that found no room."""
        if owner.is_ordered or progress.place[:2] in self._capped:
            self._shard.consumptions.became_ready[progress.place] = None

    def _dead_letter_topic(self, owner: GroupState) -> TopicState:
        name = dead_letter_topic(owner.group.name)
        if name not in self._shard.catalogue.topics:
            self.create_topic(Topic(name, queues=1, created_ms=self._now()))
        return self._shard.catalogue.topic(name)

    def _next_deadline_ms(self) -> int:
        first = super()._next_deadline_ms()
        if not self._shard.consumptions.exhausted:
            return first
        resume = self._dead_letters_resume_ms - self._lease_base_ms
        return resume if first == NEVER_MS else min(first, resume)
