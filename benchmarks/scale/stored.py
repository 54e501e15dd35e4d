"""Cost of a message and time of a restart, with few and with many messages stored.

One topic of 8 queues, one group that reads everything behind the fill. What is measured: send,
receive and acknowledge of batches of 32, fsync before every answer, CPU of all threads; the
start of a broker (log, checkpoint, replay, ready to serve) after a clean stop, and after a
kill -9 that left nearly a whole checkpoint interval of the log to replay.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from benchmarks.scale.world import OS, Stopwatch, held_bytes, messages, opened, wanted
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.topic import Topic

TOPIC, GROUP = "orders", "billing"
_FILL_BATCH, _BATCH, _CYCLES, _ROUNDS = 256, 32, 160, 5
_TURNS = 5
# Ends just before a checkpoint (broker.checkpoints).
_TAIL_RECORDS = 195_000


async def fill(data: Path, count: int, body: bytes) -> dict[str, float]:
    """Store `count` messages in a new directory and stop cleanly."""
    broker = opened(data, OS)
    broker.create_topic(Topic(TOPIC, queues=8))
    broker.create_group(Group(GROUP, consume_from=ConsumeFrom.LAST))
    watch = Stopwatch()
    for first in range(0, count, _FILL_BATCH):
        broker.send(TOPIC, messages(first, min(_FILL_BATCH, count - first), body))
        if first % (16 * _FILL_BATCH) == 0:
            await broker.drain()
    await broker.drain()
    figures = {"fill_cpu_us": watch.cpu_us / count, "fill_s": watch.wall_ms / 1e3}
    await broker.close()
    return figures


async def cost(data: Path, body: bytes) -> dict[str, float]:
    """CPU of a message through send, receive and acknowledge; medians of the rounds."""
    broker = opened(data)
    # Here the group begins: behind what is stored.
    assert not broker.receive(wanted(TOPIC, GROUP))
    await _cycles(broker, body, 20)
    rounds = [await _cycles(broker, body, _CYCLES) for _ in range(_ROUNDS)]
    found = {step: median(each[step] for each in rounds) for step in rounds[0]}
    found["anonymous_mib"] = held_bytes() / 2**20
    await broker.close()
    return found


async def _cycles(broker: LocalBroker, body: bytes, cycles: int) -> dict[str, float]:
    spent = {"send": 0.0, "receive": 0.0, "ack": 0.0}
    for _ in range(cycles):
        watch = Stopwatch()
        for turn in range(8):
            broker.send(TOPIC, messages(turn * _BATCH, _BATCH, body))
        await broker.drain()
        spent["send"] += watch.cpu_us
        watch = Stopwatch()
        batches = [broker.receive(wanted(TOPIC, GROUP, _BATCH)) for _ in range(8)]
        await broker.drain()
        spent["receive"] += watch.cpu_us
        watch = Stopwatch()
        for batch in batches:
            for delivery in batch:
                broker.ack(GROUP, TOPIC, delivery.receipt_handle)
        await broker.drain()
        spent["ack"] += watch.cpu_us
        assert sum(map(len, batches)) == 8 * _BATCH, "everything sent is received"
    return {step: us / (cycles * 8 * _BATCH) for step, us in spent.items()}


async def start(data: Path) -> dict[str, float]:
    """Milliseconds until a broker on the directory is ready, and stop it cleanly again."""
    watch = Stopwatch()
    broker = opened(data)
    found = {"ready_ms": watch.wall_ms}
    await broker.close()
    return found


async def write_until_killed(data: Path, body: bytes) -> dict[str, float]:
    """Store nearly as much as a checkpoint waits for, say so, and wait for the end."""
    broker = opened(data, OS)
    # The first checkpoint is behind it, however long the tail was that it began with.
    for _ in range(2 * _TAIL_RECORDS // _FILL_BATCH):
        broker.send(TOPIC, messages(0, _FILL_BATCH, body))
        await broker.drain()
    print("written", flush=True)
    await asyncio.sleep(60)
    raise SystemExit("nobody killed it")


def in_child(step: str, data: Path, *arguments: str) -> dict[str, float]:
    """Do a step in a process of its own, which has nothing in memory yet."""
    command = [sys.executable, "-m", "benchmarks.scale.stored", step, str(data), *arguments]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=-1, check=True).stdout)
    return found


def kill_while_writing(data: Path, body_bytes: int) -> None:
    """Leave the directory as a kill -9 does."""
    command = [sys.executable, "-m", "benchmarks.scale.stored", "write", str(data), str(body_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        os.kill(child.pid, signal.SIGKILL)


def filled(data: Path, count: int, body_bytes: int) -> dict[str, float]:
    """Fill a directory with `count` messages; what that cost and how large it is."""
    found = in_child("fill", data, str(count), str(body_bytes))
    found["log_mib"] = sum(path.stat().st_size for path in data.rglob("*.seg")) / 2**20
    return found


def compared(few: Path, many: Path, body_bytes: int) -> dict[str, object]:
    """The cost of a message on two directories in turn, A B A B, and its ratio."""
    steps = ("send", "receive", "ack")
    sides: list[list[dict[str, float]]] = [[], []]
    for _ in range(_TURNS):
        for side, data in zip(sides, (few, many), strict=True):
            side.append(in_child("cost", data, str(body_bytes)))
    found = [{step: median(each[step] for each in side) for step in side[0]} for side in sides]
    totals = [sum(side[step] for step in steps) for side in found]
    return {"few": found[0], "many": found[1], "ratio": totals[1] / totals[0]}


def starts(data: Path, body_bytes: int) -> dict[str, object]:
    """Milliseconds to start after clean stops, and after kills."""
    clean = [in_child("start", data)["ready_ms"] for _ in range(_TURNS)]
    killed = []
    for _ in range(_TURNS):
        kill_while_writing(data, body_bytes)
        killed.append(in_child("start", data)["ready_ms"])
    return {"clean_ms": clean, "killed_ms": killed}


def main(step: str, data: Path, *arguments: str) -> None:
    """One step, in a process of its own; prints its figures."""
    numbers = [int(each) for each in arguments]
    body = bytes(numbers[-1]) if numbers else b""
    steps: dict[str, Callable[[], Awaitable[dict[str, float]]]] = {
        "fill": lambda: fill(data, numbers[0], body),
        "cost": lambda: cost(data, body),
        "start": lambda: start(data),
        "write": lambda: write_until_killed(data, body),
    }

    async def run() -> dict[str, float]:
        return await steps[step]()

    print(json.dumps(asyncio.run(run())))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
