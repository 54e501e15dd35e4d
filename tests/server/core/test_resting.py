"""Offsets of queues at rest."""

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.core.resting import RestingQueues


def test_a_queue_at_rest_has_its_offset_until_it_is_taken() -> None:
    resting = RestingQueues()
    resting.lay(3, 17, is_saved=True)
    resting.lay(1, 0, is_saved=True)

    assert list(resting) == [(1, 0), (3, 17)]
    assert [resting.get(queue_id) for queue_id in range(5)] == [None, 0, None, 17, None]
    assert (resting.take(3), resting.take(3), resting.take(9)) == (17, None, None)
    assert (len(resting), list(resting)) == (1, [(1, 0)])


def test_what_was_laid_unsaved_is_saved_once() -> None:
    resting = RestingQueues()
    resting.lay(0, 5, is_saved=True)
    resting.lay(1, 6, is_saved=False)
    resting.lay(2, 7, is_saved=False)
    resting.take(2)

    assert list(resting.save()) == [(1, 6)]
    assert list(resting.save()) == []


@given(st.dictionaries(st.integers(0, 300), st.tuples(st.integers(0, 1 << 60), st.booleans())))
def test_all_that_was_laid_is_there(laid: dict[int, tuple[int, bool]]) -> None:
    resting = RestingQueues()
    for queue_id, (queue_offset, is_saved) in laid.items():
        resting.lay(queue_id, queue_offset, is_saved=is_saved)

    assert dict(resting) == {queue_id: offset for queue_id, (offset, _) in laid.items()}
    unsaved = {queue_id: offset for queue_id, (offset, is_saved) in laid.items() if not is_saved}
    assert dict(resting.save()) == unsaved
    assert len(resting) == len(laid)
