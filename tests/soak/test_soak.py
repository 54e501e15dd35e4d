"""Broker and clients under load for long: nothing lost, nothing that grows.

`make soak` runs ten minutes (COSMODROME_SOAK_S says otherwise), with a kill -9 every half
minute; the default suite a few seconds with one kill.
"""

import asyncio
import os
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.broker import OwnServer
from tests.soak.clients import FIFO_GROUP, GROUP, TOPICS, Soak

LONG_S = float(os.environ.get("COSMODROME_SOAK_S", "600"))
KILL_EVERY_S = 30.0
SEED = int(os.environ.get("COSMODROME_SOAK_SEED", "20261121"))
# Between two looks at a process under the same load; caches fill, allocators keep some.
GROWTH_MAX_BYTES = 24 << 20
DESCRIPTORS_MAX = 24


class Weight(NamedTuple):
    """What a process holds."""

    anonymous_bytes: int
    descriptors: int


def weighed(pid: int) -> Weight:
    """Anonymous memory and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return Weight(int(line.split()[1]) * 1_024, _descriptors(pid))


def _descriptors(pid: int | str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def soak(data: Path, seconds: float, kill_every_s: float) -> tuple[Soak, list[Weight]]:
    """Run for so long; what came of it, and the broker's weights in its last life.

    The last life has no kill: as long as all others together.
    """
    server = OwnServer(data, "--tls", "off")
    await server.start()
    for topic, kind in TOPICS.items():
        await server.create_topic(topic, kind, 4)
    await server.create_group(GROUP, max_attempts=100)
    await server.create_group(FIFO_GROUP, is_fifo=True, max_attempts=100)
    run = Soak(server.endpoint, random.Random(SEED))
    weights = []
    try:
        async with run.running():
            for _ in range(max(1, round(seconds / 2 / kill_every_s))):
                await asyncio.sleep(kill_every_s)  # a life
                await server.kill()
                await server.start()
            # Half of the last life is for reaching what it settles at.
            await asyncio.sleep(seconds / 4)
            for _ in range(3):
                weights.append(weighed(server.pid))
                await asyncio.sleep(seconds / 12)  # between two weighings
            weights.append(weighed(server.pid))
        assert await server.stop() == 0
    finally:
        await server.kill()
    return run, weights


@pytest.mark.parametrize(
    ("seconds", "kill_every_s"),
    [(6.0, 2.0), pytest.param(LONG_S, KILL_EVERY_S, marks=pytest.mark.slow)],
)
async def test_nothing_is_lost_and_nothing_grows(
    tmp_path: Path, seconds: float, kill_every_s: float
) -> None:
    before = _descriptors("self")
    run, weights = await soak(tmp_path / "data", seconds, kill_every_s)

    run.ledger.check()
    counts = dict.fromkeys(("p0", "p1", "o", "l", "t"), 0)
    for body in run.ledger.delivered:
        counts[body.split(":")[0]] += 1
    print(f"{counts} {weights}")
    assert min(counts.values()) > seconds
    assert weights[-1].anonymous_bytes - weights[0].anonymous_bytes < GROWTH_MAX_BYTES
    assert weights[-1].descriptors - weights[0].descriptors < DESCRIPTORS_MAX
    # The clients are closed: what they had open is, too.
    assert _descriptors("self") - before < DESCRIPTORS_MAX
