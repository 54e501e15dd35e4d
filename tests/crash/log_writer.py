"""Writes to a log as fast as it can and says on stdout what was acknowledged; made to be killed.

python -m tests.crash.log_writer DATA     prints "ready OFFSET", then one offset a line
"""

import sys
import threading
from pathlib import Path

from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.log import MessageRecord, MessageState, RecordKind
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.opening import open_log
from cosmodrome_server.store.platform import LogOptions
from tests.support.replaying import replayed

OPTIONS = LogOptions(segment_bytes=1 << 20, reserve_bytes=64 << 10)
FRAMES_PER_CHECKPOINT = 97


def body_of(offset: int) -> bytes:
    """What the message at an offset says."""
    return b"message %d;" % offset * (1 + offset % 50)


def open_counting(data: Path) -> tuple[CommitLog, int]:
    """The log, and the count of acknowledgements its state holds."""
    log = open_log(data, OPTIONS, SystemClock())
    count = sum(int.from_bytes(value, "little") for _, value in log.rows())
    count += sum(kind is not RecordKind.MESSAGE for kind, _ in replayed(log))
    return log, count


def main(data: Path) -> None:
    """Write until killed."""
    log, count = open_counting(data)
    log.set_snapshot(lambda: [(b"count", count.to_bytes(8, "little"))])
    idle = threading.Event()
    log.set_on_idle(idle.set)
    offset = log.max_offset(1, 0)
    print("ready", offset, count, flush=True)
    while True:
        for _ in range(1 + offset % 7):
            body = body_of(offset)
            record = MessageRecord(MessageState.VISIBLE, 1, 0, offset, 3, offset, 0, b"", b"", body)
            log.index(1, 0, offset, (log.stage_message(record), 3, offset))
            offset += 1
        log.stage(RecordKind.ACK, b"one")
        count += 1
        # In one write: a line is there whole or not at all.
        line = f"{offset - 1} {count}\n"
        idle.clear()
        while not log.commit(lambda line=line: print(line, end="", flush=True)):  # type: ignore[misc]  # bound now
            idle.wait()
            idle.clear()
        if count % FRAMES_PER_CHECKPOINT == 0:
            log.checkpoint([(b"count", count.to_bytes(8, "little"))], log.open_lsn - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
