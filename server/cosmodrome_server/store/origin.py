"""Which version of the server wrote a data directory: one line of text in data/VERSION.

    cosmodrome 0.1.0 format 1

The format is of everything in the directory together: a version that writes something earlier
ones cannot read counts it up. Directories without the file are from before there was one.
"""

from pathlib import Path

from cosmodrome_server import __version__
from cosmodrome_server.errors import StoreError
from cosmodrome_server.store.files import OsFiles, write_whole

FILE_NAME = "VERSION"
FORMAT = 1


def written_by(data: Path) -> str:
    """The version that last served the directory, for people; raises OSError."""
    line = _line(data)
    return " ".join(line.split()[:2]) if line else "a version that left no VERSION file"


def refuse_newer(data: Path) -> None:
    """Check that this version can read the directory.

    Raises:
        StoreError: A later format.
        OSError: It cannot be read.
    """
    *_, number = (_line(data) or f"format {FORMAT}").split()
    if not number.isdecimal() or int(number) > FORMAT:
        raise StoreError(
            f"{data} has format {number}, written by {written_by(data)}; cosmodrome "
            f"{__version__} reads format {FORMAT}: start it with that version"
        )


def sign(data: Path) -> None:
    """Say that this version serves the directory now; raises OSError."""
    line = f"cosmodrome {__version__} format {FORMAT}\n"
    if line.strip() != _line(data):
        write_whole(OsFiles(), data / FILE_NAME, [line.encode()])


def _line(data: Path) -> str:
    path = data / FILE_NAME
    return path.read_text(errors="replace").strip() if path.exists() else ""
