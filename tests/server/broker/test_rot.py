"""One frame rots: what lies in all the others comes, and so does what is sent afterwards.

Brokers that do this and that on a simulated disk, each with one damaged frame somewhere. The next
start has a checkpoint, or the snapshots and indexes only, or nothing but frames.
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from cosmodrome_server.errors import BrokerError
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import Delivery, MessageType
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store import sealed_index, segment
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.segment import SegmentHeader
from tests.support.broker_world import new_message
from tests.support.disk_world import DIRECTORY, DiskWorld

READ_BY = {"plain": "billing", "steps": "ledger", "money": "payments"}
Name = tuple[str, str]


class Rotting:
    """A broker, and what is known of its messages.

    Attributes:
        frames: Where each message is that is in its queue: the frame with its bytes.
        acked: Those acknowledged, whether or not the frame that says so is lost.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.world = DiskWorld()
        self.frames: dict[Name, int] = {}
        self.acked: set[Name] = set()
        self._held: list[tuple[str, Delivery]] = []
        self._half: list[tuple[str, int]] = []
        self._committed: list[str] = []
        self._number = 0
        self._padding = random.choice((10, 600, 3_000))

    async def begin(self) -> None:
        self.world.open()
        broker = self.world.broker
        broker.create_topic(Topic("plain", queues=2))
        broker.create_topic(Topic("steps", TopicType.FIFO, queues=2))
        broker.create_topic(Topic("money", TopicType.TRANSACTION, queues=1))
        for topic, group in READ_BY.items():
            first = ConsumeFrom.FIRST
            broker.create_group(
                Group(group, is_fifo=topic == "steps", consume_from=first, max_attempts=99)
            )
        await self.world.settle()

    # What it does

    def _name(self) -> tuple[str, bytes]:
        self._number += 1
        name = f"m{self._number}"
        return name, f"{name}.".encode() + b"x" * self.random.randint(0, self._padding)

    def send(self) -> None:
        topic = self.random.choice(("plain", "plain", "steps"))
        for _ in range(self.random.randint(1, 3)):
            name, body = self._name()
            group = self.random.choice("ABC") if topic == "steps" else ""
            self.frames[topic, name] = self.world.log.open_lsn
            self.world.broker.send(topic, [new_message(body, group=group, message_id=name)])

    def send_half(self) -> None:
        name, body = self._name()
        half = new_message(body, message_type=MessageType.TRANSACTION, message_id=name)
        self._half.append((name, self.world.log.open_lsn))
        self.world.broker.send("money", [half])

    def commit(self) -> None:
        if self._half:
            name, lsn = self._half.pop()
            self.frames["money", name] = lsn
            self._committed.append(name)
            self._end(name)

    def _end(self, name: str) -> None:
        self.world.broker.end_transaction("money", name, commit=True, from_check=False)

    def receive(self) -> None:
        topic = self.random.choice(tuple(READ_BY))
        self._held += [(topic, each) for each in self._received(topic, self.random.randint(1, 4))]

    def _received(self, topic: str, count: int) -> list[Delivery]:
        query = ReceiveQuery(READ_BY[topic], topic, ANY_QUEUE, "client", count, 10_000)
        return self.world.broker.receive(query)

    def ack(self) -> None:
        if self._held:
            topic, delivery = self._held.pop(self.random.randrange(len(self._held)))
            try:
                self.world.broker.ack(READ_BY[topic], topic, delivery.receipt_handle)
            except BrokerError:
                return  # too late
            self.acked.add((topic, _name_of(delivery)))

    async def live(self) -> None:
        """A life."""
        verbs: list[Callable[[], None]] = [self.send, self.receive, self.send, self.receive]
        verbs += [self.ack, self.ack, self.send_half, self.commit]
        for _ in range(self.random.randint(10, 60)):
            self.random.choice(verbs)()
            if self.random.random() < 0.1:
                await self.world.later(self.random.choice((1, 5_000, 10_000)))
            if self.random.random() < 0.7:
                await self.world.settle()
        await self.world.settle()

    # What becomes of it

    def rot(self) -> int:
        """A frame is damaged, the broker starts again; return the number of that frame."""
        self.world.broker.abandon()
        disk = self.world.disk.killed()
        names = disk.names(DIRECTORY)
        frames: list[tuple[SegmentHeader, Found]] = []
        for header in self.world.log.segments():
            path = segment.path_of(DIRECTORY, header)
            if path.name in names:
                found = scan(disk.open(path), header)
                frames += [(header, each) for each in found if isinstance(each, Found)]
        # But for those that begin a segment, and the two that made all there is.
        header, lost = self.random.choice(
            [each for each in frames[2:] if each[1].start > segment.HEADER_BYTES]
        )
        disk.open(segment.path_of(DIRECTORY, header)).write(lost.start + 50, [b"rot"])
        known = self.random.choice(("checkpoint", "indexes", "frames"))
        if known != "checkpoint":
            self.world.lose_checkpoints()
        for name in names if known == "frames" else ():
            if name.endswith(sealed_index.SUFFIX):
                disk.remove(DIRECTORY / name)
        self.world.open(disk)
        return lost.header.lsn

    async def send_more(self) -> None:
        for _ in range(3):
            self.send()
        await self.world.settle()

    async def start_from_the_log(self) -> None:
        self.world.lose_checkpoints()
        self.world.kill()
        await self.world.settle()

    async def commit_again(self) -> None:
        """Producers are asked about half messages whose commit is lost, and say the same."""
        for name in self._committed:
            try:
                self._end(name)
            except BrokerError:
                continue  # its half is lost
        await self.world.settle()

    async def read_all(self) -> set[Name]:
        """What comes until nothing more does."""
        came: set[Name] = set()
        for _ in range(20):
            await self.world.later(10_001)
            for topic, group in READ_BY.items():
                for delivery in self._received(topic, 500):
                    came.add((topic, _name_of(delivery)))
                    self.world.broker.ack(group, topic, delivery.receipt_handle)
            await self.world.settle()
        return came


def _name_of(delivery: Delivery) -> str:
    return bytes(delivery.message.body).partition(b".")[0].decode()


@pytest.mark.parametrize("seed", range(60))
def test_what_lies_in_other_frames_comes_and_what_is_sent_afterwards(seed: int) -> None:
    async def main() -> None:
        rotting = Rotting(Random(seed))
        await rotting.begin()
        await rotting.live()
        lost_lsn = rotting.rot()
        await rotting.commit_again()
        await rotting.send_more()
        if seed % 2:
            await rotting.start_from_the_log()
            await rotting.send_more()
        came = await rotting.read_all()
        whole = {name for name, lsn in rotting.frames.items() if lsn != lost_lsn}
        assert whole - came <= rotting.acked
        rotting.world.broker.abandon()

    asyncio.run(main())
