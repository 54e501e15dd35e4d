"""`cosmodrome serve` on a disk that fails: from its n-th sync on, every sync is an I/O error.

python -m tests.crash.failing_serve N serve …
"""

import errno
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cosmodrome_server import app
from cosmodrome_server.__main__ import main
from cosmodrome_server.store import opening
from cosmodrome_server.store.files import File, OsFile, OsFiles

_syncs = itertools.count(1)


class FailingFile(OsFile):
    """A file of that disk. What is written gets there; whether it is safe nobody knows."""

    def write_through(self, position: int, parts: Sequence[bytes]) -> None:
        """See `File`."""
        self.write(position, parts)
        self.sync()

    def sync(self) -> None:
        """See `File`."""
        if next(_syncs) >= FIRST_FAILURE:
            raise OSError(errno.EIO, "the test's disk does not sync")
        super().sync()


class FailingFiles(OsFiles):
    """The disk."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return FailingFile(os.open(path, flags, 0o640))


if __name__ == "__main__":
    FIRST_FAILURE = int(sys.argv.pop(1))
    # The disk of this process.
    vars(app)["OsFiles"] = vars(opening)["OsFiles"] = FailingFiles
    main()
