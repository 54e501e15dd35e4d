"""A broker, its disk, its clients and its bad luck, all from one seed.

    clients      send, commit, roll back, recall; receive, wait, acknowledge, hide, give up
    time         passes, in steps of milliseconds to hours; the wall clock jumps, also back
    the disk     is slow (frames wait), forgets what was not synced, tears writes, and will not
                 be read for a while
    retention    of every other seed takes whole segments after 30 days, which pass in jumps
    the end      comes at any operation of the disk: the process is killed, or the power fails;
                 or between two operations, cleanly

Everything is decided by `Random(seed)`; so a seed gives one trace, and a failure is seen again
by running its seed. What is checked, and how often (`tests/simulation/books.py` says what it is):

    every answer      its frame is noted, and may not be missing after a crash that must leave it
    every delivery    it is one that may be, not early, in an attempt there is; in order
    every refusal     has its reason: a handle too late, a disk that cannot be read
    every start       which frames it found, and no damage; one in five is compared with a start
                      without checkpoint (of a seed run twice, in the first run), one in ten
                      first fails to read
    every clean stop  the next start has the same state
    the end           everything owed was settled or is a dead letter
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, NamedTuple

import msgspec
import pytest

from cosmodrome_server.broker.local_broker import Attachments, LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import (
    BadRequest,
    InvalidReceiptHandle,
    InvalidTransactionId,
    MessageNotFound,
    ReadFailed,
    TopicNotFound,
)
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, Group
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage, StoredMessage
from cosmodrome_server.model.queries import ANY_QUEUE, PullQuery, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import Topic, TopicType, dead_letter_topic
from cosmodrome_server.model.wire import LITE_TOPIC, encode_bytes, message_id
from cosmodrome_server.store.commit_log import CommitLog
from cosmodrome_server.store.group_commit import Durability
from cosmodrome_server.store.platform import LogOptions, Platform
from cosmodrome_server.store.timer_bucket import TimerBuckets
from tests.simulation.books import Books, Promises, Sent
from tests.simulation.loop import SimulatedLoop
from tests.simulation.paths import KnownPath
from tests.support.broker_world import START_MS, Clocks
from tests.support.faulty_files import Crash, FaultyFiles
from tests.support.inline_worker import InlineWorker
from tests.support.memory_checkpoints import MemoryCheckpoints

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OPTIONS = LogOptions(
    segment_bytes=32_768,
    reserve_bytes=4_096,
    staged_bytes_max=1 << 20,
    retention_ms=0,
    scrub_bytes_s=0,
)
ATTEMPTS_MAX = 4
INVISIBLE_MS = 10_000
TOPICS = {
    "orders": (TopicType.NORMAL, 3),
    "steps": (TopicType.FIFO, 2),
    "later": (TopicType.DELAY, 2),
    "deals": (TopicType.TRANSACTION, 2),
}
GROUPS = {"billing": list(TOPICS), "ledger": ["steps"]}
SYNC = Durability()


@dataclass(slots=True, eq=False)
class Held:
    """A delivery that a consumer has in hand."""

    group: str
    topic: str
    name: str
    handle: str
    deadline_ms: int
    life: int
    # The life of the broker in which its topic or group was deleted.
    gone_in: int = 0


class _Answer(NamedTuple):
    """What an answer of the broker means.

    Attributes:
        life: The broker's; a dead one answers nobody.
        lsn: The frame it rests on.
        held: What a consumer has in hand now, if it is a delivery.
    """

    life: int
    lsn: int
    held: Held | None


class Events:
    """Producers that are asked about half messages."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        self.asked.append(transaction_id)
        return True

    def topic_changed(self, name: str) -> None:
        pass

    def group_changed(self, name: str) -> None:
        pass

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        pass


class Simulation:
    """One seed. `run` raises AssertionError if a promise was broken."""

    topics: ClassVar = TOPICS
    groups: ClassVar = GROUPS
    ordered: ClassVar = {"ledger": "steps"}

    def __init__(self, seed: int, *, is_repeat: bool = False) -> None:
        self._random = Random(seed)
        # Of two runs with one trace the second one's starts have nothing new to compare.
        self._is_repeat = is_repeat
        self._durability = self._durability_of(seed)
        self._retention_ms = 30 * DAY_MS * (seed % 2)
        self._directory = KnownPath("/data/shard-0000")
        self._loop = SimulatedLoop()
        self._loop.set_exception_handler(self._caught)
        self._trace = hashlib.blake2b(digest_size=16)
        self._clocks = Clocks()
        self._latest_ms = START_MS
        self._disk = FaultyFiles()
        self._checkpoints = MemoryCheckpoints()
        self._events = Events()
        self._books = Books(ATTEMPTS_MAX, self.ordered, has_ghosts=not self._durability.is_synced)
        self._promises = Promises(self._durability)
        self._promises.begin(0)
        # The last frame that the next start must find.
        self._kept_lsn = 0
        # When the writer last looked for what waits for its sync.
        self._looked_ms = 0
        self._held: list[Held] = []
        self._unanswered: list[Held] = []
        # Those a producer may give its word on, and take back: some that it has are among them.
        self._open_halves: list[str] = []
        self._recallable: list[str] = []
        self._last_sent: list[Sent] = []
        self._numbers = 0
        self._life = 0
        self._is_dead = False
        self._errors: list[object] = []
        self.crashes = 0
        # How often what was done, by the first word of its trace.
        self.done: Counter[object] = Counter()

    def _durability_of(self, seed: int) -> Durability:
        del seed
        return SYNC

    @property
    def deliveries(self) -> int:
        return self._books.deliveries

    def run(self, operations: int) -> str:
        """Run so many operations, then let everything come to its end; return the trace's hash."""
        try:
            self._loop.run_until_complete(self._main(operations))
        finally:
            self._loop.close()
        return self._trace.hexdigest()

    async def _main(self, operations: int) -> None:
        self._start()
        self._create()
        await self._settle()
        for _ in range(operations):
            await self._step()
        await self._finish()

    def _note(self, *words: object) -> None:
        self.done[words[0]] += 1
        self._trace.update(repr(words).encode())

    def _caught(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Crash):
            self._is_dead = True
        elif not self._is_dead:
            self._errors.append(error or context)

    # Starting and ending

    def _open(self, disk: FaultyFiles, checkpoints: MemoryCheckpoints) -> LocalBroker:
        self._writer, self._background = InlineWorker(), InlineWorker()
        platform = Platform(
            disk,
            self._clocks,
            checkpoints,
            self._writer,
            self._background,
            self._random.randbytes,
        )
        options = msgspec.structs.replace(
            OPTIONS, retention_ms=self._retention_ms, durability=self._durability
        )
        self._log = CommitLog(self._directory, options, platform)
        broker = LocalBroker(
            self._log,
            self._clocks,
            BrokerSettings(checkpoint_ms=5_000, checkpoint_bytes=20_000),
            self._errors.append,
            Attachments(
                buckets=TimerBuckets(disk, self._directory / "timer", self._random.randbytes),
                random_bytes=self._random.randbytes,
            ),
        )
        broker.listen(self._events)
        return broker

    def _start(self) -> None:
        # A start takes time, and lease ids hang on that: those lost in a crash are not given again.
        self._clocks.pass_ms(1)
        self._life += 1
        self._is_dead = False
        if self._random.random() < 0.2 and not self._is_repeat:
            self._compare_with_a_start_without_checkpoint()
        if self._random.random() < 0.1:
            self._refuse_to_start()
        self._broker = self._open(self._disk, self._checkpoints)
        found_lsn = self._log.durable_lsn
        assert not self._log.damages, self._log.damages
        assert found_lsn >= self._kept_lsn, f"frame {self._kept_lsn} is lost, {found_lsn} is there"
        self._books.begin(found_lsn)
        self._promises.begin(found_lsn)
        self._unanswered.clear()
        self._looked_ms = self._clocks.run_ms
        self._note("start", self._broker.state_hash())

    def _compare_with_a_start_without_checkpoint(self) -> None:
        before = self._random.getstate()
        with_it = self._open(self._disk.killed(), self._checkpoints.copy())
        self._random.setstate(before)
        without = self._open(self._disk.killed(), MemoryCheckpoints())
        self._random.setstate(before)
        level_leases(with_it, without)
        assert with_it.state_hash() == without.state_hash(), differences(with_it, without)
        with_it.abandon()
        without.abandon()

    def _refuse_to_start(self) -> None:
        """A start that cannot read the log ends, and the next one finds everything."""
        if not any(name.endswith(".seg") for name in self._disk.names(self._directory)):
            return
        before = self._random.getstate()
        self._disk.unreadable = (".seg", 0, 1 << 32)
        with pytest.raises(ReadFailed):
            self._open(self._disk, self._checkpoints)
        self._disk.unreadable = None
        self._random.setstate(before)

    def _create(self) -> None:
        for name, (topic_type, queues) in self.topics.items():
            self._broker.create_topic(Topic(name, topic_type, queues=queues))
        backoff = CustomizedBackoff((1_000,))
        self._broker.create_group(
            Group(
                "billing",
                max_attempts=ATTEMPTS_MAX,
                backoff=backoff,
                consume_from=ConsumeFrom.FIRST,
            )
        )
        self._broker.create_group(
            Group(
                "ledger",
                is_fifo=True,
                max_attempts=ATTEMPTS_MAX,
                backoff=backoff,
                consume_from=ConsumeFrom.FIRST,
            )
        )

    def _crash(self, *, is_power_cut: bool) -> None:
        self._broker.abandon()
        self.crashes += 1
        self._disk.on_operation = lambda _: None
        self._kept_lsn = self._promises.kept(
            self._log.synced_lsn, self._looked_ms, is_power_cut=is_power_cut
        )
        disk = self._disk.power_cut(self._random) if is_power_cut else self._disk.killed()
        self._disk, self._checkpoints = disk, self._checkpoints.copy()
        self._note("crash", is_power_cut)
        self._start()

    def _arm_crash(self) -> None:
        """Let the end come at one of the next operations of the disk."""
        left = self._random.randrange(1, 12)

        def count(_: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self._is_dead = True
                raise Crash

        self._disk.on_operation = count

    async def _restart(self) -> None:
        await self._settle()
        if self._is_dead:
            return
        self._disk.on_operation = lambda _: None
        self._writer.release()
        await self._broker.close()
        stopped = self._broker
        self._kept_lsn = self._log.durable_lsn
        assert not self._log.has_staged, "a clean stop leaves nothing behind"
        self._disk, self._checkpoints = self._disk.killed(), self._checkpoints.copy()
        self._start()
        level_leases(stopped, self._broker)
        assert self._broker.state_hash() == stopped.state_hash(), differences(stopped, self._broker)

    async def _settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
            if self._loop.is_quiet:
                return

    # Steps

    async def _step(self) -> None:
        try:
            await self._act()
        except Crash:
            self._is_dead = True
        except ReadFailed:
            assert self._disk.unreadable
        if self._random.random() < 0.6:
            await self._settle()
        assert not self._errors, self._errors
        self._books.close_frames(self._log.synced_lsn)
        if self._is_dead:
            is_power_cut = self._random.random() < 0.5
            self._crash(is_power_cut=is_power_cut)
            if not is_power_cut and self._random.random() < 0.3:
                # What a start has found of a killed process's life it must have made safe.
                self._crash(is_power_cut=True)

    async def _act(self) -> None:
        choice = self._random.random()
        if choice < 0.30:
            self._send()
        elif choice < 0.36:
            self._end_transaction()
        elif choice < 0.39:
            self._recall()
        elif choice < 0.62:
            self._receive()
        elif choice < 0.82:
            self._settle_one()
        elif choice < 0.95:
            self._pass_time()
        else:
            await self._suffer()

    async def _suffer(self) -> None:
        choice = self._random.random()
        if choice < 0.3:
            self._writer.holding = not self._writer.holding
            if not self._writer.holding:
                self._writer.release()
        elif choice < 0.7:
            self._arm_crash()
        elif choice < 0.8:
            await self._restart()
        elif choice < 0.9:
            self._refuse_reads()
        else:
            self._jump()

    def _refuse_reads(self) -> None:
        """One kind of file cannot be read, until this is called again or the broker ends."""
        is_bad = self._disk.unreadable is None
        kind = self._random.choice((".seg", ".idx", ".tb"))
        self._disk.unreadable = (kind, 0, 1 << 32) if is_bad else None
        self._note("reads", self._disk.unreadable)

    def _pass_time(self) -> None:
        step = self._random.choice((1, 50, 400, 3_000, INVISIBLE_MS, 60_000, HOUR_MS))
        self._clocks.pass_ms(self._random.randint(0, step))
        # Before anything looks at the clock: the writer's thread may, and end the broker.
        self._latest_ms = max(self._latest_ms, self._clocks.wall_ms)
        self._look_for_syncs()
        self._wake()

    def _look_for_syncs(self) -> None:
        """The writer's thread wakes by itself, unless the disk keeps it."""
        if not self._writer.holding:
            self._writer.tick()
            self._looked_ms = self._clocks.run_ms

    def _jump(self) -> None:
        # More often forward: while the clock is behind the log, the log's time stands still.
        directions = (-1, 1, 1) if self._retention_ms else (-1, 1)
        self._clocks.wall_ms += self._random.choice(directions) * self._random.choice(
            (1_000, HOUR_MS, 40 * DAY_MS)
        )
        self._note("jump", self._clocks.wall_ms)
        self._wake()

    def _wake(self) -> None:
        self._latest_ms = max(self._latest_ms, self._clocks.wall_ms)
        self._broker.wake()

    # Answers

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """The broker's `ReplySink`: the token is the frame the answer rests on, or a delivery."""
        for token, _ in replies:
            assert isinstance(token, _Answer)
            if token.life == self._life and not self._is_dead:
                self._promises.answer(token.lsn, self._clocks.run_ms)
                if token.held is not None:
                    self._hold(token.held)

    def _answer(self, held: Held | None = None) -> int:
        """Let the broker answer when what it just did is durable; return the frame it is in."""
        lsn = self._log.open_lsn if self._log.has_staged else self._log.open_lsn - 1
        self._broker.reply_when_durable(self, _Answer(self._life, lsn, held), b"")
        return lsn

    # Producers

    def _send(self) -> None:
        topic = self._random.choice(list(self.topics))
        messages = [self._message(topic) for _ in range(self._random.choice((1, 1, 1, 5)))]
        receipts = self._broker.send(topic, messages)
        lsn = self._answer()
        for receipt in receipts:
            self._books.send(lsn, receipt.message_id)
            sent = self._books.sent[receipt.message_id]
            sent.recall_handle = receipt.recall_handle
            if sent.recall_handle:
                self._recallable.append(receipt.message_id)
            if sent.is_half:
                self._open_halves.append(receipt.message_id)
        self._last_sent = [self._books.sent[receipt.message_id] for receipt in receipts]
        self._note("send", topic, [receipt.message_id for receipt in receipts])

    def _message(self, topic: str) -> NewMessage:
        self._numbers += 1
        name = f"m{self._numbers}"
        sent = Sent(topic, self._numbers, stored_ms=self._clocks.wall_ms)
        self._books.sent[name] = sent
        kind, group, lite_topic, priority = self._kind_of(topic), "", "", -1
        system = encode_bytes(3, name.encode())
        if kind is MessageType.FIFO:
            sent.order = group = self._random.choice("abcd")
            system += encode_bytes(17, group.encode())
        elif kind is MessageType.DELAY:
            longest = self._random.choice((1_000, 60_000, 3 * HOUR_MS, 3 * DAY_MS))
            sent.due_ms = self._clocks.wall_ms + self._random.randint(1, longest)
        elif kind is MessageType.TRANSACTION:
            sent.is_half = True
        elif kind is MessageType.PRIORITY:
            priority = self._random.randrange(3)
        elif kind is MessageType.LITE:
            sent.order = lite_topic = self._lite_topic()
            system += encode_bytes(LITE_TOPIC, lite_topic.encode())
        body = self._random.randbytes(self._random.choice((10, 100, 1_000)))
        return NewMessage(
            name, kind, "", group, sent.due_ms, 0, lite_topic, priority, system, b"", body
        )

    def _lite_topic(self) -> str:
        """Where a message for lite topics goes, or what a client reads."""
        raise NotImplementedError

    def _kind_of(self, topic: str) -> MessageType:
        return MessageType[self.topics[topic][0].name]

    def _end_transaction(self) -> None:
        """Give a producer's word; the same word every time, by itself or asked for it."""
        asked = self._events.asked.pop() if self._events.asked else ""
        sents = self._books.sent
        name = asked or self._pick(self._open_halves, lambda name: not sents[name].is_ended)
        if not name:
            return
        sent = sents[name]
        if sent.intent is None:
            sent.intent = self._random.random() < 0.7
        was_tried, sent.is_end_tried = sent.is_end_tried, True
        sent.ended_ms = sent.ended_ms or self._clocks.wall_ms
        try:
            self._broker.end_transaction(
                sent.topic, name, commit=sent.intent, from_check=bool(asked)
            )
        except InvalidTransactionId:
            is_expired = self._latest_ms - sent.stored_ms >= 72 * HOUR_MS
            is_gone = name in self._books.dropped or not sent.is_there
            assert was_tried or is_expired or is_gone, f"{name} is gone: {sent}"
            return
        assert sent.is_there, f"{name} was ended, and is not there: {sent}"
        lsn = self._answer()
        if not sent.is_ended:
            sent.is_ended = True
            self._books.note(lsn, lambda: setattr(sent, "is_ended", False))
        self._note("end", name, sent.intent)

    def _recall(self) -> None:
        sents = self._books.sent
        name = self._pick(self._recallable, lambda name: not sents[name].is_recalled)
        if not name:
            return
        sent = sents[name]
        is_gone = name in self._books.dropped or not sent.is_there
        try:
            assert self._broker.recall(sent.topic, sent.recall_handle) == name
        except MessageNotFound:
            is_due = sent.due_ms <= self._latest_ms
            assert is_due or is_gone, f"{name} cannot be recalled: {sent}"
            return
        except BadRequest:
            assert is_gone, f"{name} is refused: {sent}"
            return
        sent.is_recalled = True
        self._books.note(self._answer(), lambda: setattr(sent, "is_recalled", False))
        self._note("recall", name)

    def _pick(self, names: list[str], is_open: Callable[[str], bool]) -> str:
        """One of the names that are open, "" for none; those found closed are taken out."""
        while names:
            at = self._random.randrange(len(names))
            if is_open(names[at]):
                return names[at]
            names[at] = names[-1]
            names.pop()
        return ""

    # Consumers

    def _receive(self) -> None:
        group = self._random.choice(list(self.groups))
        topic = self._random.choice(self.groups[group])
        if self._random.random() < 0.25:
            for _ in range(self._random.randint(1, 4)):
                self._take_soon(group, topic, self._random.choice((1, 1, 4, 32)))
            return
        count = self._random.choice((1, 4, 32))
        if not self._take(group, topic, count) and self._random.random() < 0.5:
            self._wait(group, topic, count)

    def _take(self, group: str, topic: str, count: int) -> int:
        query = self._query(group, topic, count)
        deliveries = self._broker.receive(query)
        self._took(query, deliveries)
        return len(deliveries)

    def _take_soon(self, group: str, topic: str, count: int) -> None:
        query = self._query(group, topic, count)

        def then(found: list[Delivery] | Exception) -> None:
            if isinstance(found, Exception):
                self._not_taken(found)
            else:
                self._took(query, found)

        self._broker.receive_soon(query, then)

    def _not_taken(self, error: Exception) -> None:
        assert isinstance(error, ReadFailed), error
        assert self._disk.unreadable

    def _wait(self, group: str, topic: str, count: int) -> None:
        deadline_ms = self._clocks.run_ms + self._random.choice((1, 3_000, 30_000))
        query = self._query(group, topic, count)

        def on_ready(deliveries: list[Delivery]) -> None:
            self._took(query, deliveries)

        self._broker.wait(Waiter(query, deadline_ms, on_ready))

    def _query(self, group: str, topic: str, count: int) -> ReceiveQuery:
        return ReceiveQuery(group, topic, ANY_QUEUE, "client", count, INVISIBLE_MS)

    def _took(self, query: ReceiveQuery, deliveries: list[Delivery]) -> None:
        group, topic = query.group, query.topic
        names = [message_id(delivery.message.system) for delivery in deliveries]
        if group in self.ordered:
            self._check_order(group, names)
        for name, delivery in zip(names, deliveries, strict=True):
            self._books.delivered(
                group, name, delivery.attempt, delivery.message.store_timestamp_ms
            )
            held = Held(group, topic, name, delivery.receipt_handle, 0, self._life)
            if not query.auto_renew:  # Else nobody here knows when it ends.
                held.deadline_ms = self._clocks.run_ms + INVISIBLE_MS
            self._hand(query, held)
        self._note("receive", group, topic, names)

    def _hand(self, query: ReceiveQuery, held: Held) -> None:
        """Give a delivery to a consumer; a reply that never leaves gives nobody a handle."""
        del query
        self._unanswered.append(held)
        self._answer(held)

    def _check_order(self, group: str, names: list[str]) -> None:
        """What an ordered group gets now was neither overtaken nor is it in other hands."""
        self._books.check_order(group, names, self._is_gone)
        orders = {self._books.sent[name].order for name in names}
        for held in (*self._held, *self._unanswered):
            sent = self._books.sent[held.name]
            if held.group == group and self._is_live(held) and not self._is_gone(sent):
                assert sent.order not in orders, f"{names} come to {group} beside {held}"

    def _is_live(self, held: Held) -> bool:
        """Whether the consumer still has it to itself."""
        return held.life == self._life and held.deadline_ms > self._clocks.run_ms

    def _is_gone(self, sent: Sent) -> bool:
        """Whether retention may have taken a message."""
        kept_ms = self._latest_ms + HOUR_MS - sent.visible_ms
        return sent.is_expired or 0 < self._retention_ms < kept_ms

    def _hold(self, held: Held) -> None:
        self._unanswered.remove(held)
        self._held.append(held)
        if len(self._held) > 200:
            del self._held[:50]

    def _settle_one(self) -> None:
        if not self._held:
            return
        held = self._held.pop(self._random.randrange(len(self._held)))
        choice = self._random.random()
        try:
            if choice < 0.8:
                self._ack(held)
                return
            if choice < 0.95:
                held.handle = self._broker.change_invisible_duration(
                    held.group, held.topic, held.handle, 2_000, suspend=False
                )
                held.deadline_ms = self._clocks.run_ms + 2_000
                self._unanswered.append(held)
                self._answer(held)
            else:
                self._books.exhausted.add((held.group, held.name))
                self._broker.forward_to_dead_letter_queue(held.group, held.topic, held.handle)
                self._answer()
                self._note("dead letter", held.group, held.name)
        except InvalidReceiptHandle:
            self._refused(held)

        else:
            self._accepted(held)

    def _ack(self, held: Held) -> None:
        self._broker.ack(held.group, held.topic, held.handle)
        self._accepted(held)
        self._books.settle(self._answer(), held.group, held.name)
        self._note("ack", held.group, held.name)

    def _accepted(self, held: Held) -> None:
        assert held.gone_in != self._life, f"{held} is taken for another's"

    def _refused(self, held: Held) -> None:
        is_gone = held.gone_in == self._life
        assert is_gone or not self._is_live(held), f"{held} is refused before its time"

    # The end

    async def _finish(self) -> None:
        """Let all time pass, acknowledge all that is there, and balance the books."""
        self._disk.on_operation = lambda _: None
        self._disk.unreadable = None
        self._writer.release()
        await self._settle()
        assert not self._errors, self._errors
        if self._is_dead:
            self._crash(is_power_cut=True)
        # Past the longest delay, and the life of a half message.
        self._clocks.wall_ms = self._latest_ms + 4 * DAY_MS
        self._wake()
        self._excuse()
        quiet = 0
        while quiet < 12:
            quiet += 1
            self._clocks.pass_ms(INVISIBLE_MS + 1)
            self._wake()
            await self._settle()
            for group, topics in self.groups.items():
                for topic in topics:
                    while self._take(group, topic, 32):
                        quiet = 0
                        await self._settle()
                        self._ack_all()
                        await self._settle()
        assert not self._errors, self._errors
        dead = {group: self._dead_letters(group) for group in self.groups}
        self._books.close(self.groups, dead)
        assert self._broker.statistics().lost_messages == 0
        self._note("end", self._broker.state_hash())

    def _excuse(self) -> None:
        """What nobody had to keep for so long is not owed."""
        for sent in self._books.sent.values():
            sent.is_expired |= self._is_gone(sent)

    def _ack_all(self) -> None:
        for held in self._held:
            if self._is_live(held) and held.gone_in != self._life:
                try:
                    self._ack(held)
                except InvalidReceiptHandle:
                    continue
        self._held.clear()

    def _has_topic(self, name: str) -> bool:
        try:
            self._broker.topic(name)
        except TopicNotFound:
            return False
        return True

    def _dead_letters(self, group: str) -> list[str]:
        topic = dead_letter_topic(group)
        if not self._has_topic(topic):
            return []
        names: list[str] = []
        at = self._broker.offset_at(topic, 0, 0)
        while True:
            pulled = self._broker.pull(PullQuery("", topic, 0, at, 32))
            names += [message_id(message.system) for message in pulled.messages]
            if pulled.next_offset == at:
                return names
            at = pulled.next_offset


def level_leases(one: LocalBroker, other: LocalBroker) -> None:
    """Let the lease clocks of two states meet: time also passes without records."""
    lease_ms = max(one._shard.lease_ms, other._shard.lease_ms)
    for broker in (one, other):
        broker._shard.advance(lease_ms)
        # Or its leases, which begin there now, would wait for its clock.
        base_ms = lease_ms - broker._clock.monotonic_ms()
        broker._lease_base_ms = max(broker._lease_base_ms, base_ms)


def differences(one: LocalBroker, other: LocalBroker) -> dict[bytes, tuple[object, object]]:
    """The rows in which two states differ, for a message."""
    left, right = dict(one._shard.rows()), dict(other._shard.rows())
    return {
        key: (left.get(key), right.get(key))
        for key in left.keys() | right.keys()
        if left.get(key) != right.get(key)
    }
