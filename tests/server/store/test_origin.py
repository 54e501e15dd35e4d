from pathlib import Path

import pytest

from cosmodrome_server import __version__
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.errors import StoreError
from cosmodrome_server.store import origin
from cosmodrome_server.store.opening import open_log
from cosmodrome_server.store.platform import LogOptions


def test_a_directory_says_who_served_it_last(tmp_path: Path) -> None:
    assert origin.written_by(tmp_path) == "a version that left no VERSION file"
    origin.refuse_newer(tmp_path)

    origin.sign(tmp_path)
    origin.sign(tmp_path)

    assert (tmp_path / "VERSION").read_text() == f"cosmodrome {__version__} format 1\n"
    assert origin.written_by(tmp_path) == f"cosmodrome {__version__}"
    origin.refuse_newer(tmp_path)


@pytest.mark.parametrize("line", ["cosmodrome 9.9.9 format 2", "cosmodrome 9.9.9 format two"])
def test_a_directory_of_a_later_format_is_not_opened(tmp_path: Path, line: str) -> None:
    (tmp_path / "VERSION").write_text(line)

    with pytest.raises(StoreError, match=r"written by cosmodrome 9\.9\.9.*reads format 1"):
        open_log(tmp_path, LogOptions(), SystemClock())
    (tmp_path / "VERSION").unlink()
    open_log(tmp_path, LogOptions(), SystemClock())
