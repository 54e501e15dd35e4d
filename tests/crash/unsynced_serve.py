"""`cosmodrome serve` on a disk that keeps only what was synced (tests.support.unsynced_files).

python -m tests.crash.unsynced_serve serve …
"""

from cosmodrome_server import app
from cosmodrome_server.__main__ import main
from cosmodrome_server.store import opening
from tests.support.unsynced_files import UnsyncedFiles

if __name__ == "__main__":
    # The disk of this process.
    vars(app)["OsFiles"] = vars(opening)["OsFiles"] = UnsyncedFiles
    main()
