"""kill -9 under load, again and again, and the books must balance."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from tests.conformance.broker import OwnServer
from tests.crash.accounting import Ledger, Place
from tests.support.raw_client import OK, RawClient

SEED = int(os.environ.get("COSMODROME_CRASH_SEED", "20261121"))
PLAIN, ORDERED, GROUP, FIFO_GROUP = "plain", "ordered", "readers", "ordered-readers"
BATCH = 8
LONGEST_LIFE_S = 2.0


async def produce(
    endpoint: str, name: str, ledger: Ledger, stop: asyncio.Event, *, fifo: bool
) -> None:
    """Send batches one after the other; an unknown outcome is sent again until it is known."""
    topic, group = (ORDERED, f"g{name}") if fifo else (PLAIN, "")
    number = 0
    async with RawClient(endpoint, f"producer-{name}") as client:
        while not stop.is_set():
            bodies = [f"{name}:{group}:{number + i}" for i in range(1 if fifo else BATCH)]
            messages = [
                client.message(topic, body.encode(), message_id=body, group=group)
                for body in bodies
            ]
            ledger.attempted.update(bodies)
            if not await answered(client, messages, stop):
                return
            ledger.acknowledge(bodies)
            number += len(bodies)


async def answered(client: RawClient, messages: list[pb.Message], stop: asyncio.Event) -> bool:
    """Send until the server says OK; False when the test ends first."""
    while not stop.is_set():
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await client.send(*messages)
            if answer.status.code == OK:
                return True
        await asyncio.sleep(0.01)
    return False


async def consume(
    endpoint: str, name: str, ledger: Ledger, stop: asyncio.Event, *, fifo: bool
) -> None:
    """Receive and ack; what could not be acked comes again."""
    topic, group = (ORDERED, FIFO_GROUP) if fifo else (PLAIN, GROUP)
    async with RawClient(endpoint, f"consumer-{name}") as client:
        while not stop.is_set():
            messages: list[pb.Message] = []
            with contextlib.suppress(grpc.aio.AioRpcError):
                _, messages = await client.receive(topic, group, invisible_s=10, wait_s=5)
                for message in messages:
                    ledger.deliver(message.body.decode(), place_of(message))
                if not messages or settled(
                    ledger, messages, await client.ack(topic, group, messages)
                ):
                    continue
            ledger.ack_unanswered(message.body.decode() for message in messages)
            await asyncio.sleep(0.01)


def settled(ledger: Ledger, messages: list[pb.Message], answer: rpc.AckMessageResponse) -> bool:
    """Book an answer to an ack; False if it says nothing of the messages, as from a failed disk."""
    if not answer.entries:
        return False
    for message, entry in zip(messages, answer.entries, strict=True):
        if entry.status.code == OK:
            ledger.settle(message.body.decode(), place_of(message))
    return True


def place_of(message: pb.Message) -> Place:
    return message.system_properties.queue_id, message.system_properties.queue_offset


@asynccontextmanager
async def running(
    data: Path, server_type: type[OwnServer], *flags: str
) -> AsyncIterator[OwnServer]:
    """A server with a plain and an ordered topic."""
    server = server_type(data, "--tls", "off", *flags)
    await server.start()
    await server.create_topic(PLAIN, "normal", 4)
    await server.create_topic(ORDERED, "fifo", 4)
    await server.create_group(GROUP, max_attempts=100)
    await server.create_group(FIFO_GROUP, is_fifo=True, max_attempts=100)
    try:
        yield server
    finally:
        await server.kill()


async def kill_under_load(
    data: Path,
    kills: int,
    chance: random.Random,
    server_type: type[OwnServer] = OwnServer,
    *flags: str,
) -> Ledger:
    """Run three producers and three consumers while the server dies `kills` times."""
    ledger = Ledger()
    sending, receiving = asyncio.Event(), asyncio.Event()
    async with running(data, server_type, *flags) as server, asyncio.TaskGroup() as tasks:
        for index in range(3):
            fifo = index == 2
            tasks.create_task(produce(server.endpoint, f"p{index}", ledger, sending, fifo=fifo))
            tasks.create_task(consume(server.endpoint, f"c{index}", ledger, receiving, fifo=fifo))
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.2, LONGEST_LIFE_S))  # work to be killed in
            await server.kill()
            ledger.restart()
            await server.start()
        sending.set()
        await drained(ledger)
        receiving.set()
    return ledger


async def drained(ledger: Ledger) -> None:
    """Wait until everything acknowledged was delivered and settled, 60 s at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not ledger.is_drained:
                ledger.progress.clear()
                await ledger.progress.wait()


@pytest.mark.parametrize("kills", [14, pytest.param(200, marks=pytest.mark.slow)])
async def test_nothing_acknowledged_is_lost_and_nothing_settled_returns(
    tmp_path: Path, kills: int
) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    ledger = await kill_under_load(tmp_path / "data", kills, random.Random(SEED))
    ledger.check()
    assert len(ledger.acknowledged) > 5 * kills
    # Only what was in flight at a kill may come twice: a batch per consumer and kill at most.
    assert ledger.duplicates <= kills * 3 * 32
    print(f"{len(ledger.acknowledged)} sent, {ledger.duplicates} repeats, {ledger.restarts()}")
