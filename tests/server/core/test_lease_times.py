"""Leases end in their time and order, and are asked for in theirs, young, in heaps or packed."""

from random import Random

import msgspec
import pytest

from cosmodrome_server.core import consumptions as sources
from cosmodrome_server.core import lease as leases
from cosmodrome_server.core.catalogue import Catalogue
from cosmodrome_server.core.consumptions import RENEW_AHEAD_MS, Consumptions
from cosmodrome_server.core.records import (
    Ack,
    AckMany,
    ChangeInvisible,
    ConsumptionRecord,
    Pop,
    Renew,
    SetOffset,
)
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic

QUEUES = 3
ATTEMPTS_MAX = 2


class Held(msgspec.Struct):
    """A lease as a list of facts."""

    lease_id: int
    queue_id: int
    offsets: list[int]
    deadline_ms: int
    attempt: int
    popped_ms: int = 0
    client_id: str = ""
    is_suspended: bool = False
    is_asked: bool = False

    @property
    def renew_ms(self) -> int:
        left_ms = self.deadline_ms - self.popped_ms
        return self.deadline_ms - min(RENEW_AHEAD_MS, left_ms // 2)


class Deliveries:
    """The machine under test beside lists that are searched each time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._catalogue = Catalogue()
        for record in (
            self._catalogue.plan_topic(Topic("orders", queues=QUEUES), 0),
            self._catalogue.plan_group(Group("billing", max_attempts=ATTEMPTS_MAX), 0),
        ):
            self._catalogue.apply(record.kind, record.payload)
        self._machine = Consumptions(self._catalogue)
        self._now_ms = 1_000_000
        self._last_id = 0
        self._held: dict[int, Held] = {}
        self._cursors = [0] * QUEUES
        self._ready: list[dict[int, int]] = [{} for _ in range(QUEUES)]
        for queue_id in range(QUEUES):
            self._machine.apply(SetOffset(0, 1, 1, queue_id, 0))

    def act(self) -> None:
        """One thing a client or time does, and what must be true after it."""
        many = [self._pop] * 5 + [self._settle] * 4
        few = [self._pass_time] * 3 + [self._change, self._renew, self._go, self._start]
        self._random.choice([*many, *few])()
        self._check()

    def _apply(self, record: ConsumptionRecord) -> None:
        self._machine.advance(self._now_ms)
        self._machine.apply(record)

    def _terms(self) -> tuple[int, int]:
        self._last_id += self._random.choice([1, 1, 1, 7])
        return self._last_id, self._random.choice([0, 30, 3_000, 60_000, 600_000])

    def _pop(self) -> None:
        queue_id = self._random.randrange(QUEUES)
        lease_id, invisible_ms = self._terms()
        ready, client_id = self._ready[queue_id], self._random.choice(["", "", "", "a", "b"])
        if ready and self._random.random() < 0.5:
            base = next(iter(ready))
            count, offsets, attempt = 0, [base], ready.pop(base)
        else:
            base, attempt = self._cursors[queue_id], 1
            count = self._random.choice([1, 1, 1, 3])
            offsets = list(range(base, base + count))
            self._cursors[queue_id] += count
        deadline_ms = self._now_ms + invisible_ms
        popped_ms = self._now_ms if client_id else 0
        self._held[lease_id] = Held(
            lease_id, queue_id, offsets, deadline_ms, attempt, popped_ms, client_id
        )
        mask = (1 << len(offsets)) - 1
        self._apply(
            Pop(
                self._now_ms,
                1,
                1,
                queue_id,
                lease_id,
                base,
                count,
                mask,
                attempt=attempt,
                invisible_ms=invisible_ms,
                client_id=client_id,
            )
        )

    def _any(self) -> Held | None:
        return self._random.choice(list(self._held.values())) if self._held else None

    def _settle(self) -> None:
        held = self._any()
        if held is None:
            return
        if len(held.offsets) > 1 and self._random.random() < 0.5:
            gone = held.offsets[:2]
            lease = self._machine.at((1, 1, held.queue_id)).leases.get(held.lease_id)
            assert lease is not None
            mask = sum(1 << (each - lease.base) for each in gone)
            self._apply(AckMany(self._now_ms, 1, 1, held.queue_id, held.lease_id, lease.base, mask))
        else:
            gone = [self._random.choice(held.offsets)]
            self._apply(Ack(self._now_ms, 1, 1, held.queue_id, held.lease_id, gone[0]))
        self._leave(held, gone)

    def _leave(self, held: Held, gone: list[int]) -> None:
        held.offsets = [each for each in held.offsets if each not in gone]
        if not held.offsets:
            del self._held[held.lease_id]

    def _change(self) -> None:
        held = self._any()
        if held is None:
            return
        lease_id, invisible_ms = self._terms()
        moved, is_suspended = self._random.choice(held.offsets), self._random.random() < 0.5
        self._apply(
            ChangeInvisible(
                self._now_ms,
                1,
                1,
                held.queue_id,
                held.lease_id,
                moved,
                lease_id,
                invisible_ms,
                is_suspended,
            )
        )
        self._leave(held, [moved])
        self._held[lease_id] = Held(
            lease_id,
            held.queue_id,
            [moved],
            self._now_ms + invisible_ms,
            held.attempt,
            is_suspended=is_suspended,
        )

    def _renew(self) -> None:
        self._machine.advance(self._now_ms)
        self._expire()
        due = self._machine.due_renewals(self._now_ms)
        expected = {
            held.lease_id
            for held in self._held.values()
            if held.client_id and not held.is_asked and held.renew_ms <= self._now_ms
        }
        assert {lease.lease_id for _, lease in due} == expected
        for _, lease in due:
            held = self._held[lease.lease_id]
            held.is_asked = True
            if self._random.random() < 0.7:
                is_last = self._random.random() < 0.3
                self._renewed(held, self._random.choice([1_000, 60_000, 600_000]), is_last=is_last)

    def _renewed(self, held: Held, invisible_ms: int, *, is_last: bool) -> None:
        self._apply(Renew(self._now_ms, 1, 1, held.queue_id, held.lease_id, invisible_ms, is_last))
        held.deadline_ms = self._now_ms + invisible_ms
        held.is_asked = False
        if is_last:
            held.client_id = ""

    def _go(self) -> None:
        client_id = self._random.choice("ab")
        self._machine.advance(self._now_ms)
        self._expire()
        found = self._machine.leases_of(client_id)
        expected = {each.lease_id for each in self._held.values() if each.client_id == client_id}
        assert {lease.lease_id for _, lease in found} == expected
        if self._random.random() < 0.3:
            for _, lease in found:
                self._renewed(self._held[lease.lease_id], 1_000, is_last=True)

    def _pass_time(self) -> None:
        self._now_ms += self._random.choice([0, 0, 1, 29, 30, 1_000, 9_000, 200_000])
        self._machine.advance(self._now_ms)

    def _start(self) -> None:
        if self._random.random() < 0.8:
            list(self._machine.dirty_rows())
            return
        rows = list(self._machine.rows())
        self._machine = Consumptions(self._catalogue)
        self._machine.starting()
        for key, value in rows:
            self._machine.restore(key, value)
        if self._random.random() < 0.5:
            self._pop()
        self._machine.started()
        for held in self._held.values():
            held.is_asked = False

    def _expire(self) -> None:
        due = [each for each in self._held.values() if each.deadline_ms <= self._now_ms]
        for held in sorted(due, key=lambda each: (each.deadline_ms, each.lease_id)):
            attempt = held.attempt + (not held.is_suspended)
            self._ready[held.queue_id].update(dict.fromkeys(held.offsets, attempt))
            del self._held[held.lease_id]

    def _check(self) -> None:
        self._machine.advance(self._now_ms)
        self._expire()
        consumption = self._machine.of(1, 1)
        assert consumption is not None
        assert consumption.inflight == sum(len(each.offsets) for each in self._held.values())
        for queue_id, ready in enumerate(self._ready):
            progress = self._machine.find((1, 1, queue_id))
            assert progress is not None
            assert list(progress.ready.items()) == list(ready.items())
            for queue_offset, attempt in ready.items():
                if attempt > ATTEMPTS_MAX:
                    assert (progress.place, queue_offset) in self._machine.exhausted
            held = [each for each in self._held.values() if each.queue_id == queue_id]
            assert [
                (each.lease_id, each.offsets(), each.deadline_ms, each.attempt, each.client_id)
                for each in progress.leases
            ] == [
                (each.lease_id, each.offsets, each.deadline_ms, each.attempt, each.client_id)
                for each in sorted(held, key=lambda each: each.lease_id)
            ]
        times = [each.deadline_ms for each in self._held.values()]
        times += [e.renew_ms for e in self._held.values() if e.client_id and not e.is_asked]
        if times:
            assert self._machine.next_deadline_ms() <= min(times)


@pytest.mark.parametrize("seed", range(12))
def test_leases_end_and_are_asked_for_in_their_time_wherever_they_are_kept(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(sources, "_YOUNG_MAX", random.choice([1, 4, 1_024]))
    monkeypatch.setattr(sources, "_SWEEP_MIN", random.choice([2, 16]))
    monkeypatch.setattr(sources, "_LAY_MIN", random.choice([1, 4_096]))
    monkeypatch.setattr(leases, "_BLOCK_MIN", random.choice([1, 3]))
    deliveries = Deliveries(seed)
    for _ in range(600):
        deliveries.act()
