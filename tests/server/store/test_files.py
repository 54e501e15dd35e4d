"""`OsFiles`, and the disk of the tests where both must agree."""

import errno
import os
from pathlib import Path

import pytest

from cosmodrome_server.errors import StoreLocked
from cosmodrome_server.store.files import Files, OsFiles, write_whole
from tests.support.faulty_files import FaultyFiles


@pytest.fixture(params=["os", "memory"])
def files(request: pytest.FixtureRequest) -> Files:
    return OsFiles() if request.param == "os" else FaultyFiles()


def test_what_was_written_is_read(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write(0, [b"one", b"two"])
    file.write(2, [b"E"])
    file.sync()

    assert file.read(0, 100) == b"onEtwo"
    assert file.read(4, 2) == b"wo"
    assert file.read(50, 2) == b""
    assert file.size() == 6
    file.close()


def test_many_parts_are_written_in_order(files: Files, tmp_path: Path) -> None:
    parts = [b"%04d" % n for n in range(3_000)]
    file = files.open(tmp_path / "a", create=True)
    file.write(7, parts)

    assert file.read(7, 12_000) == b"".join(parts)
    file.close()


def test_what_is_written_through_is_read(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write_through(0, [b"one", b"two"])
    file.write_through(6, [b"%04d" % n for n in range(3_000)])

    assert file.read(0, 10) == b"onetwo0000"
    assert file.size() == 12_006
    file.close()


def test_a_short_write_through_is_finished_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    file = OsFiles().open(tmp_path / "a", create=True)
    real = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at, flags=0: 1 if flags else real(fd, parts, at)
    )
    monkeypatch.setattr(os, "fdatasync", synced.append)

    file.write_through(0, [b"hello", b"world"])

    assert file.read(0, 100) == b"helloworld"
    assert len(synced) == 1
    file.close()


def test_without_a_write_that_syncs_it_is_written_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    asked: list[int] = []
    file = OsFiles().open(tmp_path / "a", create=True)
    real = os.pwritev

    def pwritev(descriptor: int, parts: list[bytes], position: int, flags: int = 0) -> int:
        asked.append(flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "no such flag here")
        return real(descriptor, parts, position)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", synced.append)

    for at in range(3):
        file.write_through(at, [b"x"])

    assert file.read(0, 100) == b"xxx"
    assert len(synced) == 3
    assert [bool(flags) for flags in asked] == [True, False, False, False]
    file.close()


def test_a_write_through_that_fails_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    file = OsFiles().open(tmp_path / "a", create=True)

    def pwritev(_: int, parts: list[bytes], __: int, flags: int = 0) -> int:
        asked.append(flags)
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "pwritev", pwritev)
    with pytest.raises(OSError, match="the disk fails"):
        file.write_through(0, [b"x"])

    assert len(asked) == 1
    file.close()


@pytest.mark.parametrize("size", [0, 3, 3_000_000])
def test_where_nothing_can_be_reserved_zeros_are_written_behind_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "this file system reserves nothing")

    file = OsFiles().open(tmp_path / "a", create=True)
    file.write(0, [b"x" * size])
    monkeypatch.setattr(os, "posix_fallocate", refuse)

    file.allocate(1, 2_100_000)

    end = max(size, 2_100_001)
    assert file.read(0, 1 << 23) == b"x" * size + bytes(end - size)
    file.close()


def test_a_gap_and_allocated_space_read_as_zeros(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.write(3, [b"x"])
    file.allocate(4, 10)

    assert file.size() == 14
    assert file.read(0, 100) == bytes(3) + b"x" + bytes(10)
    file.close()


def test_a_file_is_created_once_and_opened_only_if_it_exists(files: Files, tmp_path: Path) -> None:
    files.open(tmp_path / "a", create=True).close()

    with pytest.raises(FileExistsError):
        files.open(tmp_path / "a", create=True)
    with pytest.raises(FileNotFoundError):
        files.open(tmp_path / "b")


def test_names_follow_renames_and_removals(files: Files, tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        files.open(tmp_path / name, create=True).close()
    files.rename(tmp_path / "b", tmp_path / "d")
    files.remove(tmp_path / "c")
    files.sync_directory(tmp_path)

    assert files.names(tmp_path) == ["a", "d"]
    assert files.names(tmp_path / "nowhere") == []


def test_a_whole_file_replaces_what_was_there(files: Files, tmp_path: Path) -> None:
    files.open(tmp_path / "a.new", create=True).close()
    write_whole(files, tmp_path / "a", [b"first"])
    write_whole(files, tmp_path / "a", [b"sec", b"ond"])

    assert bytes(files.map(tmp_path / "a")) == b"second"
    assert files.names(tmp_path) == ["a"]


def test_a_whole_file_that_finds_no_space_leaves_what_was_there_and_nothing_else() -> None:
    disk = FaultyFiles()
    write_whole(disk, Path("/d/a"), [b"first"])
    disk.bytes_max = 12

    with pytest.raises(OSError, match="full"):
        write_whole(disk, Path("/d/a"), [b"the second one"])

    assert bytes(disk.map(Path("/d/a"))) == b"first"
    assert disk.names(Path("/d")) == ["a"]


def test_an_empty_file_can_be_mapped(files: Files, tmp_path: Path) -> None:
    files.open(tmp_path / "a", create=True).close()

    assert bytes(files.map(tmp_path / "a")) == b""


def test_a_lock_is_held_by_one_until_it_is_given_back(files: Files, tmp_path: Path) -> None:
    unlock = files.lock(tmp_path / "LOCK")
    with pytest.raises(StoreLocked, match="another process owns"):
        files.lock(tmp_path / "LOCK")
    unlock()
    files.lock(tmp_path / "LOCK")()


def test_directories_are_made_with_their_parents(tmp_path: Path) -> None:
    OsFiles().make_directory(tmp_path / "a" / "b" / "c")
    OsFiles().make_directory(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(tmp_path / "a", create=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, parts[0][:1], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:2], at))

    file.write(0, [b"hello", b"world"])

    assert file.read(0, 100) == b"helloworld"
    file.close()


def test_a_write_that_writes_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().open(tmp_path / "a", create=True)
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)

    with pytest.raises(OSError, match="wrote nothing") as raised:
        file.write(0, [b"hello"])
    assert raised.value.errno == errno.EIO
    file.close()
