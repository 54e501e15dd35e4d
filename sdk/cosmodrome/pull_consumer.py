"""The pull consumer: read queues at offsets of your own, as far back as messages are kept.

    async with PullConsumer("127.0.0.1:8081", group="audit", topics=["orders"]) as consumer:
        await consumer.seek_to_beginning()
        while messages := await consumer.poll(timeout=1):
            ...
            await consumer.commit()

Nothing is hidden, counted or redelivered: whoever reads a queue reads all of it. `subscribe`
(or `topics`) takes every queue of a topic, or with `members` this member's share of them;
`assign` takes exactly those named. Offsets are kept by an `OffsetStore`; the broker's by
default. Every reader reading everything for itself (RocketMQ 4's broadcast mode) is
`PullConsumer.broadcast`: a store of its own and no sharing.

Source: RocketMQ 4's lite pull consumer (clients.md 4-20 to 4-40). Needs a broker with
PullMessage: ours; the reference's proxies do not have it yet.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from cosmodrome import allocation
from cosmodrome._client.client import Client
from cosmodrome._client.consumer import seconds_or_delta
from cosmodrome._client.pull_reader import Pulled, Reader
from cosmodrome._core import convert, settings
from cosmodrome._core.route import MessageQueue, Route
from cosmodrome.allocation import Strategy
from cosmodrome.builders import PullConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import (
    CosmodromeError,
    IllegalArgument,
    NotRunning,
    OffsetNotFound,
    TooManyRequests,
)
from cosmodrome.filters import Filter, filters_of, topics_of
from cosmodrome.message import MessageView
from cosmodrome.offsets import FileOffsetStore, OffsetStore, Place
from cosmodrome.pulling import (
    Beginning,
    FlowControl,
    OffsetReset,
    Reset,
    StartFrom,
    reset_of,
    start_of,
)
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
COMMIT_S = 5.0
FAILED_S, THROTTLED_S = 1.0, 0.02
REBALANCE_S = 20.0
_ILLEGAL_OFFSET = pb.ILLEGAL_OFFSET


class PullConsumer(Client):
    """Reads queues at offsets.

    Args:
        configuration: Where the broker is; an address or URL will do.
        group: Under which name offsets are kept.
        topics: Read all queues of these (or this member's share).
        filters: Topic → filter; everything unless given.
        offset_store: Keeps offsets; the broker unless given.
        start_from: Where nothing is stored: an end, or a moment.
        offset_reset: Where to go on when an offset does not exist.
        auto_commit: Commit what `poll` gave out every 5 s and at close.
        members: Names of all members that share the queues; me is `member`.
        member: This member's name.
        strategy: How they share.
        flow: How much is read ahead.
    """

    def __init__(  # noqa: PLR0913 - options of a client
        self,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        topics: Iterable[str] = (),
        filters: Mapping[str, Filter | str] | None = None,
        offset_store: OffsetStore | None = None,
        start_from: Beginning = StartFrom.FIRST,
        offset_reset: Reset = OffsetReset.NEAREST,
        auto_commit: bool = True,
        members: Sequence[str] = (),
        member: str = "",
        strategy: Strategy = allocation.averagely,
        flow: FlowControl | None = None,
    ) -> None:
        super().__init__(configuration)
        if not group.strip():
            raise IllegalArgument("a pull consumer needs a group")
        if members and member not in members:
            raise IllegalArgument(f"member {member!r} is none of {', '.join(members)}")
        self._group = group
        self._topics_wanted = topics_of(topics)
        self._filters = filters_of(filters or {})
        self._store = offset_store
        self._start_from = start_of(start_from)
        self._offset_reset = reset_of(offset_reset)
        self._failure: CosmodromeError | None = None
        self._auto_commit = auto_commit
        self._members, self._member = members, member
        self._strategy = strategy
        self._flow = flow or FlowControl()
        self._readers: dict[Place, Reader] = {}
        self._is_assigned = False
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()
        self._turn = 0

    @classmethod
    def builder(cls) -> "PullConsumerBuilder[Self]":
        """Build step by step, in the manner of Java's builders."""
        return PullConsumerBuilder(cls)

    @classmethod
    def broadcast(
        cls,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        topics: Iterable[str],
        offsets: Path,
    ) -> Self:
        """A reader that reads everything for itself, its offsets in a file of its own."""
        store = FileOffsetStore(offsets)
        return cls(configuration, group=group, topics=topics, offset_store=store)

    @property
    def group(self) -> str:
        """Under which name offsets are kept."""
        return self._group

    @property
    def assignment(self) -> list[Place]:
        """The queues it reads: (topic, queue id)."""
        return sorted(self._readers)

    # Which queues.

    async def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Read a topic's queues, all or this member's share.

        Raises:
            IllegalArgument: Queues were assigned by hand.
            StatusError: There is no such topic.
        """
        self._check_running()
        if self._is_assigned:
            raise IllegalArgument("queues are assigned by hand; subscribe and assign exclude")
        wanted = expression if isinstance(expression, Filter) else Filter(expression)
        await self._route(topic)  # one that does not exist is not wanted from now on
        self._topics_wanted[topic] = None
        self._filters[topic] = wanted
        await self._rebalance()

    async def assign(self, queues: Iterable[Place]) -> None:
        """Read exactly these queues.

        Raises:
            IllegalArgument: Topics are subscribed to, or a queue does not exist.
        """
        self._check_running()
        if self._topics_wanted:
            raise IllegalArgument("topics are subscribed to; subscribe and assign exclude")
        wanted = list(queues)
        for place in wanted:
            await self._queue(place)  # before any of them is read
        self._is_assigned = True
        await self._read_only(wanted)

    # Where.

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Read on at an offset."""
        self._move(self._reader(topic, queue_id), offset)

    async def seek_to_beginning(self) -> None:
        """Read every queue from its first message."""
        for reader in list(self._readers.values()):
            self._move(reader, await self._query(reader.queue, pb.BEGINNING))

    async def seek_to_end(self) -> None:
        """Read only what is stored from now on."""
        for reader in list(self._readers.values()):
            self._move(reader, await self._query(reader.queue, pb.END))

    async def seek_to_time(self, moment: datetime) -> None:
        """Read every queue from the first message stored at or after a moment."""
        for reader in list(self._readers.values()):
            self._move(reader, await self._query(reader.queue, pb.TIMESTAMP, moment))

    def _move(self, reader: Reader, offset: int) -> None:
        reader.forget(offset)
        self._drained.set()  # a reader that was full has room now

    def position(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of `poll` has at least."""
        return self._reader(topic, queue_id).polled

    def pause(self, *queues: Place) -> None:
        """Read nothing more of these queues, or of any."""
        for place in queues or self._readers:
            self._reader(*place).allowed.clear()

    def resume(self, *queues: Place) -> None:
        """Read again."""
        for place in queues or self._readers:
            self._reader(*place).allowed.set()

    # Reading.

    async def poll(
        self, max_messages: int = 32, timeout: timedelta | float = 5
    ) -> list[MessageView]:
        """Take what was read, waiting for the first.

        Messages of one queue come in their order; queues take turns.

        Raises:
            OffsetNotFound: An offset does not exist, and `offset_reset` is ERROR.
            NotRunning: The consumer was closed.
        """
        self._check_running()
        seconds = seconds_or_delta(timeout).total_seconds()
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while not (found := self._take(max_messages)):
            self._check_running()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            left = ends - loop.time()
            if left <= 0:
                return []
            self._arrived.clear()
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                return self._take(max_messages)
        return found

    async def commit(self) -> None:
        """Keep how far `poll` got.

        Raises:
            CosmodromeError: Why the store could not.
        """
        offsets = {place: reader.polled for place, reader in self._readers.items()}
        if self._store is not None:
            await self._store.save(self._group, offsets)
            return
        for (topic, _), reader in list(self._readers.items()):
            request = rpc.UpdateOffsetRequest(
                group=self._resource(self._group),
                message_queue=reader.queue.to_wire(self._configuration.namespace),
                offset=offsets[topic, reader.queue.queue_id],
            )
            where = reader.queue.endpoints
            (await self._rpc.call(where, "UpdateOffset", request)).check()

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Read for ever, message by message, until the consumer is closed."""
        while self.is_running:
            try:
                messages = await self.poll()
            except NotRunning:
                return
            for message in messages:
                yield message

    def _take(self, most: int) -> list[MessageView]:
        readers = [reader for reader in self._readers.values() if reader.cached]
        if not readers:
            return []
        self._turn += 1
        reader = readers[self._turn % len(readers)]
        taken, reader.cached = reader.cached[:most], reader.cached[most:]
        reader.cached_bytes -= sum(len(message.body) for message in taken)
        reader.polled = reader.cached[0].queue_offset if reader.cached else reader.next_read
        self._drained.set()
        return taken

    async def _read_for_ever(self, reader: Reader) -> None:
        while self._readers.get((reader.queue.topic, reader.queue.queue_id)) is reader:
            await reader.allowed.wait()
            if reader.is_stuck or self._is_full(reader):
                self._drained.clear()
                await self._drained.wait()
                continue
            try:
                await self._read_once(reader)
            except TooManyRequests:
                await asyncio.sleep(THROTTLED_S)
            except CosmodromeError as error:
                level = logging.INFO if reader.is_failing else logging.WARNING
                reader.is_failing = True
                _log.log(level, "pull of %s fails, again in 1 s: %s", reader.queue.topic, error)
                await asyncio.sleep(FAILED_S)

    def _is_full(self, reader: Reader) -> bool:
        queues = sum(topic == reader.queue.topic for topic, _ in self._readers)
        if self._flow.is_full(reader, max(1, queues)):
            return True
        return sum(len(r.cached) for r in self._readers.values()) >= self._flow.total_messages

    async def _read_once(self, reader: Reader) -> None:
        generation = reader.generation
        wait_s = 20.0
        request = rpc.PullMessageRequest(
            group=self._resource(self._group),
            message_queue=reader.queue.to_wire(self._configuration.namespace),
            offset=reader.next_read,
            batch_size=32,
            filter_expression=self._filters.get(reader.queue.topic, Filter()).to_wire(),
            long_polling_timeout=Duration(seconds=int(wait_s)),
        )
        timeout_s = wait_s + self._configuration.request_timeout_s
        pulled = await reader.pull(self._rpc, request, timeout_s)
        if pulled is None or generation != reader.generation:
            return  # sought elsewhere meanwhile, or not read any more
        if pulled.failure is not None and pulled.failure.code == _ILLEGAL_OFFSET:
            await self._mend_offset(reader, pulled)
            return
        if pulled.failure is not None:
            raise pulled.failure
        reader.is_failing = False
        reader.keep(pulled)
        if pulled.messages:
            self._arrived.set()

    async def _mend_offset(self, reader: Reader, pulled: Pulled) -> None:
        """What is stored is gone, or was never there: go on where `offset_reset` says."""
        reset, nearest = self._offset_reset, pulled.next_offset
        if reset is OffsetReset.ERROR:
            queue = reader.queue
            text = f"offset {reader.next_read} of {queue.topic} {queue.queue_id} does not exist"
            self._failure = OffsetNotFound(text, code=_ILLEGAL_OFFSET)
            self._arrived.set()
            reader.is_stuck = True  # until it is sought elsewhere
            return
        if reset is OffsetReset.NEAREST and nearest is not None:
            offset = nearest
        else:
            policy = pb.END if reset is OffsetReset.LAST else pb.BEGINNING
            offset = await self._query(reader.queue, policy)
        _log.warning(
            "offset %d of %s %d does not exist, reading on at %d",
            reader.next_read,
            reader.queue.topic,
            reader.queue.queue_id,
            offset,
        )
        reader.forget(offset)

    # Offsets.

    async def _stored(self, queue: MessageQueue) -> int:
        if self._store is not None:
            kept = await self._store.load(self._group, queue.topic, queue.queue_id)
            if kept is not None:
                return kept
        else:
            request = rpc.GetOffsetRequest(
                group=self._resource(self._group),
                message_queue=queue.to_wire(self._configuration.namespace),
            )
            try:
                answer = await self._rpc.call(queue.endpoints, "GetOffset", request)
                return int(answer.check().offset)
            except OffsetNotFound:
                pass
        if isinstance(self._start_from, datetime):
            return await self._query(queue, pb.TIMESTAMP, self._start_from)
        policy = pb.BEGINNING if self._start_from is StartFrom.FIRST else pb.END
        return await self._query(queue, policy)

    async def _query(
        self,
        queue: MessageQueue,
        policy: pb.QueryOffsetPolicy.ValueType,
        moment: datetime | None = None,
    ) -> int:
        request = rpc.QueryOffsetRequest(
            message_queue=queue.to_wire(self._configuration.namespace),
            query_offset_policy=policy,
        )
        if moment is not None:
            request.timestamp.FromMilliseconds(convert.milliseconds(moment))
        answer = await self._rpc.call(queue.endpoints, "QueryOffset", request)
        return int(answer.check().offset)

    # Sharing.

    async def _rebalance(self) -> None:
        if self._is_assigned:
            return
        mine: list[Place] = []
        for topic in self._topics_wanted:
            places = [(topic, queue.queue_id) for queue in (await self._latest(topic)).readable]
            if self._members:
                places = allocation.share(self._strategy, places, self._members, self._member)
            mine += places
        await self._read_only(mine)

    async def _latest(self, topic: str) -> Route:
        """The route of a topic as it is now, or as it was: no topic is to hold up the others."""
        known = await self._route(topic)
        try:
            return await self._route(topic, fresh=True)
        except CosmodromeError as error:
            _log.info("route of %s stays as it was: %s", topic, error)
            return known

    async def _read_only(self, wanted: list[Place]) -> None:
        gone = self._readers.keys() - set(wanted)
        if gone and self._auto_commit:
            await self.commit()
        for place in gone:
            self._readers.pop(place).interrupt()
        self._drained.set()
        for place in wanted:
            if place not in self._readers:
                await self._begin(place)

    async def _begin(self, place: Place) -> None:
        queue = await self._queue(place)
        reader = Reader(queue)
        reader.forget(await self._stored(queue))
        self._readers[place] = reader
        self._tasks.spawn(self._read_for_ever(reader), f"pull {queue.topic} {queue.queue_id}")

    async def _queue(self, place: Place) -> MessageQueue:
        topic, queue_id = place
        route = await self._route(topic)
        queue = next((q for q in route.readable if q.queue_id == queue_id), None)
        if queue is None:
            raise IllegalArgument(f"topic {topic} has no readable queue {queue_id}")
        return queue

    def _reader(self, topic: str, queue_id: int) -> Reader:
        reader = self._readers.get((topic, queue_id))
        if reader is None:
            raise IllegalArgument(f"queue {queue_id} of {topic} is not read here")
        return reader

    # What every client does.

    def _settings(self) -> pb.Settings:
        return settings.consumer_settings(
            self._configuration, pb.PULL_CONSUMER, self._group, self._filters, 20_000
        )

    def _take_settings(self, told: pb.Settings) -> None:
        """Nothing of the settings concerns pulling."""

    def _startup_topics(self) -> list[str]:
        return list(self._topics_wanted)

    def _heartbeat_request(self) -> rpc.HeartbeatRequest:
        return rpc.HeartbeatRequest(client_type=pb.PULL_CONSUMER, group=self._resource(self._group))

    def _termination_request(self) -> rpc.NotifyClientTerminationRequest:
        return rpc.NotifyClientTerminationRequest(group=self._resource(self._group))

    async def _on_started(self) -> None:
        await self._rebalance()
        self._tasks.spawn(self._every(REBALANCE_S, REBALANCE_S, self._rebalance), "rebalance")
        if self._auto_commit:
            self._tasks.spawn(self._every(COMMIT_S, COMMIT_S, self.commit), "commit")

    async def _on_closing(self) -> None:
        self._arrived.set()  # whoever polls sees that the consumer closes
        if self._auto_commit and self._readers:
            try:
                await self.commit()
            except Exception as error:  # of a user's store, too: the client closes all the same
                _log.warning("the last commit failed: %s", error, exc_info=error)
