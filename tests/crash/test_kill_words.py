"""kill -9 while producers give their word: commit, roll back, wait until, take back.

What was answered holds, whatever was killed between: a commit arrives, a rollback and a recall
never do, a delayed message comes when it is due and not before. Half messages that are left
without a word are asked about, over kills, until the answer is done: nobody sees one of which
nobody said that it be committed. After each kill the data is checked.
"""

import asyncio
import contextlib
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from cosmodrome import Message, MessageView, Producer, TransactionResolution
from cosmodrome.errors import CosmodromeError
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.store import check
from tests.conformance.broker import OwnServer
from tests.support.raw_client import OK, RawClient

SEED = int(os.environ.get("COSMODROME_CRASH_SEED", "20261121"))
DEALS, LATER, GROUP = "deals", "later", "readers"
# Soon, so that many are asked about in a life of a second.
CHECKS = ("--set", "transactions.first_check_ms=500", "--set", "transactions.check_interval_ms=700")


@dataclass
class Words:
    """What producers said, what was answered, and what consumers got; by the message's body.

    Attributes:
        meant: May arrive: a commit of it was tried, or it is only delayed.
        owed: Must arrive: commits and delayed messages that were answered.
        barred: Must not arrive: rollbacks and recalls that were answered.
        checks: How often a producer was asked what became of a half message.
        due: Delivery times in seconds since the epoch.
        came: When each first arrived.
        settled: Their acks were answered.
        twice: Arrived again after an answered ack.
        news: Set when something arrives.
    """

    meant: set[str] = field(default_factory=set)
    owed: set[str] = field(default_factory=set)
    barred: set[str] = field(default_factory=set)
    due: dict[str, float] = field(default_factory=dict)
    came: dict[str, float] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)
    checks: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def arrived(self, name: str) -> None:
        """A consumer was given a message."""
        self.came.setdefault(name, time.time())
        self.news.set()
        if name in self.settled:
            self.twice.append(name)

    def check(self) -> None:
        """Raise an AssertionError that names the messages if a word was broken."""
        assert sorted(self.owed - set(self.came)) == [], "answered and lost"
        assert sorted(self.barred & set(self.came)) == [], "taken back and delivered"
        assert sorted(set(self.came) - self.meant) == [], "an orphan was delivered"
        assert self.twice == [], "delivered again after an answered ack"
        early = [name for name, at in self.came.items() if at < self.due.get(name, 0)]
        assert early == [], "delivered early"


async def until_answered(client: RawClient, name: str, request: object, stop: asyncio.Event) -> int:
    """Call until the server answers; the status code, 0 when the test ends first."""
    while not stop.is_set():
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await client.call(name, request)  # type: ignore[arg-type]  # of any call
            return int(answer.status.code)  # type: ignore[attr-defined]  # all have it
        await asyncio.sleep(0.02)  # no storm on a dead server
    return 0


def named(client: RawClient, topic: str) -> tuple[str, pb.Message]:
    """A message, and its name, which is its body."""
    message = client.message(topic, b"")
    name = message.system_properties.message_id
    message.body = name.encode()
    return name, message


async def sent(client: RawClient, message: pb.Message) -> rpc.SendResultEntry | None:
    """Send once; None if nobody knows what became of it."""
    try:
        answer = await client.send(message)
    except grpc.aio.AioRpcError:
        await asyncio.sleep(0.02)  # no storm on a dead server
        return None
    return answer.entries[0] if answer.status.code == OK else None


async def decide(
    endpoint: str, name: str, words: Words, stop: asyncio.Event, chance: random.Random
) -> None:
    """Half messages, each with its word, which is given until it is answered."""
    async with RawClient(endpoint, f"decides-{name}") as client:
        while not stop.is_set():
            body, message = named(client, DEALS)
            message.system_properties.message_type = pb.TRANSACTION
            entry = await sent(client, message)
            if entry is None:
                continue
            is_commit = chance.random() < 0.6
            words.meant.update({body} if is_commit else ())
            request = rpc.EndTransactionRequest(
                topic=pb.Resource(name=DEALS),
                message_id=entry.message_id,
                transaction_id=entry.transaction_id,
                resolution=pb.COMMIT if is_commit else pb.ROLLBACK,
            )
            code = await until_answered(client, "EndTransaction", request, stop)
            assert code in {0, OK}, f"the word about {entry.message_id} is refused: {code}"
            if code:
                (words.owed if is_commit else words.barred).add(body)


@dataclass
class Leaver:
    """A producer that leaves its half messages to the checks.

    Those with an even number are to be committed, and it does not know that every time.
    """

    endpoint: str
    words: Words
    chance: random.Random

    async def leave(self, stop: asyncio.Event, over: asyncio.Event) -> None:
        """Send until `stop`, answer checks until `over`."""
        producer = Producer(
            self.endpoint, topics=[DEALS], max_attempts=1, transaction_checker=self._checked
        )
        async with producer:
            number = 0
            while not stop.is_set():
                body = f"left-{number}"
                (self.words.barred if number % 2 else self.words.meant).add(body)
                with contextlib.suppress(CosmodromeError):
                    message = Message(DEALS, body.encode())
                    await producer.send(message, transaction=producer.begin_transaction())
                    if number % 2 == 0:
                        self.words.owed.add(body)
                number += 1
                await asyncio.sleep(0.02)
            await over.wait()

    async def _checked(self, message: MessageView) -> TransactionResolution:
        self.words.checks += 1
        kind, _, number = message.body.decode().rpartition("-")
        # A broker may ask any producer of the topic; of others' messages this one knows nothing.
        if kind != "left" or self.chance.random() < 0.2:
            return TransactionResolution.UNKNOWN
        is_commit = int(number) % 2 == 0
        return TransactionResolution.COMMIT if is_commit else TransactionResolution.ROLLBACK


async def delay(
    endpoint: str, name: str, words: Words, stop: asyncio.Event, chance: random.Random
) -> None:
    """Messages for later, some of them taken back."""
    async with RawClient(endpoint, f"delays-{name}") as client:
        while not stop.is_set():
            body, message = named(client, LATER)
            words.meant.add(body)
            due_s = time.time() + chance.uniform(0.1, 4)
            message.system_properties.message_type = pb.DELAY
            message.system_properties.delivery_timestamp.FromMilliseconds(int(due_s * 1_000))
            words.due[body] = int(due_s * 1_000) / 1_000
            entry = await sent(client, message)
            if entry is None:
                continue
            if chance.random() < 0.6:
                words.owed.add(body)
                continue
            request = rpc.RecallMessageRequest(
                topic=pb.Resource(name=LATER), recall_handle=entry.recall_handle
            )
            if await until_answered(client, "RecallMessage", request, stop) == OK:
                words.barred.add(body)


async def read(endpoint: str, topic: str, words: Words, stop: asyncio.Event) -> None:
    """Receive and ack what comes."""
    async with RawClient(endpoint, f"reads-{topic}") as client:
        while not stop.is_set():
            try:
                _, messages = await client.receive(topic, GROUP, invisible_s=10, wait_s=5)
                for message in messages:
                    words.arrived(message.body.decode())
                if messages:
                    answer = await client.ack(topic, GROUP, messages)
                    for message, entry in zip(messages, answer.entries, strict=True):
                        if entry.status.code == OK:
                            words.settled.add(message.body.decode())
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)


async def kill_while_words_are_given(data: Path, kills: int, chance: random.Random) -> Words:
    """Producers of each kind and a consumer of each topic, while the server dies."""
    words, sending, receiving = Words(), asyncio.Event(), asyncio.Event()
    server = OwnServer(data, "--tls", "off", *CHECKS)
    await server.start()
    await server.create_topic(DEALS, "transaction", 2)
    await server.create_topic(LATER, "delay", 2)
    await server.create_group(GROUP, max_attempts=100)
    try:
        async with asyncio.TaskGroup() as tasks:
            for name in "ab":
                tasks.create_task(decide(server.endpoint, name, words, sending, chance))
                tasks.create_task(delay(server.endpoint, name, words, sending, chance))
            leaver = Leaver(server.endpoint, words, chance)
            tasks.create_task(leaver.leave(sending, receiving))
            for topic in (DEALS, LATER):
                tasks.create_task(read(server.endpoint, topic, words, receiving))
            for _ in range(kills):
                await asyncio.sleep(chance.uniform(0.2, 1.5))  # work to be killed in
                await server.kill()
                found = await asyncio.to_thread(check.check, data)
                assert found.is_whole, found
                # Some become due while nobody is there.
                await asyncio.sleep(chance.choice((0, 0, 1.5)))
                await server.start()
            sending.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    while not words.owed <= set(words.came):
                        words.news.clear()
                        await words.news.wait()
            receiving.set()
    finally:
        await server.kill()
    return words


@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=pytest.mark.slow)])
async def test_a_word_that_was_answered_is_kept(tmp_path: Path, kills: int) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    words = await kill_while_words_are_given(tmp_path / "data", kills, chance)
    words.check()
    assert len(words.owed) > 10 * kills
    assert len(words.barred) > 2 * kills
    assert words.checks > 2 * kills
