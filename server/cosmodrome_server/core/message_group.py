"""Ordered groups: which messages of a queue may be delivered next.

A message waits while one before it of the same message group is in flight, and while any
of its group is: so a group is never in flight twice and never overtakes itself, and other
groups of the queue go on. Messages without a message group are one group of their own.

    queue    A1   B1   A2   C1   B2         A1 in flight:
    receive       B1        C1   B2         A2 is passed over and held
    held               A2                   ready as attempt 1, free once A1 is settled

What is acknowledged stays so: nothing behind an unsettled message comes again for its
sake. A receive repeated with the attempt id of an earlier one takes its messages over, with
the same attempt, under new handles: its answer was lost. Clients share a queue, so that other
receives may have come between the two.

Source: protocol.md 7.10 and its DO marks; the reference blocks the whole queue.
"""

from collections.abc import Iterable

from cosmodrome_server.core.machine import Matcher
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.receive import BYTES_MAX, Demand, Found, ReceivePlan, ReceivePlanner
from cosmodrome_server.core.records import LEASE_SPAN, Pop
from cosmodrome_server.model import wire
from cosmodrome_server.model.log import MessageRecord, QueueReader

# Messages of one queue held back for their groups before the scan stops. 4 leases' worth:
# beyond it a stuck group is better seen as lag than as memory.
HELD_MAX = 2_048
# Messages of one queue in flight before it gives more: each receive looks at the groups of all.
INFLIGHT_MAX = 8_192
# Messages one receive looks at, of all queues, before it lets others have a turn of the loop: new
# ones, and those of which nobody remembers the group; and the bytes of those it does not take.
_READ_MAX = 4_096
_PASSED_BYTES_MAX = 8 << 20
# Names that are remembered, and as many of those before them.
_NAMES_MAX = 50_000

MessageKey = tuple[int, int, int]


class MessageGroups:
    """Remembers which message group an offset belongs to, to spare reading it again."""

    def __init__(self) -> None:
        self._names: dict[MessageKey, str] = {}
        self._older: dict[MessageKey, str] = {}
        self._max = _NAMES_MAX
        self._read_again = 0

    def known(self, key: MessageKey) -> str | None:
        """The message group at an offset; None if nobody remembers."""
        name = self._names.get(key)
        if name is None:
            name = self._older.get(key)
            if name is not None:
                self._note(key, name)
        return name

    def remember(self, key: MessageKey, record: MessageRecord) -> str:
        """Note the message group of a message that was read."""
        name = wire.message_group(record.system)
        self._note(key, name)
        return name

    def learn(self, key: MessageKey, record: MessageRecord | None) -> str:
        """Note that of a message that had to be read for it; "" if it is lost."""
        self._read_again += 1
        name = "" if record is None else wire.message_group(record.system)
        self._note(key, name)
        return name

    def _note(self, key: MessageKey, name: str) -> None:
        if len(self._names) >= self._max:
            # Mostly what was forgotten too early: more is in flight than is remembered.
            if 2 * self._read_again >= self._max:
                self._max *= 2
            self._read_again = 0
            # Not all at once: what is in flight would be read again, thousands of messages a turn.
            self._older, self._names = self._names, {}
        self._names[key] = name


class FifoPlanner:
    """Plans one receive of an ordered group; made for it and thrown away."""

    def __init__(
        self, demand: Demand, matcher: Matcher, reader: QueueReader, groups: MessageGroups
    ) -> None:
        self._planner = ReceivePlanner(demand, matcher, reader)
        self._demand = demand
        self._matcher = matcher
        self._reader = reader
        self._groups = groups
        self._room = demand.room
        self._read_left = _READ_MAX
        self._passed_left = _PASSED_BYTES_MAX
        self._bytes_left = BYTES_MAX

    @property
    def plan(self) -> ReceivePlan:
        """What was planned so far."""
        return self._planner.plan

    @property
    def is_full(self) -> bool:
        """Whether the batch is."""
        return self._room == 0 or self._bytes_left <= 0

    def receive(self, progress: Progress, end: int) -> None:
        """Take from one queue, which ends before `end`."""
        if progress.inflight >= INFLIGHT_MAX:
            return
        in_flight = (offset for lease in progress.leases for offset in lease.offsets())
        blocked = self._groups_of(progress, in_flight)
        if blocked is None or not self._take_ready(progress, blocked):
            self.plan.is_more = True
            return
        # What is given up now goes on holding its group back in this receive.
        self.plan.is_more = self.plan.is_more or self.is_full or bool(self.plan.settled)
        if not self.is_full and end > progress.cursor and len(progress.ready) < HELD_MAX:
            start = self._pass_gone(progress, end)
            stop = min(end, start + min(LEASE_SPAN, self._read_left))
            self._read_left -= stop - start
            at = self._take_fresh(progress, blocked, start, stop)
            self.plan.is_more = self.plan.is_more or at < end

    def repeat(self, progresses: Iterable[Progress]) -> bool:
        """Take over all that is left of the receive of this name, of every queue it was from."""
        attempt_id = self._demand.attempt_id
        taken = [
            self._repeat(progress, progress.attempts[attempt_id])
            for progress in progresses
            if attempt_id in progress.attempts
        ]
        return any(taken)

    def _repeat(self, progress: Progress, lease_ids: list[int]) -> bool:
        taken = False
        for lease_id in lease_ids:
            lease = progress.leases.get(lease_id)
            if lease is None:
                continue
            found = [
                (queue_offset, record)
                for queue_offset in lease.offsets()
                if (record := self._planner.read(progress, queue_offset)) is not None
            ]
            if found:
                pop = self._pop(progress, lease.base, lease.mask, lease.attempt)
                pop.replaces = lease_id
                self._planner.take(pop, found)
                taken = True
        return taken

    def _groups_of(self, progress: Progress, queue_offsets: Iterable[int]) -> set[str] | None:
        """The message groups of some messages; None if one is yet to be found out."""
        names = set()
        for queue_offset in queue_offsets:
            name = self._group_of(progress, queue_offset)
            if name is None:
                return None
            names.add(name)
        return names

    def _group_of(self, progress: Progress, queue_offset: int) -> str | None:
        """The message group of a message; None if this receive has read enough to find it out.

        After a start nobody remembers those of what is in flight and held.
        """
        _, topic_id, queue_id = progress.place
        key = (topic_id, queue_id, queue_offset)
        name = self._groups.known(key)
        if name is None and not self._has_read_enough:
            record = self._planner.read(progress, queue_offset)
            self._passed(record)
            name = self._groups.learn(key, record)
        return name

    def _passed(self, record: MessageRecord | None) -> None:
        self._read_left -= 1
        self._passed_left -= 0 if record is None else len(record.body)

    @property
    def _has_read_enough(self) -> bool:
        return self._read_left <= 0 or self._passed_left <= 0

    def _take_ready(self, progress: Progress, blocked: set[str]) -> bool:
        """Take what waits and may go; False if this receive has read enough to end there."""
        run: Found = []
        run_attempt = 0
        is_done = True
        for queue_offset in sorted(progress.ready):
            if self.is_full:
                break
            if self._has_read_enough:
                is_done = False
                break
            attempt = progress.ready[queue_offset]
            name = self._group_of(progress, queue_offset)
            assert name is not None, "not enough was read to end there"
            if name in blocked:
                continue
            if attempt > self._demand.attempts_max:
                self.plan.exhausted.append((progress.place, queue_offset))
                blocked.add(name)
                continue
            record = self._planner.read(progress, queue_offset)
            if record is None or not self._matcher.matches(record):
                self._planner.settle(progress, queue_offset)
                self._passed(record)
                continue
            if run and (attempt != run_attempt or queue_offset >= run[0][0] + LEASE_SPAN):
                self._pop_run(progress, run, run_attempt)
                run = []
            run.append((queue_offset, record))
            run_attempt = attempt
            self._room -= 1
            self._bytes_left -= len(record.body)
        if run:
            self._pop_run(progress, run, run_attempt)
        if not self._room:
            self.plan.is_more = True
        return is_done

    def _pop_run(self, progress: Progress, run: Found, attempt: int) -> None:
        base = run[0][0]
        mask = sum(1 << (queue_offset - base) for queue_offset, _ in run)
        self._planner.take(self._pop(progress, base, mask, attempt), run)

    def _pass_gone(self, progress: Progress, end: int) -> int:
        """Pass over what retention took; return where the rest begins."""
        _, topic_id, queue_id = progress.place
        base, first = progress.cursor, min(self._reader.min_offset(topic_id, queue_id), end)
        if first <= base:
            return base
        pop = self._pop(progress, base, 0, 1)
        pop.count = first - base
        self._planner.take(pop, [])
        return first

    def _take_fresh(self, progress: Progress, blocked: set[str], base: int, end: int) -> int:
        """Look at new messages of [base, end); return up to where."""
        # Held messages of a group must go before its new ones, also when the filter or the
        # batch passed them over in this very receive.
        held_groups = self._held_groups(progress)
        if held_groups is None:
            return base
        blocked = blocked | held_groups
        found: Found = []
        mask = held = 0
        at = base
        while at < end and not self.is_full and self._passed_left > 0:
            record = self._planner.read(progress, at)
            if record is not None and self._matcher.matches(record):
                _, topic_id, queue_id = progress.place
                name = self._groups.remember((topic_id, queue_id, at), record)
                if name not in blocked:
                    mask |= 1 << (at - base)
                    found.append((at, record))
                    self._room -= 1
                    self._bytes_left -= len(record.body)
                    at += 1
                    continue
                held |= 1 << (at - base)
            self._passed_left -= 0 if record is None else len(record.body)
            at += 1
        if at > base:
            pop = self._pop(progress, base, mask, 1)
            pop.count = at - base
            pop.held = held
            self._planner.take(pop, found)
        self.plan.is_more = self.plan.is_more or self.is_full
        return at

    def _held_groups(self, progress: Progress) -> set[str] | None:
        taken = {queue_offset for _, found in self.plan.takes for queue_offset, _ in found}
        return self._groups_of(progress, (each for each in progress.ready if each not in taken))

    def _pop(self, progress: Progress, base: int, mask: int, attempt: int) -> Pop:
        demand = self._demand
        return Pop(
            demand.lease_ms,
            *progress.place,
            demand.first_lease_id + len(self.plan.takes) if mask else 0,
            base,
            0,
            mask,
            attempt=attempt,
            invisible_ms=demand.invisible_ms,
            is_auto_renewed=bool(demand.client_id),
            client_id=demand.client_id,
            attempt_id=demand.attempt_id,
        )
