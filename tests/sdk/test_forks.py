"""Real forks: children of processes with, without and after clients, by either setting of gRPC."""

import asyncio
import os
import subprocess
import sys

import pytest

from cosmodrome import PullConsumer
from cosmodrome.testing import TestBroker

HANDLERS = "GRPC_ENABLE_FORK_SUPPORT"
# Not set is what users have; 0 is what we want of gRPC then, and may be said, too.
SETTINGS = pytest.mark.parametrize("setting", [None, "0"])

PRELUDE = """
import asyncio, os, sys, cosmodrome
from cosmodrome import sync, Message

def told(call):
    try:
        call()
    except cosmodrome.ClientError as error:
        return str(error)

def in_child(work):
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    see_end(child)

def see_end(child):
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 0, ended

def works():
    with sync.Producer(sys.argv[1], topics=["t"]) as own:
        own.send(Message("t", b"child"))
    return True
"""

WITH_CLIENTS = (
    PRELUDE
    + """
def refused():
    here = "parent process" in told(lambda: producer.send(Message("t", b"wrong")))
    producer.close()
    return here and "spawn" in told(lambda: sync.Producer(sys.argv[1], topics=["t"]).start())

in_child(works)
with sync.Producer(sys.argv[1], topics=["t"]) as producer:
    producer.send(Message("t", b"parent"))
    in_child(refused)
    producer.send(Message("t", b"parent again"))
"""
)

AFTER_CLIENTS = (
    PRELUDE
    + """
async def send(body):
    async with cosmodrome.Producer(sys.argv[1], topics=["t"]) as producer:
        await producer.send(Message("t", body))

def works_on_a_loop():
    asyncio.run(send(b"child"))
    return True

asyncio.run(send(b"parent"))
in_child(works_on_a_loop)
asyncio.run(send(b"parent again"))
"""
)

# As `multiprocessing` and os.fork in a library do: the child leaves by its own way, with all
# that Python does at its end, while the parent's loop and calls stand still in it.
LEAVING = (
    PRELUDE
    + """
async def parent():
    async with (
        cosmodrome.Producer(sys.argv[1], topics=["t"]) as producer,
        cosmodrome.SimpleConsumer(sys.argv[1], group="g", subscriptions={"t": "*"}) as consumer,
    ):
        await producer.send(Message("t", b"parent"))
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0.05)
        for _ in range(5):
            child = os.fork()
            if child == 0:
                sys.exit(0)
            see_end(child)
        await producer.send(Message("t", b"parent again"))
        waiting.cancel()

asyncio.run(parent())
"""
)


async def run(
    script: str, endpoint: str, setting: str | None
) -> "subprocess.CompletedProcess[str]":
    environment = {key: value for key, value in os.environ.items() if key != HANDLERS}
    if setting is not None:
        environment[HANDLERS] = setting
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, endpoint],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


async def bodies_of(broker: TestBroker, messages: int) -> set[bytes]:
    bodies: set[bytes] = set()
    async with (
        asyncio.timeout(20),
        PullConsumer(broker.endpoint, group="g", topics=["t"]) as consumer,
    ):
        while len(bodies) < messages:
            bodies |= {message.body for message in await consumer.poll()}
    return bodies


@SETTINGS
async def test_6_7_p2_a_child_forked_before_works_and_one_forked_after_is_told_not_hung(
    own_broker: TestBroker, setting: str | None
) -> None:
    done = await run(WITH_CLIENTS, own_broker.endpoint, setting)
    assert done.returncode == 0, done.stderr
    assert await bodies_of(own_broker, 3) == {b"parent", b"child", b"parent again"}


@SETTINGS
async def test_the_child_of_a_process_that_closed_its_clients_works(
    own_broker: TestBroker, setting: str | None
) -> None:
    done = await run(AFTER_CLIENTS, own_broker.endpoint, setting)
    assert done.returncode == 0, done.stderr
    assert await bodies_of(own_broker, 3) == {b"parent", b"child", b"parent again"}


@SETTINGS
async def test_a_child_that_only_leaves_does_so_and_its_parents_clients_go_on(
    own_broker: TestBroker, setting: str | None
) -> None:
    done = await run(LEAVING, own_broker.endpoint, setting)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert await bodies_of(own_broker, 2) == {b"parent", b"parent again"}


@pytest.mark.parametrize(("before", "after"), [(None, "None"), ("0", "0"), ("1", "1")])
def test_the_environment_is_as_it_was_after_the_import(before: str | None, after: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != HANDLERS}
    if before is not None:
        environment[HANDLERS] = before
    script = f"import os, cosmodrome; print(os.environ.get({HANDLERS!r}))"
    said = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment)
    assert said.strip() == after
