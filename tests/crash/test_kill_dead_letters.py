"""kill -9 while messages move to the dead letters, and back: each is in exactly one place.

    settled       read and acknowledged: never a dead letter
    given up      forwarded to the dead letters at its first delivery: one dead letter
    hopeless      made visible again until its attempts are used up: one dead letter, by the broker

Then every dead letter is sent back, with kills between and within: each comes to its topic once
more, no more. The topics are read whole, by offset: what is stored is counted, not what comes.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from cosmodrome_proto import control_pb2
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.store import check
from tests.conformance.broker import OwnServer
from tests.support.raw_client import NOTHING, OK, RawClient

SEED = int(os.environ.get("COSMODROME_CRASH_SEED", "20261121"))
ORDERS, GROUP, QUEUES, ATTEMPTS = "orders", "readers", 4, 3
DEAD = f"%DLQ%{GROUP}"
BATCH, INVISIBLE_S, REDRIVEN = 8, 2, 16
SHORT = ("delivery.invisible_min_ms=1000", "delivery.polling_min_ms=1000", "store.segment_mib=1")
FLAGS = tuple(flag for setting in SHORT for flag in ("--set", setting))
SETTLED, GIVEN_UP, HOPELESS = KINDS = ("settled", "given-up", "hopeless")


@dataclass
class Fates:
    """What became of each message, by its body, which no other send has: `<kind>:<number>`.

    Attributes:
        attempted: Sends that were tried; each once.
        acknowledged: Those that were answered.
        settled: Acks that were answered.
        unsettled: Acks without an answer.
        buried: Forwards that were answered.
        returned: Delivered after one of both.
        news: Set when something arrives.
    """

    attempted: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    unsettled: set[str] = field(default_factory=set)
    buried: set[str] = field(default_factory=set)
    returned: list[str] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def arrived(self, body: str) -> None:
        """A consumer was given a message."""
        self.news.set()
        if body in self.settled or body in self.buried:
            self.returned.append(body)

    def check(self, dead: Counter[str]) -> None:
        """Raise an AssertionError that names the messages if one is where it may not be."""
        assert self.returned == [], "delivered after its end was answered"
        assert [body for body, copies in dead.items() if copies > 1] == [], "more than one copy"
        assert sorted(set(dead) - self.attempted) == [], "never sent"
        assert sorted(self.settled & set(dead)) == [], "acknowledged and a dead letter"
        assert sorted(self.buried - set(dead)) == [], "given up, answered and lost"
        known = self.settled | self.unsettled | set(dead)
        assert sorted(self.acknowledged - known) == [], "in neither place"


async def send(endpoint: str, name: str, fates: Fates, stop: asyncio.Event) -> None:
    """Send batches one after the other, each once, whatever became of it."""
    number = 0
    async with RawClient(endpoint, f"sends-{name}") as client:
        while not stop.is_set():
            bodies = [f"{KINDS[each % 3]}:{name}-{number + each}" for each in range(BATCH)]
            fates.attempted.update(bodies)
            number += BATCH
            messages = [client.message(ORDERS, body.encode(), message_id=body) for body in bodies]
            try:
                if (await client.send(*messages)).status.code == OK:
                    fates.acknowledged.update(bodies)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.02)


async def read(endpoint: str, name: str, fates: Fates, stop: asyncio.Event) -> None:
    """Receive, and do with each message what its kind says."""
    async with RawClient(endpoint, f"reads-{name}") as client:
        while not stop.is_set():
            with contextlib.suppress(grpc.aio.AioRpcError):
                status, messages = await client.receive(
                    ORDERS, GROUP, invisible_s=INVISIBLE_S, wait_s=1
                )
                assert status in {OK, NOTHING}, status
                for message in messages:
                    fates.arrived(message.body.decode())
                await asyncio.gather(*(END[kind_of(m)](client, m, fates) for m in messages))
                continue
            await asyncio.sleep(0.02)


def kind_of(message: pb.Message) -> str:
    return message.body.decode().partition(":")[0]


async def settle(client: RawClient, message: pb.Message, fates: Fates) -> None:
    body = message.body.decode()
    try:
        answer = await client.ack(ORDERS, GROUP, [message])
    except grpc.aio.AioRpcError:
        fates.unsettled.add(body)
        return
    if answer.entries[0].status.code == OK:
        fates.settled.add(body)


async def give_up(client: RawClient, message: pb.Message, fates: Fates) -> None:
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=GROUP),
        topic=pb.Resource(name=ORDERS),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
        delivery_attempt=message.system_properties.delivery_attempt,
        max_delivery_attempts=ATTEMPTS,
    )
    with contextlib.suppress(grpc.aio.AioRpcError):
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert isinstance(answer, rpc.ForwardMessageToDeadLetterQueueResponse)
        if answer.status.code == OK:
            fates.buried.add(message.body.decode())


async def fail(client: RawClient, message: pb.Message, fates: Fates) -> None:
    request = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=GROUP),
        topic=pb.Resource(name=ORDERS),
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )
    request.invisible_duration.FromMilliseconds(0)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await client.call("ChangeInvisibleDuration", request)


END = {SETTLED: settle, GIVEN_UP: give_up, HOPELESS: fail}


async def stored(endpoint: str, topic: str, queue_id: int) -> list[pb.Message]:
    """Everything a queue holds."""
    found: list[pb.Message] = []
    async with RawClient(endpoint, "counts") as client:
        while True:
            request = rpc.PullMessageRequest(
                group=pb.Resource(name=GROUP),
                message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id),
                offset=len(found),
                batch_size=512,
            )
            request.filter_expression.expression = "*"
            request.long_polling_timeout.FromMilliseconds(0)
            frames = await client.stream("PullMessage", request, timeout_s=20)
            new = [
                frame.message
                for frame in frames
                if isinstance(frame, rpc.PullMessageResponse) and frame.HasField("message")
            ]
            if not new:
                return found
            found += new


async def dead_letters(endpoint: str) -> Counter[str]:
    """The dead letters by body, each with the right origin."""
    found = Counter[str]()
    for message in await stored(endpoint, DEAD, 0):
        body, origin = message.body.decode(), message.system_properties.dead_letter_queue
        assert (origin.topic, origin.message_id) == (ORDERS, body)
        found[body] += 1
    return found


async def redrive(endpoint: str) -> None:
    """Send dead letters back until none is left, a few in each call."""
    request = control_pb2.RedriveRequest(group=GROUP, max_messages=REDRIVEN)
    async with RawClient(endpoint, "redrives") as client:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await client.call("Redrive", request)
                assert isinstance(answer, control_pb2.RedriveResponse)
                assert answer.status.code == OK, answer.status
                if not answer.remaining:
                    return
                request.from_offset = answer.next_offset
            await asyncio.sleep(0.005)


async def kill_often(
    server: OwnServer, lives_s: Iterable[float], over: asyncio.Event | None = None
) -> int:
    """Kill after each of these times, and check the data; at the end the server runs.

    Returns:
        How many kills there were before `over`.
    """
    kills = 0
    for life_s in lives_s:
        await asyncio.sleep(life_s)  # work to be killed in
        if over is not None and over.is_set():
            break
        await server.kill()
        kills += 1
        found = await asyncio.to_thread(check.check, server.data)
        assert found.is_whole, found
        await server.start()
    return kills


async def bury_while_it_dies(server: OwnServer, kills: int, chance: random.Random) -> Fates:
    """Send, settle, give up and fail, while the server dies."""
    fates, sending, receiving = Fates(), asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for name in "ab":
            tasks.create_task(send(server.endpoint, name, fates, sending))
            tasks.create_task(read(server.endpoint, name, fates, receiving))
        await kill_often(server, [chance.uniform(0.05, 1.0) for _ in range(kills)])
        sending.set()
        # What a kill left invisible comes again after that.
        with contextlib.suppress(TimeoutError):
            while True:
                fates.news.clear()
                async with asyncio.timeout(INVISIBLE_S + 2):
                    await fates.news.wait()
        receiving.set()
    return fates


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_message_is_settled_or_one_dead_letter_and_sent_back_once(
    tmp_path: Path, kills: int
) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    server = OwnServer(tmp_path / "data", "--tls", "off", *FLAGS)
    await server.start()
    await server.create_topic(ORDERS, "normal", QUEUES)
    await server.create_group(GROUP, max_attempts=ATTEMPTS)
    try:
        fates = await bury_while_it_dies(server, kills, chance)
        dead = await dead_letters(server.endpoint)
        fates.check(dead)
        kinds = Counter(body.partition(":")[0] for body in dead)
        print(f"{len(fates.acknowledged)} sent, {len(fates.settled)} settled, {kinds}")
        assert min(kinds[GIVEN_UP], kinds[HOPELESS], len(fates.settled)) > 10 * kills

        before = await in_topic(server)
        lives_s, over = [chance.uniform(0.05, 0.6) for _ in range(kills)], asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(kill_often(server, lives_s, over))
            await redrive(server.endpoint)
            over.set()
        print(f"sent back over {killing.result()} kills")
        again = await in_topic(server)
        again.subtract(before)
        assert {body: copies for body, copies in again.items() if copies} == dead
        assert await server.stop() == 0
    finally:
        await server.kill()


async def in_topic(server: OwnServer) -> Counter[str]:
    """How often each body is stored in the topic."""
    queues = [await stored(server.endpoint, ORDERS, queue_id) for queue_id in range(QUEUES)]
    return Counter(message.body.decode() for queue in queues for message in queue)
