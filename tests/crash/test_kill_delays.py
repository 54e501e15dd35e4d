"""kill -9 again and again while very many messages wait for their time.

    waiting    most are due in a window that begins when all are sent
    far        every hundredth is due in a month: it stays, and at the end each is taken back
               by its recall handle, which works once if the message is there, once

The quick one waits seconds for thousands. `make crash` sends a million, due over ten minutes
(COSMODROME_CRASH_WINDOW_S), and kills every ten seconds from the first send to the last delivery.
"""

import asyncio
import contextlib
import os
import random
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc.aio
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.store import check
from tests.conformance.broker import OwnServer
from tests.support.raw_client import NOTHING, OK, RawClient

SEED = int(os.environ.get("COSMODROME_CRASH_SEED", "20261121"))
LONG_WINDOW_S = float(os.environ.get("COSMODROME_CRASH_WINDOW_S", "600"))
LATER, GROUP = "later", "readers"
FAR_S, FAR_EVERY = 30 * 86_400, 100
BATCH, READ, RECALLS = 500, 256, 64
SHORT = ("invisible_min_ms=1000", "polling_min_ms=1000", f"batch_max={READ}")
FLAGS = tuple(flag for setting in SHORT for flag in ("--set", f"delivery.{setting}"))


class Plan(NamedTuple):
    """How much, and how often it dies.

    Attributes:
        messages: How many.
        lead_s: From the beginning to when the first is due; the sends take about as long.
        window_s: They are due evenly over so long.
        kill_every_s: A mean; each pause is between half and one and a half of it.
        invisible_s: How long a delivery may take; what a kill left invisible comes after it.
    """

    messages: int
    lead_s: float
    window_s: float
    kill_every_s: float
    invisible_s: int


QUICK = Plan(6_000, 1.5, 3.0, 1.2, 3)
LONG = Plan(1_000_000, 120, LONG_WINDOW_S, 10, 10)


@dataclass
class Schedule:
    """What was promised and what came, by a message's number, which is its body.

    Attributes:
        due_s: When each is due, in seconds since the epoch.
        promised_s: When its send was answered; 0 while nobody knows.
        came_s: When it was first delivered; 0 if it was not.
        fired_s: When the broker had put it into its queue, by its own clock.
        settled: Those whose ack was answered.
        sent_again: The answer to their send was lost: perhaps they were stored twice.
        deliveries: In all.
        expired: Acks that were refused: the reader took longer than its messages were invisible.
        twice: Came again after an answered ack.
        far: Recall handles of those that are not due before the test is long over.
        news: Set when something arrives.
    """

    due_s: "array[float]"
    promised_s: "array[float]" = field(init=False)
    came_s: "array[float]" = field(init=False)
    fired_s: "array[float]" = field(init=False)
    settled: bytearray = field(init=False)
    sent_again: set[int] = field(default_factory=set)
    deliveries: int = 0
    expired: int = 0
    twice: list[int] = field(default_factory=list)
    far: dict[int, str] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.promised_s = array("d", bytes(8 * len(self.due_s)))
        self.came_s = array("d", bytes(8 * len(self.due_s)))
        self.fired_s = array("d", bytes(8 * len(self.due_s)))
        self.settled = bytearray(len(self.due_s))

    def promise(self, numbers: Sequence[int], entries: Sequence[rpc.SendResultEntry]) -> None:
        """The server said OK to a batch."""
        now_s = time.time()
        for number, entry in zip(numbers, entries, strict=True):
            self.promised_s[number] = now_s
            if is_far(number):
                self.far[number] = entry.recall_handle

    def arrived(self, message: pb.Message) -> None:
        """A consumer was given a message."""
        number = int(message.body)
        # One that was stored twice has two lives; only one of them was settled.
        if self.settled[number] and number not in self.sent_again:
            self.twice.append(number)
        if not self.came_s[number]:
            self.came_s[number] = time.time()
            stored = message.system_properties.store_timestamp
            self.fired_s[number] = stored.ToMilliseconds() / 1_000
        self.deliveries += 1
        self.news.set()

    @property
    def waiting(self) -> list[int]:
        """Promised, not far, and not come yet."""
        return [
            number
            for number, promised_s in enumerate(self.promised_s)
            if promised_s and not self.came_s[number] and not is_far(number)
        ]

    def check(self) -> None:
        """Raise an AssertionError that names the messages if a promise was broken."""
        assert self.waiting == [], "promised and lost"
        came = [number for number, came_s in enumerate(self.came_s) if came_s]
        early = [number for number in came if self.came_s[number] < self.due_s[number]]
        assert early == [], "delivered early"
        early = [number for number in came if self.fired_s[number] < self.due_s[number]]
        assert early == [], "in its queue early, by the broker's clock"
        assert self.twice == [], "delivered again after an answered ack"

    def late_s(self, among: Iterable[int], at_s: "array[float]") -> list[float]:
        """How long after each was due, and known to be stored, something was; sorted."""
        return sorted(
            at_s[number] - max(self.due_s[number], self.promised_s[number])
            for number in among
            if at_s[number]
        )

    @property
    def repeats(self) -> int:
        """Deliveries beyond the first of those that are stored once."""
        came = sum(1 for came_s in self.came_s if came_s)
        return self.deliveries - came


def is_far(number: int) -> bool:
    return number % FAR_EVERY == 0


def schedule(plan: Plan, start_s: float) -> Schedule:
    """Due evenly over the window; the wire has whole milliseconds."""
    first_s = start_s + plan.lead_s
    due_s = array("d")
    for number in range(plan.messages):
        at_s = first_s + (FAR_S if is_far(number) else plan.window_s * number / plan.messages)
        due_s.append(int(at_s * 1_000) / 1_000)
    return Schedule(due_s)


async def send(endpoint: str, books: Schedule, numbers: range) -> None:
    """Send in batches; an unknown outcome is sent again until it is known."""
    async with RawClient(endpoint, f"sends-{numbers.start}") as client:
        for first in range(numbers.start, numbers.stop, BATCH):
            batch = range(first, min(first + BATCH, numbers.stop))
            messages = [delayed(client, number, books.due_s[number]) for number in batch]
            while True:
                try:
                    answer = await client.send(*messages)
                except grpc.aio.AioRpcError:
                    books.sent_again.update(batch)
                    await asyncio.sleep(0.02)
                    continue
                assert answer.status.code == OK, answer.status
                books.promise(batch, answer.entries)
                break


def delayed(client: RawClient, number: int, due_s: float) -> pb.Message:
    """A message that says its number when it is due."""
    message = client.message(LATER, b"%d" % number)
    message.system_properties.message_type = pb.DELAY
    message.system_properties.delivery_timestamp.FromMilliseconds(round(due_s * 1_000))
    return message


async def read(endpoint: str, books: Schedule, invisible_s: int, stop: asyncio.Event) -> None:
    """Receive and ack what comes."""
    async with RawClient(endpoint, "reads") as client:
        while not stop.is_set():
            try:
                status, messages = await client.receive(
                    LATER, GROUP, invisible_s=invisible_s, wait_s=1
                )
                assert status in {OK, NOTHING}, status
                for message in messages:
                    books.arrived(message)
                if messages:
                    answer = await client.ack(LATER, GROUP, messages)
                    for message, entry in zip(messages, answer.entries, strict=True):
                        books.settled[int(message.body)] |= entry.status.code == OK
                        books.expired += entry.status.code != OK
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)


@dataclass
class Killer:
    """Ends the server and starts it again until it is told to stop.

    Attributes:
        downs_s: From the kill to the ready line, of each.
    """

    server: OwnServer
    every_s: float
    chance: random.Random
    downs_s: list[tuple[float, float]] = field(default_factory=list)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """It kills until the end of the block, and leaves a server that runs."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._kill(over))
            try:
                yield
            finally:
                over.set()

    async def _kill(self, over: asyncio.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.every_s * self.chance.uniform(0.5, 1.5)):
                    await over.wait()
                    return
            killed_s = time.time()
            await self.server.kill()
            await self.server.start()
            self.downs_s.append((killed_s, time.time()))

    def was_down(self, at_s: float) -> bool:
        """Whether a message of that time met a dead server, or what had piled up behind one."""
        return any(killed_s - 1 < at_s < ready_s + 2 for killed_s, ready_s in self.downs_s)


async def all_come(books: Schedule, invisible_s: int) -> None:
    """Wait until what was promised came, or nothing does any more; then for what comes again."""
    left = books.waiting
    with contextlib.suppress(TimeoutError):
        while left:
            books.news.clear()
            async with asyncio.timeout(60):
                await books.news.wait()
            left = [number for number in left if not books.came_s[number]]
    # What a kill left invisible comes again after that, or it was settled.
    with contextlib.suppress(TimeoutError):
        while True:
            books.news.clear()
            async with asyncio.timeout(invisible_s + 2):
                await books.news.wait()


async def recall(endpoint: str, handles: Iterable[str]) -> list[int]:
    """Take messages back; the status code of each."""
    async with RawClient(endpoint, "recalls") as client:
        allowed = asyncio.Semaphore(RECALLS)

        async def one(handle: str) -> int:
            request = rpc.RecallMessageRequest(topic=pb.Resource(name=LATER), recall_handle=handle)
            async with allowed:
                answer = await client.call("RecallMessage", request, timeout_s=60)
            assert isinstance(answer, rpc.RecallMessageResponse)
            return answer.status.code

        return await asyncio.gather(*map(one, handles))


async def kill_while_they_wait(data: Path, plan: Plan, chance: random.Random) -> Killer:
    """Send, wait, read and kill; check all books."""
    server = OwnServer(data, "--tls", "off", *FLAGS)
    await server.start()
    await server.create_topic(LATER, "delay", 4)
    await server.create_group(GROUP, max_attempts=100)
    books, stop = schedule(plan, time.time()), asyncio.Event()
    killer = Killer(server, plan.kill_every_s, chance)
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(read(server.endpoint, books, plan.invisible_s, stop))
            async with killer.at_work():
                half = plan.messages // 2
                async with asyncio.TaskGroup() as sends:
                    for numbers in (range(half), range(half, plan.messages)):
                        sends.create_task(send(server.endpoint, books, numbers))
                sent_s = time.time()
                # The kills go on until the last is due.
                await asyncio.sleep(max(0.0, books.due_s[-1] - time.time()))
            await all_come(books, plan.invisible_s)
            stop.set()
        report(books, killer, sent_s)
        books.check()
        once = await recall(server.endpoint, books.far.values())
        assert set(once) == {OK}, "a message due in a month is not there"
        assert OK not in await recall(server.endpoint, books.far.values()), "it was there twice"
        assert await server.stop() == 0
    finally:
        await server.kill()
    # At a kill each of two readers has one batch.
    in_flight = len(killer.downs_s) * 2 * READ
    assert books.repeats <= in_flight + books.expired + len(books.sent_again)
    return killer


def report(books: Schedule, killer: Killer, sent_s: float) -> None:
    """Print what was seen."""
    near = [number for number in range(len(books.due_s)) if not is_far(number)]
    quiet = [number for number in near if not killer.was_down(books.due_s[number])]
    quiet = [number for number in quiet if books.due_s[number] > sent_s + 2]
    for name, among in (("all", near), ("due while it was up", quiet)):
        for what, at_s in (("fired", books.fired_s), ("came", books.came_s)):
            late_s = books.late_s(among, at_s) or [0.0]
            p99_s = late_s[int(0.99 * len(late_s))]
            print(
                f"{name}: {len(late_s)} {what}, p99 {p99_s:.3f} s, at most {late_s[-1]:.3f} s late"
            )
    downs_s = sorted(ready_s - killed_s for killed_s, ready_s in killer.downs_s)
    print(f"{len(downs_s)} kills, down {downs_s[len(downs_s) // 2]:.2f} to {downs_s[-1]:.2f} s")
    print(f"{books.repeats} repeats, {len(books.sent_again)} sent again, {len(books.far)} far")


@pytest.mark.parametrize("plan", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
async def test_delayed_messages_are_not_lost_nor_early_nor_settled_and_back(
    tmp_path: Path, plan: Plan
) -> None:
    print(f"COSMODROME_CRASH_SEED={SEED}")
    killer = await kill_while_they_wait(tmp_path / "data", plan, random.Random(SEED))
    assert killer.downs_s
    found = await asyncio.to_thread(check.check, tmp_path / "data")
    assert found.is_whole, found
