from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.errors import CorruptFrame, TornFrame
from cosmodrome_server.store import frame
from cosmodrome_server.store.frame import FrameHeader
from cosmodrome_server.store.segment import OFFSET_MASK

SEED = 77


def encoded(payload: bytes, lsn: int = 5, seed: int = SEED) -> bytes:
    header = FrameHeader(len(payload), 0, 2, lsn, 1_790_000_000_000, lsn - 1, 3, 9)
    return frame.encode_header(seed, header, [payload]) + payload


def decode(data: bytes) -> None:
    frame.verify(SEED, frame.decode_header(data), data[frame.HEADER_BYTES :])


@given(st.binary(max_size=200), st.integers(1, (1 << 64) - 1))
def test_what_was_encoded_is_decoded(payload: bytes, lsn: int) -> None:
    header = FrameHeader(len(payload), 0, 2, lsn, 17, lsn - 1, 3, 9)
    data = frame.encode_header(SEED, header, [payload])

    found = frame.decode_header(b"xy" + data, 2)

    assert found._replace(crc=0) == header
    frame.verify(SEED, found, payload)


@given(st.binary(max_size=100), st.lists(st.integers(0, 100), max_size=5))
def test_the_checksum_does_not_depend_on_how_the_payload_is_cut(
    payload: bytes, cuts: list[int]
) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(payload)), len(payload)]
    parts = [payload[start:end] for start, end in pairwise(bounds)]
    header = FrameHeader(len(payload), 0, 1, 1, 1, 0, 1, 0)

    assert frame.encode_header(SEED, header, parts) == frame.encode_header(SEED, header, [payload])


def test_every_flipped_bit_is_noticed() -> None:
    good = encoded(b"some payload")
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptFrame, TornFrame)):
            decode(bytes(data))


def test_every_cut_is_noticed() -> None:
    good = encoded(b"some payload")
    for end in range(len(good)):
        with pytest.raises(TornFrame):
            decode(good[:end])


def test_a_frame_of_another_segment_is_no_frame() -> None:
    data = encoded(b"payload", seed=SEED + 1)

    with pytest.raises(CorruptFrame, match="checksum"):
        frame.verify(SEED, frame.decode_header(data), data[frame.HEADER_BYTES :])


def test_zeros_are_no_frame() -> None:
    with pytest.raises(CorruptFrame, match="no frame"):
        frame.decode_header(bytes(100))


def test_whatever_fits_a_segment_is_no_less_a_frame_for_its_length() -> None:
    header = FrameHeader(OFFSET_MASK, 0, 2, 5, 17, 4, 3, 9)

    assert frame.decode_header(frame.encode_header(SEED, header, [])).length == OFFSET_MASK
