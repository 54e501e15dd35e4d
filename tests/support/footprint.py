"""What this process holds: tasks, threads, descriptors, channels of the SDK, memory."""

import asyncio
import threading
from pathlib import Path

from cosmodrome._client import channels


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def channels_open() -> int:
    """Of the running loop."""
    return len(channels._pools.get(asyncio.get_running_loop(), {}))


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


class Footprint:
    """What the process holds now."""

    def __init__(self) -> None:
        self.tasks = asyncio.all_tasks()
        self.threads = threading.active_count()
        self.descriptors = descriptors()
        self.resident_kib = resident_kib()
