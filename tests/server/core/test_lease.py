"""Leases against a dict of tuples, packed or not."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cosmodrome_server.core.lease import Lease, LeaseBlock, Leases

Known = tuple[int, int, int, int, bool]


def lease_of(lease_id: int, known: Known) -> Lease:
    base, mask, deadline_ms, attempt, is_suspended = known
    lease = Lease(lease_id, base, mask, deadline_ms, attempt)
    lease.is_suspended = is_suspended
    return lease


def known_of(lease: Lease) -> Known:
    return lease.base, lease.mask, lease.deadline_ms, lease.attempt, lease.is_suspended


class LeasesMachine(RuleBasedStateMachine):
    """The model is what was added, by id; blocks are watched as `Consumptions` does."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.model: dict[int, Known] = {}
        self.blocks: list[LeaseBlock] = []
        self.next_id = 1

    @rule(
        count=st.integers(1, 40),
        mask=st.sampled_from([1, 1, 1, 0b101]),
        deadline_ms=st.one_of(st.integers(0, 20), st.just((1 << 47) - 1), st.just(1 << 47)),
        attempt=st.sampled_from([1, 2, 65_535, 65_536, 70_000]),
        is_suspended=st.booleans(),
    )
    def pops(
        self, count: int, mask: int, deadline_ms: int, attempt: int, *, is_suspended: bool
    ) -> None:
        for _ in range(count):
            known = (self.next_id * 3, mask, deadline_ms, attempt, is_suspended)
            self.model[self.next_id] = known
            self.leases.add(lease_of(self.next_id, known))
            self.next_id += 1

    @rule()
    def packs(self) -> None:
        made = self.leases.pack()
        self.blocks += made
        assert all(self.model[lease_id][1] == 1 for block in made for lease_id in block.ids)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def takes_one_message(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(list(self.model)))
        base, mask, *rest = self.model.pop(lease_id)
        lease = self.leases.get(lease_id)
        assert lease is not None
        self.leases.take(lease, 1)
        if mask & ~1:
            self.model[lease_id] = (base, mask & ~1, rest[0], rest[1], bool(rest[2]))

    @rule(lease_id=st.integers(1, 500))
    def ends(self, lease_id: int) -> None:
        self.leases.discard(lease_id)
        self.model.pop(lease_id, None)

    @precondition(lambda self: any(self.blocks))
    @rule(until_ms=st.integers(0, 25))
    def unpacks(self, until_ms: int) -> None:
        block = next(block for block in self.blocks if block)
        due = {lease_id for lease_id in block.ids if self.model[lease_id][2] <= until_ms}
        if due:
            assert block.first_deadline_ms == min(self.model[each][2] for each in due)
        unpacked = self.leases.unpack_due(block, until_ms)
        assert {lease.lease_id for lease in unpacked} == due
        # An object is changed in place.
        for lease in unpacked:
            lease.attempt = 7
            base, mask, deadline_ms, _, is_suspended = self.model[lease.lease_id]
            self.model[lease.lease_id] = (base, mask, deadline_ms, 7, is_suspended)

    @rule()
    def ends_all(self) -> None:
        self.leases.clear()
        self.model.clear()
        assert not any(self.blocks)

    @invariant()
    def tells_what_was_added(self) -> None:
        assert [(each.lease_id, known_of(each)) for each in self.leases] == sorted(
            self.model.items()
        )
        assert len(self.leases) == len(self.model)
        assert bool(self.leases) == bool(self.model)
        assert self.leases.inflight == sum(known[1].bit_count() for known in self.model.values())
        for lease_id in range(self.next_id + 1):
            assert (lease_id in self.leases) == (lease_id in self.model)


TestLeases = LeasesMachine.TestCase


def test_a_lease_that_is_renewed_stays_an_object() -> None:
    leases = Leases()
    for lease_id in range(100):
        lease = lease_of(lease_id, (lease_id, 1, 1_000, 1, False))
        lease.client_id, lease.popped_ms = "client-1", 5
        leases.add(lease)

    assert leases.pack() == []
    found = leases.get(3)
    assert found is not None
    assert (found.client_id, found.popped_ms) == ("client-1", 5)


def test_a_packed_lease_weighs_its_numbers() -> None:
    leases = Leases()
    for lease_id in range(1_000):
        leases.add(lease_of(lease_id, (lease_id, 1, 1_000, 1, False)))

    blocks = leases.pack()

    packed = sum(map(len, blocks))
    assert packed >= 984
    columns = [getattr(block, name) for block in blocks for name in ("_ids", "_offsets", "_terms")]
    assert sum(len(column) * column.itemsize for column in columns) == 16 * packed


@pytest.mark.parametrize(("apart", "is_packed"), [((1 << 32) - 1, True), (1 << 32, False)])
@pytest.mark.parametrize("what", ["ids", "offsets", "offsets, the older one behind"])
def test_a_block_holds_what_is_near(what: str, *, apart: int, is_packed: bool) -> None:
    leases = Leases()
    far_id, far_offset = (apart, 15) if what == "ids" else (15, apart)
    known = [(number, number) for number in range(15)]
    known.append((far_id, far_offset))
    if what.endswith("behind"):
        known = [(lease_id, apart - offset) for lease_id, offset in known]
    for lease_id, offset in known:
        leases.add(lease_of(lease_id, (offset, 1, 1_000, 1, False)))

    assert bool(leases.pack()) == is_packed

    assert [(lease.lease_id, lease.base) for lease in leases] == known
    for lease_id, offset in known:
        found = leases.get(lease_id)
        assert found is not None
        assert found.base == offset
        leases.discard(lease_id)
    assert not leases


def test_what_is_younger_than_a_block_is_packed_and_what_is_older_stays() -> None:
    leases = Leases()
    for lease_id in range(100, 200):
        leases.add(lease_of(lease_id, (lease_id, 1, 1_000, 1, False)))
    leases.pack()
    for lease_id in [*range(50, 80), *range(200, 230)]:
        leases.add(lease_of(lease_id, (lease_id, 1, 1_000, 1, False)))

    (block,) = leases.pack()

    assert list(block.ids) == list(range(200, 230))
    assert [lease.lease_id for lease in leases] == [*range(50, 80), *range(100, 230)]


def test_a_block_whose_leases_are_all_due_is_gone() -> None:
    leases = Leases()
    for lease_id in range(32):
        leases.add(lease_of(lease_id, (lease_id, 1, 1_000, 1, False)))
    (block,) = leases.pack()

    due = leases.unpack_due(block, 1_000)
    for lease in due:
        leases.discard(lease.lease_id)

    assert len(due) == 32
    # An empty block that stayed would be memory for ever, and say that there are leases.
    assert not leases


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_message_leaves_only_the_lease_that_holds_it(*, is_packed: bool) -> None:
    leases = Leases()
    for lease_id in range(20):
        leases.add(lease_of(lease_id, (100 + lease_id, 1, 1_000, 2, False)))
    if is_packed:
        assert sum(map(len, leases.pack())) == 20

    assert leases.leave(3, 104) is None
    assert leases.leave(20, 103) is None
    assert len(leases) == 20
    left = leases.leave(3, 103)
    assert left is not None
    assert (left.lease_id, left.mask, left.attempt) == (3, 0, 2)
    assert leases.leave(3, 103) is None
    assert 3 not in leases
    assert len(leases) == 19
