"""Records applied in the runs in which they lie are what they are one by one, as live."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from cosmodrome_server.core.shard import Shard
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.store import record as store
from tests.support.memory_log import MemoryLog

Place = tuple[int, int, int]
DAY_MS = 86_400_000


class Writer:
    """Makes up records that mostly fit what was written before, as a log's do, but not always."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._at_ms = 1_000_000
        self._last_lease_id = 0
        self._popped: list[tuple[Place, int, int]] = []
        self._cursors: Counter[Place] = Counter()
        self._ends: Counter[int] = Counter()

    def record(self) -> bytes:
        """The bytes of the next one."""
        self._at_ms += self._random.choice([0, 0, 0, 0, 1, 40, 600, -500])
        often = [self._pop] * 12 + [self._ack] * 12
        rare = [self._many, self._change, self._renew, self._bury, self._move]
        made = self._random.choice([*often, *rare, self._message, self._message, self._delete])()
        if isinstance(made, bytes):
            return made
        return store.encode_state(made.kind, made.encode()) + made.encode()

    def _place(self) -> Place:
        # Of group 3 nothing is known, as if its frame had been lost.
        choice = self._random.choice
        return choice([1, 1, 1, 1, 2, 2, 3]), choice([1, 1, 1, 2]), choice([0, 0, 1])

    def _new_lease_id(self) -> int:
        self._last_lease_id += 1
        return self._last_lease_id

    def _pop(self) -> ConsumptionRecord:
        choice, place = self._random.choice, self._place()
        count, mask = choice([(1, 1), (1, 1), (1, 1), (3, 0b111), (4, 0b101), (2, 0), (0, 1)])
        pop = Pop(
            self._at_ms,
            *place,
            self._new_lease_id() if mask else 0,
            self._cursors[place] if count else self._random.randrange(6),
            count,
            mask,
            attempt=1 if count else choice([1, 2, 3]),
            invisible_ms=choice([0, 30, 30, 500, 5_000]),
        )
        self._cursors[place] += count
        if choice([True, False, False]):
            pop.is_auto_renewed, pop.client_id = True, choice("abc")
        if not choice(range(8)):
            self._order(pop)
        if mask:
            self._popped += [
                (place, pop.lease_id, pop.base + bit)
                for bit in range(mask.bit_length())
                if mask >> bit & 1
            ]
        return pop

    def _order(self, pop: Pop) -> None:
        """As a receive of an ordered group, perhaps a repeated one."""
        pop.attempt_id = self._random.choice(["", "x", "y"])
        if pop.count == 4:
            pop.held = 0b1000
        place = pop.group_id, pop.topic_id, pop.queue_id
        leases = [lease_id for at, lease_id, _ in self._popped if at == place]
        if not pop.count and leases:
            pop.replaces = self._random.choice(leases)

    def _delivery(self) -> tuple[Place, int, int]:
        if self._popped and self._random.random() < 0.95:
            at = -1 - min(int(self._random.expovariate(0.3)), len(self._popped) - 1)
            # Most deliveries end once.
            return self._popped.pop(at) if self._random.random() < 0.8 else self._popped[at]
        return self._place(), self._random.randrange(5), self._random.randrange(8)

    def _ack(self) -> ConsumptionRecord:
        place, lease_id, queue_offset = self._delivery()
        return Ack(self._at_ms, *place, lease_id, queue_offset)

    def _many(self) -> ConsumptionRecord:
        place, lease_id, queue_offset = self._delivery()
        return AckMany(self._at_ms, *place, lease_id, queue_offset, self._random.choice([1, 5, 7]))

    def _change(self) -> ConsumptionRecord:
        place, lease_id, queue_offset = self._delivery()
        new_lease_id = self._new_lease_id()
        self._popped.append((place, new_lease_id, queue_offset))
        return ChangeInvisible(
            self._at_ms,
            *place,
            lease_id,
            queue_offset,
            new_lease_id,
            self._random.choice([0, 20, 700]),
            self._random.choice([True, False]),
        )

    def _renew(self) -> ConsumptionRecord:
        place, lease_id, _ = self._delivery()
        is_last = self._random.choice([True, False, False])
        return Renew(self._at_ms, *place, lease_id, self._random.choice([0, 900]), is_last)

    def _bury(self) -> ConsumptionRecord:
        place, lease_id, queue_offset = self._delivery()
        return DeadLetter(self._at_ms, *place, lease_id, queue_offset, 7)

    def _move(self) -> ConsumptionRecord:
        place, choice = self._place(), self._random.choice
        queue_offset = self._cursors[place] = choice([0, self._cursors[place]])
        return SetOffset(self._at_ms, *place, queue_offset, choice([True, False]))

    def _message(self) -> bytes:
        queue_id = self._random.randrange(3)
        queue_offset, stored_ms = self._ends[queue_id], self._ends.total()
        self._ends[queue_id] += 1
        state = MessageState.VISIBLE
        message = MessageRecord(state, 1, queue_id, queue_offset, 5, stored_ms, 0, b"s", b"", b"b")
        return b"".join(store.encode_message(message))

    def _delete(self) -> bytes:
        """Group 2, if it is there still; as a record of the catalogue it has but a time before."""
        shard = known()
        made = shard.catalogue.plan_group_deletion("ledger", self._at_ms)
        if self._random.random() < 0.8:
            return self._message()
        return store.encode_state(made.kind, made.payload) + made.payload


def known() -> Shard:
    shard = Shard(MemoryLog())
    for name in ("orders", "steps"):
        shard.apply_catalogue(shard.catalogue.plan_topic(Topic(name, queues=3), 0))
    shard.apply_catalogue(shard.catalogue.plan_group(Group("billing", max_attempts=2), 0))
    shard.apply_catalogue(shard.catalogue.plan_group(Group("ledger", is_fifo=True), 0))
    return shard


def seen(shard: Shard) -> list[object]:
    """All there is to be seen of the state, and of what is left to do."""
    consumptions, topics = shard.consumptions, shard.catalogue.topics_by_id.values()
    return [
        shard.state_hash(),
        sorted(shard.rows()),
        shard.orphans,
        [(topic.last_queue, list(topic.next_offsets)) for topic in topics],
        [
            (pair, each.turn, each.pops, each.is_ready_first, each.inflight, each.queues)
            for pair, each in consumptions.by_pair.items()
        ],
        list(consumptions.became_ready),
        list(consumptions.exhausted),
    ]


def ahead(shard: Shard) -> list[object]:
    """What becomes of it when time goes on."""
    consumptions = shard.consumptions
    found: list[object] = []
    for _ in range(4):
        found += [
            (progress.place, msgspec.structs.astuple(lease))
            for progress, lease in consumptions.due_renewals(shard.lease_ms)
        ]
        found += [
            [(progress.place, lease.lease_id) for progress, lease in consumptions.leases_of(client)]
            for client in "abc"
        ]
        assert consumptions.next_deadline_ms() > shard.lease_ms - DAY_MS
        shard.advance(shard.lease_ms + 250)
        found.append(seen(shard))
    shard.advance(shard.lease_ms + DAY_MS)
    return [*found, seen(shard)]


def one_by_one(frames: Iterable[bytes]) -> Shard:
    shard = known()
    for frame in frames:
        for replayed in store.decode_records(frame, 64, 5):
            shard.replay(replayed)
    return shard


def in_runs(frames: Iterable[bytes]) -> Shard:
    shard = known()
    shard.restore([])
    for frame in frames:
        for replayed in store.decode_runs(frame, 64, 5):
            shard.replay(replayed)
    shard.consumptions.started()
    return shard


def framed(writer: Writer, records: int, per_frame: int) -> list[bytes]:
    made = [writer.record() for _ in range(records)]
    return [b"".join(made[at : at + per_frame]) for at in range(0, records, per_frame)]


@settings(max_examples=300)
@given(st.randoms(use_true_random=True), st.integers(1, 400), st.sampled_from([1, 7, 60, 400]))
def test_runs_give_the_state_that_their_records_give_one_by_one(
    random: Random, records: int, per_frame: int
) -> None:
    frames = framed(Writer(random), records, per_frame)

    runs, singles = in_runs(frames), one_by_one(frames)

    assert seen(runs) == seen(singles)
    assert ahead(runs) == ahead(singles)


@pytest.mark.parametrize("seed", range(10))
def test_runs_give_that_state_where_everything_is_packed_laid_down_and_forgotten_early(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = framed(Writer(Random(seed)), 2_000, 60)
    singles = one_by_one(frames)
    core = "cosmodrome_server.core"
    monkeypatch.setattr(f"{core}.consumptions._YOUNG_REPLAYED_MAX", 3)
    monkeypatch.setattr(f"{core}.consumptions._SWEEP_MIN", 1)
    monkeypatch.setattr(f"{core}.consumptions._LAY_MIN", 1)
    monkeypatch.setattr(f"{core}.lease._BLOCK_MIN", 1)
    monkeypatch.setattr(f"{core}.delivery_runs._KNOWN_MAX", 2)

    runs = in_runs(frames)

    assert seen(runs) == seen(singles)
    assert ahead(runs) == ahead(singles)
