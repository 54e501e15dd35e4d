"""A broker on a real log on a simulated disk, with clocks that a test sets."""

import asyncio
from pathlib import Path
from random import Random

from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.support.broker_world import Clocks, new_message
from tests.support.faulty_files import FaultyFiles
from tests.support.inline_worker import InlineWorker
from tests.support.memory_checkpoints import MemoryCheckpoints

DIRECTORY = Path("/data/shard-0000")
SYNCED = LogOptions(segment_bytes=32_768, reserve_bytes=4_096, retention_ms=0, scrub_bytes_s=0)
NEVER_SYNCED = LogOptions(Durability(is_synced=False), 32_768, 4_096, 64 << 20, 0, 0, 0)


class DiskWorld:
    """The topics `plain` and `later`, the group `billing`; begun by `open`.

    Attributes:
        disk: The files.
        writer: Of the log; it holds its frames when told to.
    """

    def __init__(self, options: LogOptions = SYNCED) -> None:
        self._options = options
        self._random = Random(9)
        self._checkpoints = MemoryCheckpoints()
        self.clocks = Clocks()
        self.disk = FaultyFiles()
        self.writer = InlineWorker()

    def open(self, disk: FaultyFiles | None = None) -> None:
        """Start, on the disk there is or another."""
        self.disk = disk or self.disk
        self.writer = InlineWorker()
        self._checkpoints = self._checkpoints.copy()
        random_bytes = self._random.randbytes
        platform = Platform(
            self.disk, self.clocks, self._checkpoints, self.writer, InlineWorker(), random_bytes
        )
        self.log = CommitLog(DIRECTORY, self._options, platform)
        self.broker = LocalBroker(
            self.log,
            self.clocks,
            BrokerSettings(checkpoint_ms=1 << 40, checkpoint_bytes=1 << 40),
            lambda _: None,
            Attachments(TimerBuckets(self.disk, DIRECTORY / "timer"), random_bytes=random_bytes),
        )

    async def create(self) -> None:
        """Make what the class says."""
        self.broker.create_topic(Topic("plain", queues=1))
        self.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
        self.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
        await self.settle()

    async def settle(self) -> None:
        """Let the loop do what is due, and threads what they were given."""
        for _ in range(1_000):
            for _ in range(6):
                await asyncio.sleep(0)
            if not self.broker.is_copying:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it never came to rest")

    async def later(self, *steps_ms: int) -> None:
        """Let time pass in steps, and the broker do what has become due."""
        for step_ms in steps_ms:
            self.clocks.pass_ms(step_ms)
            self.broker.wake()
            await self.settle()

    def delayed(self, name: str, after_ms: int) -> NewMessage:
        """A message that waits."""
        message = new_message(name.encode(), message_type=MessageType.DELAY)
        message.delivery_timestamp_ms = self.clocks.wall_ms + after_ms
        return message

    def kill(self) -> None:
        """The process dies, and starts again."""
        self.broker.abandon()
        self.open(self.disk.killed())

    def lose_checkpoints(self) -> None:
        """The next start finds none."""
        self._checkpoints = MemoryCheckpoints()

    def power_cut(self, seed: int) -> None:
        """The power fails, and comes back."""
        self.broker.abandon()
        self.open(self.disk.power_cut(Random(seed)))

    def receive(self, topic: str, group: str = "billing") -> list[Delivery]:
        """What a group gets."""
        query = ReceiveQuery(group, topic, ANY_QUEUE, "client", 32, 10_000)
        return self.broker.receive(query)
