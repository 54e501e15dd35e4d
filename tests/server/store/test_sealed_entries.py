import gc
import weakref
from array import array
from pathlib import Path

import pytest

from cosmodrome_server.store import sealed_index
from cosmodrome_server.store.sealed_entries import SealedSegments
from cosmodrome_server.store.sealed_index import IndexHeader, Run
from cosmodrome_server.store.segment import HEADER_BYTES, SegmentHeader
from tests.support.faulty_files import FaultyFiles
from tests.support.log_world import DIRECTORY, World

KEY = 1 << 32


class _Map(bytearray):
    """The bytes of a mapped file; can be watched."""


class WatchedFiles(FaultyFiles):
    """Knows what is mapped, and counts what was read to be verified.

    Attributes:
        maps: Of each file that was ever mapped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[weakref.ref[_Map]] = []

    def map(self, path: Path) -> memoryview:
        """See `Files`."""
        content = _Map(super().map(path))
        self.maps.append(weakref.ref(content))
        return memoryview(content)

    @property
    def mapped(self) -> int:
        """How many are mapped now."""
        gc.collect()
        return sum(ref() is not None for ref in self.maps)


def no_rebuild(header: SegmentHeader, is_strict: bool) -> dict[int, Run]:  # a callback
    raise AssertionError(f"index {header.number} is not damaged")


def sealed_in(files: WatchedFiles, segments: int, mapped_max: int) -> SealedSegments:
    """One queue of two offsets a segment."""
    known: list[tuple[SegmentHeader, IndexHeader]] = []
    for number in range(1, segments + 1):
        header = SegmentHeader(number, 5, 0, 0)
        base = 2 * number - 2
        run = Run(base, base + 2, array("Q", (number, 0, 1_000, number, 0, 1_000)), 0)
        sealed_index.write(files, DIRECTORY, header, [(KEY, run)], (1_000, number << 32))
        known.append((header, sealed_index.read_header(files, DIRECTORY, header)))
    sealed = SealedSegments(files, DIRECTORY, no_rebuild, mapped_max)
    sealed.load(known)
    return sealed


def position_at(sealed: SealedSegments, offset: int) -> int:
    run = sealed.run_of(KEY, offset)
    assert run is not None
    return run.words[run.start + 3 * (offset - run.base)]


def test_however_many_indexes_are_read_few_are_mapped() -> None:
    files = WatchedFiles()
    sealed = sealed_in(files, segments=9, mapped_max=3)

    for offset in (*range(18), *range(18)):
        assert position_at(sealed, offset) == offset // 2 + 1

    assert files.mapped == 3
    sealed.forget_before(10)
    assert files.mapped == 0


def test_an_index_that_was_verified_is_mapped_again_as_it_is() -> None:
    files = WatchedFiles()
    sealed = sealed_in(files, segments=3, mapped_max=1)
    sealed.run_of(KEY, 0)
    sealed.run_of(KEY, 4)
    files.content(sealed_index.path_of(DIRECTORY, 1))[-8] ^= 1  # no one looks at it again

    run = sealed.run_of(KEY, 0)

    assert run is not None
    assert run.base == 0


@pytest.mark.parametrize("lost_frames", [1, 2])
def test_what_neither_index_nor_frames_tell_of_is_a_hole(lost_frames: int) -> None:
    world = World()
    while len(world.log.segments()) < 4:
        world.send(0, b"x" * 900)
        world.commit()
    end = world.log.max_offset(1, 0)
    number = world.log.segments()[1].number
    first = next(n for n in range(end) if world.log.position(1, 0, n) >> 32 == number)
    lost = range(first, first + lost_frames)
    for offset in lost:
        at = world.log.position(1, 0, offset) & 0xFFFFFFFF
        world.disk.content(world.segment_path(number))[at + 200] ^= 1
    world.disk.content(sealed_index.path_of(DIRECTORY, number))[-3] ^= 1

    world = world.killed()

    bodies = [body for _, body in world.messages(1, 0)]
    assert [n for n, body in enumerate(bodies) if body is None] == list(lost)
    assert len(world.log.tag_hashes(1, 0, 0, end)) == end
    assert world.log.timestamp(1, 0, first) == world.log.timestamp(1, 0, lost.stop)


@pytest.mark.parametrize("number", [1, 4, 11])
def test_a_queue_of_few_segments_is_found_without_a_look_at_all(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    while len(world.log.segments()) < 14:
        if len(world.log.segments()) == number and not world.log.max_offset(1, 1):
            world.send(1, b"seldom")
        world.send(0, b"x" * 900)
        world.commit()
    world = world.killed()
    looks: list[Path] = []
    mapped = world.disk.map

    def watched(path: Path) -> memoryview:
        looks.append(path)
        return mapped(path)

    monkeypatch.setattr(world.disk, "map", watched)

    assert world.log.read(1, 1, 0).body == b"seldom"
    assert len(looks) <= 4


def test_where_first_frames_are_lost_too_the_indexes_say_where_a_queue_is() -> None:
    world = World()
    while len(world.log.segments()) < 8:
        if len(world.log.segments()) in {2, 6}:
            world.send(1, b"seldom")
        world.send(0, b"x" * 900)
        world.commit()
    world = world.killed()
    count = world.log.max_offset(1, 1)
    for header in world.log.segments()[:-1]:
        world.disk.content(world.segment_path(header.number))[HEADER_BYTES + 20] ^= 1

    assert {offset for offset, body in world.messages(1, 1)} == set(range(count))
    for offset in range(count):
        assert world.log.position(1, 1, offset) >> 32 in {2, 6}
