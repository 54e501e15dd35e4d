"""Receipt handles: read back, and refused when anything about them is wrong."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.receipt_handle import ReceiptHandle, ReceiptHandles, suffix

KEY = b"k" * 32
U32 = st.integers(0, (1 << 32) - 1)
U16 = st.integers(0, (1 << 16) - 1)
U63 = st.integers(0, (1 << 63) - 1)
HANDLES = st.builds(ReceiptHandle, U32, U32, U16, U63, U63, U16, st.just(True))
SAMPLE = ReceiptHandle(1, 2, 3, 40, 5, 6)


@given(HANDLES, st.integers(0, 511))
def test_a_handle_is_read_back_by_who_knows_the_key(handle: ReceiptHandle, delta: int) -> None:
    text = ReceiptHandles(KEY).seal(handle) + suffix(delta)
    assert ReceiptHandles(KEY).open(text) == (handle, handle.base + delta)


@given(HANDLES, st.integers(0, 511))
def test_a_later_life_reads_it_and_knows_that_it_is_not_its_own(
    handle: ReceiptHandle, delta: int
) -> None:
    text = ReceiptHandles(KEY, life=b"one").seal(handle) + suffix(delta)
    found, queue_offset = ReceiptHandles(KEY, life=b"two").open(text)
    earlier = msgspec.structs.replace(handle, is_of_this_life=False)
    assert (found, queue_offset) == (earlier, handle.base + delta)
    assert ReceiptHandles(KEY, life=b"one").open(text)[0].is_of_this_life


@given(st.integers(0, 55), st.sampled_from("ABCxyz019-_"))
def test_a_changed_handle_is_refused(place: int, character: str) -> None:
    text = ReceiptHandles(KEY).seal(SAMPLE) + suffix(1)
    changed = text[:place] + character + text[place + 1 :]
    if changed != text:
        with pytest.raises(InvalidReceiptHandle):
            ReceiptHandles(KEY).open(changed)


@pytest.mark.parametrize("text", ["", "x", "ü" * 58, "A" * 58, "A" * 56 + "--", " " * 58])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandles(KEY).open(text)


def test_a_handle_of_another_key_or_shard_is_refused() -> None:
    text = ReceiptHandles(KEY).seal(SAMPLE) + suffix(0)
    for other in (ReceiptHandles(b"x" * 32), ReceiptHandles(KEY, shard=1)):
        with pytest.raises(InvalidReceiptHandle):
            other.open(text)


def test_what_was_read_is_remembered_within_bounds() -> None:
    handles = ReceiptHandles(KEY)
    for lease_id in range(17_000):
        handles.seal(ReceiptHandle(1, 2, 3, 4, lease_id, 1))
    assert len(handles._known) <= 16_384
