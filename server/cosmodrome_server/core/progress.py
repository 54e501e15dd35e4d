"""What one consumer group has done, has in flight and must see again on one queue.

    0 ───── floor ──────────────────── cursor ────────────── end ─▶ queue offsets
    done    │ done · leased · ready    │ never looked at

Between floor and cursor every offset is in exactly one of three places:

    leased ──ack, dead letter──▶ done          (`DoneSet`)
       │ ──change invisible────▶ leased, under a lease of its own
       └ ──deadline────────────▶ ready         (offset → the attempt it will be)
    ready  ──pop───────────────▶ leased

A lease is one per pop call, however many messages it holds (`core.lease`). Messages are
never copied to be delivered again.

Everything here is changed by `core.consumptions` only, when it applies a record. Live, a
record always fits the state it was planned against. In replay it may not, when a damaged
frame before it was passed over: then what is missing is taken as if it had been there. What
lies between the cursor and what a record is about was handed out by one that is lost, and its
lease with it: nobody knows when that ends, so it is ready.
"""

from cosmodrome_server.core.done_set import DoneSet
from cosmodrome_server.core.lease import Lease, Leases
from cosmodrome_server.core.records import ChangeInvisible, Pop

Place = tuple[int, int, int]

# Attempts are counted up to here: what two bytes hold.
ATTEMPT_MAX = 65_535
# Receives of one queue that can be repeated: as many as clients that read it at a time.
_ATTEMPTS_MAX = 32
# Where a record is farther than this beyond the cursor, not pops were lost but a move.
_MISSING_MAX = 65_536


class Progress:
    """A group's progress on one queue.

    Attributes:
        place: (group id, topic id, queue id).
        done: What is settled; its floor is the group's committed offset.
        cursor: The first offset never looked at.
        ready: Offset → attempt of messages to deliver (again), in the order they became so.
        leases: What is in flight.
        attempts: Of a FIFO group, the clients' names for the last receives of which something is
            in flight → the leases of each, newest receive last.
        is_reset_pending: An operator moved the group and no consumer has noticed yet.
        is_dirty: Changed since its row was written last.
        row: Its row as bytes, None since it changed; kept so that a snapshot of many
            progresses encodes only those in use.
    """

    __slots__ = (
        "attempts",
        "cursor",
        "done",
        "is_dirty",
        "is_reset_pending",
        "leases",
        "place",
        "ready",
        "row",
    )

    def __init__(self, place: Place, start: int) -> None:
        self.place = place
        self.done = DoneSet(start)
        self.cursor = start
        self.ready: dict[int, int] = {}
        self.leases = Leases()
        self.attempts: dict[str, list[int]] = {}
        self.is_reset_pending = False
        self.is_dirty = False
        self.row: bytes | None = None

    @property
    def is_at_rest(self) -> bool:
        """Whether its floor is all there is to know."""
        return (
            self.cursor == self.done.floor
            and not self.leases
            and not self.ready
            and not self.attempts
            and not self.is_reset_pending
            and not self.done.above_floor()
        )

    @property
    def reached(self) -> int:
        """The first offset of which it knows nothing."""
        return max(self.cursor, self.done.end)

    @property
    def inflight(self) -> int:
        """How many messages are leased."""
        return self.leases.inflight

    def pop(self, record: Pop) -> Lease | None:
        """Take messages out of the unseen, the ready or another lease, into a new one."""
        self.is_reset_pending = False
        base, mask = record.base, record.mask
        if record.replaces:
            self._take_over(record)
        elif record.count == 1 == mask and base == self.cursor:
            self.cursor += 1
        elif record.count:
            self._pass(base, record.count, mask | record.held)
            if record.held:
                self._hold(base, record.held)
        else:
            self._take_ready(base, mask)
        if not mask:
            return None
        if record.attempt_id:
            self._remember_attempt(record)
        lease = Lease(
            record.lease_id, base, mask, record.at_ms + record.invisible_ms, record.attempt
        )
        if record.client_id:
            lease.client_id = record.client_id
            lease.popped_ms = record.at_ms
        self.leases.add(lease)
        return lease

    def lend(self, lease: Lease, count: int) -> None:
        """`pop` of nothing but a lease, of no ordered group: of unseen messages, or ready ones.

        Args:
            lease: The new one.
            count: See `Pop`.
        """
        self.is_reset_pending = False
        if count == 1 and lease.mask == 1 and lease.base == self.cursor:
            self.cursor += 1
        elif count:
            self._pass(lease.base, count, lease.mask)
        else:
            self._take_ready(lease.base, lease.mask)
        self.leases.add(lease)

    def _pass(self, base: int, count: int, taken: int) -> None:
        """Move the cursor over messages; those that nobody takes are settled."""
        if base > self.cursor:
            self._reach(base)
        self.cursor = base + count
        if taken.bit_count() < count:
            span = taken.bit_length()
            self.done.add_mask(base, ((1 << span) - 1) & ~taken)
            self.done.add_range(base + span, base + count)

    def _reach(self, end: int) -> None:
        """In replay: what lies before `end` was handed out by records that are lost."""
        start, self.cursor = max(self.cursor, self.done.floor), end
        if end - start > _MISSING_MAX:
            self.done.add_range(start, end)
            return
        leased = {queue_offset for lease in self.leases for queue_offset in lease.offsets()}
        for queue_offset in range(start, end):
            if queue_offset not in leased and queue_offset not in self.done:
                self.ready.setdefault(queue_offset, 1)

    def _hold(self, base: int, held: int) -> None:
        while held:
            low = held & -held
            self.ready[base + low.bit_length() - 1] = 1
            held ^= low

    def _take_ready(self, base: int, mask: int) -> None:
        if base + mask.bit_length() > self.cursor:
            self._reach(base + mask.bit_length())
        while mask:
            low = mask & -mask
            self.ready.pop(base + low.bit_length() - 1, None)
            mask ^= low

    def _take_over(self, record: Pop) -> None:
        old = self.leases.get(record.replaces)
        if old is None:
            self._take_ready(record.base, record.mask)
            return
        shift = record.base - old.base
        self.leases.take(old, record.mask << shift if shift >= 0 else record.mask >> -shift)

    def _forget_attempts(self) -> None:
        """Nothing is left that a repeated receive could take over."""
        if self.attempts and not self.leases:
            self.attempts = {}

    def _remember_attempt(self, record: Pop) -> None:
        attempts: dict[str, list[int]] = {}
        for name, lease_ids in self.attempts.items():
            left = [lease_id for lease_id in lease_ids if lease_id in self.leases]
            if left:
                attempts[name] = left
        lease_ids = attempts.pop(record.attempt_id, [])
        if len(attempts) == _ATTEMPTS_MAX:
            del attempts[next(iter(attempts))]
        attempts[record.attempt_id] = [*lease_ids, record.lease_id]
        self.attempts = attempts

    def settle(self, lease_id: int, queue_offset: int) -> Lease | None:
        """End a delivery, or what waits for one, for good; return the lease it left."""
        lease = self.leases.leave(lease_id, queue_offset)
        if lease is None:
            if lease_id and queue_offset >= self.cursor:
                self._reach(queue_offset + 1)
            self.ready.pop(queue_offset, None)
        elif self.attempts:
            self._forget_attempts()
        self.done.add(queue_offset)
        return lease

    def settle_many(self, lease_id: int, base: int, mask: int) -> tuple[Lease | None, int]:
        """End deliveries base + i for every bit i; return their lease, and how many left it."""
        self.done.add_mask(base, mask)
        lease = self.leases.get(lease_id)
        left = 0 if lease is None or lease.base != base else lease.mask & mask
        if mask != left:
            self._take_ready(base, mask & ~left)
        if lease is None or not left:
            return None, 0
        self.leases.take(lease, left)
        self._forget_attempts()
        return lease, left.bit_count()

    def change(self, record: ChangeInvisible) -> tuple[Lease | None, Lease]:
        """Give one message a lease of its own; return the lease it left, and that one."""
        old = self.leases.leave(record.lease_id, record.queue_offset)
        if old is None:
            self._take_ready(record.queue_offset, 1)
        lease = Lease(
            record.new_lease_id,
            record.queue_offset,
            1,
            record.at_ms + record.invisible_ms,
            1 if old is None else old.attempt,
        )
        lease.is_suspended = record.is_suspended
        self.leases.add(lease)
        return old, lease

    def expire(self, lease: Lease) -> list[int]:
        """Make what is left of a lease ready; return those offsets, ascending."""
        self.leases.discard(lease.lease_id)
        self._forget_attempts()
        offsets = lease.offsets()
        attempt = lease.attempt if lease.is_suspended else min(lease.attempt + 1, ATTEMPT_MAX)
        for queue_offset in offsets:
            self.ready[queue_offset] = attempt
        return offsets

    def move_to(self, queue_offset: int, *, is_reset: bool) -> None:
        """Forget everything and go on from an offset."""
        self.done = DoneSet(queue_offset)
        self.cursor = queue_offset
        self.ready.clear()
        self.leases.clear()
        self.attempts = {}
        self.is_reset_pending = is_reset
