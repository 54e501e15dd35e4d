from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.errors import CorruptFrame, StoreError
from cosmodrome_server.store import segment
from cosmodrome_server.store.segment import SegmentHeader

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


@given(st.builds(SegmentHeader, U64, U64, U64, U64, U32, U32))
def test_a_header_comes_back_as_it_was(header: SegmentHeader) -> None:
    data = segment.encode_header(header)

    assert len(data) == segment.HEADER_BYTES
    assert segment.decode_header(data + b"frames") == header


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    good = segment.encode_header(SegmentHeader(3, 99, 17, 1_790_000_000_000))
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            segment.decode_header(bytes(data))


def test_a_header_that_ends_early_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="no segment"):
        segment.decode_header(segment.encode_header(SegmentHeader(1, 2, 3, 4))[:63])


def test_a_newer_format_is_refused_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "VERSION", 2)
    data = segment.encode_header(SegmentHeader(1, 2, 3, 4))
    monkeypatch.undo()

    with pytest.raises(StoreError, match="format 2"):
        segment.decode_header(data)


def test_names_say_number_and_salt() -> None:
    header = SegmentHeader(42, 0x9F86D081884C7D65, 0, 0)

    path = segment.path_of(Path("shard"), header)

    assert path == Path("shard/0000000042-9f86d081884c7d65.seg")
    assert segment.named(["state.db", path.name, "spare", "0000000042.idx"]) == [header]


def test_segments_are_listed_by_number() -> None:
    names = [f"{n:010d}-{s:016x}.seg" for n, s in [(9, 1), (10, 0), (2, 5)]]

    assert [header.number for header in segment.named(names)] == [2, 9, 10]


def test_the_seed_depends_on_number_and_salt() -> None:
    seeds = {SegmentHeader(n, s, 0, 0).seed for n in range(3) for s in range(3)}

    assert len(seeds) == 9


def test_positions_name_segment_and_offset() -> None:
    position = 7 << segment.OFFSET_BITS | 1_234

    assert (segment.segment_of(position), segment.offset_of(position)) == (7, 1_234)
