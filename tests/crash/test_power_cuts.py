"""Power cuts of the whole server: a real process, and a disk that keeps what was synced only."""

import random
import sys
from pathlib import Path

import pytest

from cosmodrome_server.store import check
from tests.conformance.broker import OwnServer
from tests.crash.test_kill import SEED, kill_under_load
from tests.support.unsynced_files import cut_power


class CutServer(OwnServer):
    """Its kill is a power cut."""

    command = (sys.executable, "-m", "tests.crash.unsynced_serve")
    undone = 0

    async def kill(self) -> int:
        code = await super().kill()
        CutServer.undone += cut_power(self.data, random.Random(self.pid))
        report = check.check(self.data)
        assert report.is_whole, report.problems
        return code


@pytest.mark.parametrize("cuts", [5, pytest.param(100, marks=pytest.mark.slow)])
async def test_nothing_acknowledged_is_lost_in_power_cuts(tmp_path: Path, cuts: int) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    # Small segments: names come and go between two cuts.
    flags = ("--set", "store.segment_mib=1")
    chance = random.Random(SEED)
    ledger = await kill_under_load(tmp_path / "data", cuts, chance, CutServer, *flags)
    ledger.check()
    assert len(ledger.acknowledged) > 50 * cuts
    assert ledger.duplicates <= cuts * 3 * 32
    print(f"{len(ledger.acknowledged)} sent, {ledger.duplicates} repeats, {ledger.restarts()}")
    print(f"{CutServer.undone} changes of names undone")
