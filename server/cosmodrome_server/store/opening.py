"""Opening the log of a data directory on this machine's disk."""

import os
from pathlib import Path

from cosmodrome_server.clock import Clock
from cosmodrome_server.store import origin
from cosmodrome_server.store.checkpoint import FILE_NAME, SqliteCheckpoints
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.worker import ThreadWorker

LOCK_NAME = "LOCK"
SHARD_NAME = "shard-0000"


def open_log(data: Path, options: LogOptions, clock: Clock) -> CommitLog:
    """Open the log in a data directory, made if it is not there.

    Raises:
        StoreLocked: Another process owns it.
        StoreError: A newer version wrote it.
        OSError: It cannot be read or made.
    """
    files = OsFiles()
    directory = data / SHARD_NAME
    files.make_directory(directory)
    unlock = files.lock(data / LOCK_NAME)
    try:
        platform = Platform(
            files,
            clock,
            SqliteCheckpoints(directory / FILE_NAME),
            ThreadWorker("log-writer"),
            ThreadWorker("log-background"),
            os.urandom,
        )
        origin.refuse_newer(data)
        return CommitLog(directory, options, platform, unlock)
    except BaseException:
        unlock()
        raise
