"""A real server on a disk that fails, that is full, or that another server owns."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.store import check
from tests.conformance.broker import OwnServer, ServerFailed
from tests.crash.accounting import Ledger
from tests.crash.test_kill import GROUP, PLAIN, SEED, consume, drained, produce, running
from tests.support.raw_client import OK, RawClient

BODY_BYTES = 64 << 10
DISK_MIB, BALLAST_MIB = 64, 16


class FailingServer(OwnServer):
    """Its disk fails at some sync."""

    def __init__(self, data: Path, first_failure: int, *flags: str) -> None:
        super().__init__(data, *flags)
        self.command = (sys.executable, "-m", "tests.crash.failing_serve", str(first_failure))

    async def ended(self) -> int:
        """Wait until it ends by itself; the exit code."""
        assert self._process is not None
        async with asyncio.timeout(60):
            return await self._process.wait()


@asynccontextmanager
async def killed_at_the_end(server: OwnServer) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await server.kill()


async def fail_under_load(data: Path, first_failure: int) -> Ledger:
    """Send and read until the disk fails, then on another that works; check the end it made."""
    ledger, sending, receiving = Ledger(), asyncio.Event(), asyncio.Event()
    async with running(data, OwnServer) as good:
        await good.stop()
        bad = FailingServer(data, first_failure, "--tls", "off")
        bad.endpoint = good.endpoint
        await bad.start()
        async with killed_at_the_end(bad), asyncio.TaskGroup() as tasks:
            for index in range(3):
                fifo = index == 2
                tasks.create_task(produce(bad.endpoint, f"p{index}", ledger, sending, fifo=fifo))
                tasks.create_task(consume(bad.endpoint, f"c{index}", ledger, receiving, fifo=fifo))
            code = await bad.ended()
            assert code == 1
            assert "storage failed, stopping: [Errno 5]" in bad.log()
            found = await asyncio.to_thread(check.check, data)
            assert found.is_whole, found
            await good.start()
            sending.set()
            await drained(ledger)
            receiving.set()
    return ledger


@pytest.mark.parametrize("failures", [1, pytest.param(40, marks=pytest.mark.slow)])
async def test_a_disk_that_does_not_sync_ends_the_server_and_nothing_it_said_is_untrue(
    tmp_path: Path, failures: int
) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    sent = 0
    for number in range(failures):
        ledger = await fail_under_load(tmp_path / f"data-{number}", chance.randint(20, 400))
        ledger.check()
        sent += len(ledger.acknowledged)
    assert sent > 20 * failures


async def test_a_second_server_on_one_directory_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", OwnServer) as server:
        for flags in ((), ("--front", "grpcio")):
            with pytest.raises(ServerFailed, match="another process owns"):
                await OwnServer(server.data, "--tls", "off", *flags).start()
        async with RawClient(server.endpoint) as client:
            assert (await client.send(client.message(PLAIN, b"x"))).status.code == OK


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("only root may mount a tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


async def send_until_refused(client: RawClient, sent: set[str]) -> tuple[str, float]:
    """Send until there is no space; what was said then, and how many seconds that took."""
    for number in range((DISK_MIB << 20) // BODY_BYTES):
        name = f"{number:06}"
        message = client.message(PLAIN, name.encode() + bytes(BODY_BYTES), message_id=name)
        begun_s = time.monotonic()
        answer = await client.send(message)
        if answer.status.code != OK:
            assert answer.status.code == pb.INTERNAL_SERVER_ERROR
            return answer.status.message, time.monotonic() - begun_s
        sent.add(name)
    raise AssertionError("the disk never filled")


async def read_all(client: RawClient, sent: set[str]) -> None:
    """Receive and acknowledge everything."""
    left = set(sent)
    while left:
        _, messages = await client.receive(PLAIN, GROUP)
        assert messages, f"{len(left)} messages are lost"
        answer = await client.ack(PLAIN, GROUP, messages)
        assert {entry.status.code for entry in answer.entries} == {OK}
        left -= {message.system_properties.message_id for message in messages}


async def seconds_until_taken(client: RawClient) -> float:
    """Send until it is taken again."""
    begun_s = time.monotonic()
    while (await client.send(client.message(PLAIN, b"again"))).status.code != OK:
        assert time.monotonic() - begun_s < 30, "sends are refused for ever"
        await asyncio.sleep(0.05)
    return time.monotonic() - begun_s


@pytest.mark.slow
async def test_on_a_full_disk_sends_are_refused_and_reading_goes_on_until_there_is_space(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(BALLAST_MIB << 20))
    sent: set[str] = set()
    async with running(small_disk / "data", OwnServer, "--set", "store.segment_mib=4") as server:
        async with RawClient(server.endpoint) as client:
            said, refused_s = await send_until_refused(client, sent)
            assert "the disk is full" in said
            await read_all(client, sent)
            assert (await client.send(client.message(PLAIN, bytes(BODY_BYTES)))).status.code != OK
            ballast.unlink()
            resumed_s = await seconds_until_taken(client)
            print(f"{len(sent)} sent, refused in {refused_s:.3f} s, taken after {resumed_s:.1f} s")
        assert await server.stop() == 0
    found = await asyncio.to_thread(check.check, small_disk / "data")
    assert found.is_whole, found
