"""The done set against a plain set."""

from hypothesis import example, given
from hypothesis import strategies as st

from cosmodrome_server.core.done_set import CHUNK_BITS, DoneSet

OFFSETS = st.integers(0, 3 * CHUNK_BITS)
STEPS = st.one_of(
    st.tuples(st.just("one"), OFFSETS, st.just(0)),
    st.tuples(st.just("range"), OFFSETS, st.integers(0, 2 * CHUNK_BITS)),
    st.tuples(st.just("mask"), OFFSETS, st.integers(0, 1 << 20)),
)


@given(st.integers(0, CHUNK_BITS + 3), st.lists(STEPS, max_size=30))
@example(0, [("one", 5, 0), ("range", 0, 2 * CHUNK_BITS)])  # The floor passes a chunk whole.
def test_it_holds_what_was_added_and_its_floor_is_the_first_hole(
    floor: int, steps: list[tuple[str, int, int]]
) -> None:
    done, model = DoneSet(floor), set(range(floor))
    for kind, start, extent in steps:
        if kind == "one":
            done.add(start)
            model.add(start)
        elif kind == "range":
            done.add_range(start, start + extent)
            model |= set(range(start, start + extent))
        else:
            done.add_mask(start, extent)
            model |= {start + bit for bit in range(extent.bit_length()) if extent >> bit & 1}
        hole = next(offset for offset in range(10**6) if offset not in model)
        assert done.floor == hole
        assert done.end == max(model, default=-1) + 1
    for offset in range(6 * CHUNK_BITS):
        assert (offset in done) == (offset in model)
    for start, end in ((0, 10), (floor, 2 * CHUNK_BITS), (CHUNK_BITS - 1, 5 * CHUNK_BITS)):
        assert done.count(start, end) == sum(start <= offset < end for offset in model)


@given(st.permutations(range(2 * CHUNK_BITS + 5)))
def test_adding_everything_in_any_order_leaves_nothing_behind(order: list[int]) -> None:
    done = DoneSet(0)
    for offset in order:
        done.add(offset)
    assert done.floor == 2 * CHUNK_BITS + 5
    assert done.above_floor() == []
    assert len(done.chunks) <= 1
