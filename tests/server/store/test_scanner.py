"""Every cut and every flipped bit of a segment, byte by byte."""

from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.store import frame, segment
from cosmodrome_server.store.files import File
from cosmodrome_server.store.frame import FrameHeader
from cosmodrome_server.store.scanner import Bad, Found, Tail, scan
from cosmodrome_server.store.segment import SegmentHeader
from tests.support.faulty_files import FaultyFiles

HEADER = SegmentHeader(3, 99, 1, 0)
PATH = Path("/data/x.seg")


def frames_of(payloads: list[bytes], header: SegmentHeader = HEADER, first: int = 1) -> list[bytes]:
    return [
        frame.encode_header(
            header.seed,
            FrameHeader(len(payload), 0, 1, lsn, 7, lsn - 1, header.number, 0),
            [payload],
        )
        + payload
        for lsn, payload in enumerate(payloads, first)
    ]


def file_with(data: bytes) -> tuple[FaultyFiles, File]:
    disk = FaultyFiles()
    file = disk.open(PATH, create=True)
    file.write(0, [data])
    return disk, file


def scanned(data: bytes) -> tuple[list[bytes], list[Bad], Tail]:
    _, file = file_with(segment.encode_header(HEADER) + data)
    items = list(scan(file, HEADER))
    tail = items[-1]
    assert isinstance(tail, Tail)
    found = [item.payload for item in items if isinstance(item, Found)]
    return found, [item for item in items if isinstance(item, Bad)], tail


@given(st.lists(st.binary(max_size=60), max_size=5), st.data())
def test_a_log_cut_anywhere_yields_the_frames_before_the_cut(
    written: list[bytes], data: st.DataObject
) -> None:
    frames = frames_of(written)
    log = b"".join(frames)
    cut = data.draw(st.integers(0, len(log)))

    found, bad, tail = scanned(log[:cut])

    assert found == written[: len(found)]
    assert bad == []
    assert tail.start == segment.HEADER_BYTES + sum(map(len, frames[: len(found)]))
    assert sum(map(len, frames[: len(found) + 1])) > cut or len(found) == len(written)


@pytest.mark.parametrize("rubbish", [bytes(300), b"\xff" * 300, Random(1).randbytes(300)])
def test_a_log_cut_at_every_byte_and_followed_by_rubbish_yields_the_frames_before_the_cut(
    rubbish: bytes,
) -> None:
    written = [b"one", b"two" * 20, b"", b"four"]
    frames = frames_of(written)
    log = b"".join(frames)
    for cut in range(len(log)):
        data = log[:cut] + rubbish
        found, bad, tail = scanned(data)
        # Zeros may happen to be just what was cut off.
        whole = sum(1 for n in range(1, 5) if data.startswith(b"".join(frames[:n])))
        assert found == written[:whole]
        assert bad == []
        assert tail.start == segment.HEADER_BYTES + sum(map(len, frames[:whole]))


@pytest.mark.parametrize("step", [101, pytest.param(1, marks=pytest.mark.slow)])
def test_a_log_cut_at_every_byte_of_its_last_64_kib_ends_before_the_frame_it_was_cut_in(
    step: int,
) -> None:
    """Each of some hundred frames of all sizes; what follows is nothing, zeros or rubbish."""
    random = Random(7)
    frames: list[bytes] = []
    while sum(map(len, frames)) < 64 << 10:
        payload = random.randbytes(random.choice((0, 20, 300, 2_000))) + b"end"
        frames += frames_of([payload], first=len(frames) + 1)
    rests = (b"", bytes(64), b"\xff" * 64, random.randbytes(64))
    before = segment.HEADER_BYTES
    for lsn, whole in enumerate(frames, 1):
        disk, file = file_with(segment.encode_header(HEADER) + bytes(before - segment.HEADER_BYTES))
        file.write(before, [whole])
        for cut, rest in product(range(lsn * 7 % step, len(whole), step), rests):
            disk.content(PATH)[before:] = whole[:cut] + rest

            (tail,) = scan(file, HEADER, before, after_lsn=lsn - 1)

            assert isinstance(tail, Tail)
            assert tail.start == before, f"frame {lsn} cut at byte {cut}"
        before += len(whole)


def test_every_flipped_bit_costs_the_frame_it_is_in_and_no_other() -> None:
    written = [b"one", b"two" * 10, b"three"]
    frames = frames_of(written)
    log = b"".join(frames)
    ends = [sum(map(len, frames[: n + 1])) for n in range(3)]
    for bit in range(8 * len(log)):
        data = bytearray(log)
        data[bit // 8] ^= 1 << bit % 8
        hit = next(n for n, end in enumerate(ends) if bit // 8 < end)

        found, bad, _ = scanned(bytes(data) + bytes(100))

        assert found == written[:hit] + written[hit + 1 :]
        assert len(bad) == (1 if hit < 2 else 0)


def test_a_torn_frame_is_told_from_a_clean_end() -> None:
    log = b"".join(frames_of([b"one", b"two"]))

    assert not scanned(log + bytes(100))[2].is_torn
    assert scanned(log[:-1] + bytes(100))[2].is_torn
    assert scanned(log[: -frame.HEADER_BYTES])[2].is_torn is False


def test_frames_of_an_earlier_life_of_the_file_are_not_read() -> None:
    old = SegmentHeader(2, 98, 1, 0)
    impostor = SegmentHeader(3, 1, 1, 0)
    log = b"".join(frames_of([b"one"]))
    stale = b"".join(frames_of([b"stale"] * 3, old, 10) + frames_of([b"forged"], impostor, 20))

    found, bad, tail = scanned(log + stale)

    assert (found, bad, tail.is_torn) == ([b"one"], [], False) or tail.is_torn


def test_a_frame_inside_a_body_is_no_frame_even_when_its_own_is_damaged() -> None:
    forged = frames_of([b"forged"], SegmentHeader(3, 0, 1, 0), 2)[0]
    frames = frames_of([b"begin" + forged + b"end", b"next"])
    log = bytearray(b"".join(frames))
    log[50] ^= 1

    found, bad, _ = scanned(bytes(log))

    assert found == [b"next"]
    assert [(item.start, item.end) for item in bad] == [(64, 64 + len(frames[0]))]


def test_an_earlier_number_is_no_frame() -> None:
    frames = frames_of([b"one", b"two"])

    found, _, tail = scanned(frames[1] + frames[0])

    assert found == [b"two"]
    assert tail.is_torn is False


def test_a_sector_that_cannot_be_read_costs_the_frames_in_it() -> None:
    written = [b"a" * 5_000, b"b" * 5_000, b"c" * 5_000]
    disk, file = file_with(segment.encode_header(HEADER) + b"".join(frames_of(written)))
    disk.unreadable = (".seg", 6_000, 6_001)

    found = [item.payload for item in scan(file, HEADER) if isinstance(item, Found)]

    assert found == [written[0], written[2]]


def test_frames_larger_than_the_window_are_found_and_found_again() -> None:
    written = [b"x" * 10, b"y" * (3 << 20), b"z" * 10, b"w" * (1 << 20)]
    log = bytearray(b"".join(frames_of(written)))

    assert scanned(bytes(log))[0] == written
    log[100] ^= 1
    assert scanned(bytes(log))[0] == [written[0], *written[2:]]


def test_a_scan_can_begin_in_the_middle() -> None:
    frames = frames_of([b"one", b"two", b"three"])
    _, file = file_with(segment.encode_header(HEADER) + b"".join(frames))

    items = list(scan(file, HEADER, segment.HEADER_BYTES + len(frames[0]), after_lsn=1))

    assert [item.payload for item in items if isinstance(item, Found)] == [b"two", b"three"]
