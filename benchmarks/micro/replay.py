"""What one record costs a start that has it to replay, by what was done before the crash.

    python -m benchmarks.micro.replay [--messages N] [--repeats N] [--json FILE]

Question: is a record replayed in 1.25 µs or less (issue 5), also where every message was received
and acknowledged by itself? Each scenario is written by a broker on the real store, which is then
left as by a kill; what follows is what a start does between finding the log and serving: read,
verify, decode, apply. Microseconds of CPU for one record, least of the repeats.
"""

import argparse
import asyncio
import gc
import json
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.machine import described
from benchmarks.scale.world import OS, messages, opened, wanted
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.core.shard import Shard
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.store.opening import open_log
from cosmodrome_server.store.platform import LogOptions

TOPIC, GROUP = "orders", "billing"
_TURN = 64
_BODY = b"x" * 100


def _receive(broker: LocalBroker, count: int, batch: int) -> list[str]:
    """The handles of so many messages, received by so many."""
    handles: list[str] = []
    while len(handles) < count:
        found = broker.receive(wanted(TOPIC, GROUP, batch))
        assert found, "as many were sent as are received"
        handles += [delivery.receipt_handle for delivery in found]
    return handles


def _ack(broker: LocalBroker, handles: list[str]) -> None:
    for handle in handles:
        broker.ack(GROUP, TOPIC, handle)


async def _sends(broker: LocalBroker, count: int) -> None:
    for first in range(0, count, _TURN):
        for number in range(first, first + _TURN):
            broker.send(TOPIC, messages(number, 1, _BODY))
        await broker.drain()


async def _singles(broker: LocalBroker, count: int) -> None:
    for _ in range(0, count, _TURN):
        handles = _receive(broker, _TURN, 1)
        await broker.drain()
        _ack(broker, handles)
        await broker.drain()


async def _mixed(broker: LocalBroker, count: int) -> None:
    """Each turn acknowledges what the turn before it received, call by call."""
    waiting: list[str] = []
    for _ in range(0, count, _TURN):
        following = []
        for handle in waiting or [""] * _TURN:
            if handle:
                _ack(broker, [handle])
            following += _receive(broker, 1, 1)
        await broker.drain()
        waiting = following
    _ack(broker, waiting)
    await broker.drain()


async def _batches(broker: LocalBroker, count: int) -> None:
    for _ in range(0, count, 2 * _TURN):
        handles = _receive(broker, 2 * _TURN, 32)
        await broker.drain()
        _ack(broker, handles)
        await broker.drain()


async def _backlog(broker: LocalBroker, count: int) -> None:
    """Everything is in flight before the first acknowledgement."""
    handles = []
    for _ in range(0, count, _TURN):
        handles += _receive(broker, _TURN, 1)
        await broker.drain()
    for first in range(0, count, _TURN):
        _ack(broker, handles[first : first + _TURN])
        await broker.drain()


SCENARIOS = {
    "messages sent one by one": _sends,
    "received and acknowledged one by one": _singles,
    "the same, acknowledgements between receives": _mixed,
    "received by 32, acknowledged one by one": _batches,
    "all received one by one, then acknowledged": _backlog,
}


async def write(data: Path, name: str, count: int) -> None:
    """Leave a log whose end, after a checkpoint, holds nothing but the scenario."""
    broker = opened(data, OS)
    broker.create_topic(Topic(TOPIC, queues=8))
    broker.create_group(Group(GROUP))
    # Here the group begins.
    assert not broker.receive(wanted(TOPIC, GROUP))
    if SCENARIOS[name] is not _sends:
        await _sends(broker, count)
    await broker.close()
    broker = opened(data, OS)
    await SCENARIOS[name](broker, count)
    broker.abandon()


def replay(data: Path) -> dict[str, float]:
    """Records, and microseconds of CPU for one."""
    log = open_log(data, LogOptions(scrub_bytes_s=0), SystemClock())
    shard = Shard(log)
    shard.restore(log.rows())
    gc.collect()
    began = time.process_time()
    for replayed in log.replay():
        shard.replay(replayed)
    shard.started()
    spent = time.process_time() - began
    records = log.tail.records
    # Without a checkpoint: the next one finds the same.
    log.close()
    return {"records": records, "us_per_record": round(spent / records * 1e6, 2)}


def measure(name: str, count: int, repeats: int) -> dict[str, float]:
    """The least of the repeats."""
    directory = Path(tempfile.mkdtemp(prefix="replay-bench-"))
    try:
        asyncio.run(write(directory / "data", name, count))
        gc.disable()
        found = [replay(directory / "data") for _ in range(repeats)]
    finally:
        gc.enable()
        shutil.rmtree(directory)
    return min(found, key=lambda each: each["us_per_record"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=64_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for name in SCENARIOS:
        found[name] = measure(name, arguments.messages, arguments.repeats)
        print(f"{name:45} {found[name]['us_per_record']:5.2f} µs, {found[name]['records']:,}")
    if arguments.json:
        report = {"machine": described(), "figures": found}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
