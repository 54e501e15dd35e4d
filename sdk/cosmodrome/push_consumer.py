"""The push consumer: give it a listener, it does the rest.

    async def bill(message: MessageView) -> ConsumeResult:
        ...
        return ConsumeResult.SUCCESS

    async with PushConsumer(
        "127.0.0.1:8081", group="billing", subscriptions={"orders": "new"}, listener=bill
    ) as consumer:
        await consumer.wait_closed()

Start order (clients.md 5-04): routes, sessions and settings, the consume service that the
group's order asks for, the first scan of assignments. From then on assignments are scanned every
5 s and at once after subscribe, unsubscribe and a change of settings.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from cosmodrome._client.consume_service import (
    ConsumeContext,
    ConsumeService,
    FifoConsumeService,
    StandardConsumeService,
)
from cosmodrome._client.consumer import Consumer, seconds_or_delta
from cosmodrome._client.listening import Caller, ListenerCalls
from cosmodrome._client.receive_loop import ReceiveLoop
from cosmodrome._client.receiving import Received, receive
from cosmodrome._client.session import Command, Session
from cosmodrome._client.tasks import Tasks
from cosmodrome._core import convert
from cosmodrome._core.process_queue import ProcessQueue, Thresholds, change, thresholds
from cosmodrome._core.route import MessageQueue, queue_of
from cosmodrome.builders import PushConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import CosmodromeError, IllegalArgument
from cosmodrome.filters import Filter, Subscriptions
from cosmodrome.interceptors import HookContext, HookPoint, Interceptor
from cosmodrome.message import MessageView
from cosmodrome.results import BatchListener, ConsumeResult, MessageListener, Result
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
SCAN_S, SCAN_FIRST_S = 5.0, 0.0


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What a push consumer holds and did; a value.

    Attributes:
        queues: Assigned now.
        cached_messages, cached_bytes: Fetched and not settled.
        received, consumed_ok, consumed_failed, corrupted: Since the start.
    """

    queues: int
    cached_messages: int
    cached_bytes: int
    received: int
    consumed_ok: int
    consumed_failed: int
    corrupted: int


@dataclass(slots=True)
class _Topic:
    """What runs for one subscribed topic."""

    queues: list[ProcessQueue] = field(default_factory=list)
    allowed: asyncio.Event = field(default_factory=asyncio.Event)
    evicted: dict[int, asyncio.Event] = field(default_factory=dict)


class PushConsumer(Consumer):
    """Calls a listener for every message of its subscriptions.

    Args:
        configuration: Where the broker is; an address or URL will do.
        group: The consumer group. Whether it is ordered is the group's property on the broker.
        subscriptions: Topic → tag expression, or `Filter`.
        listener: Takes a `MessageView`, returns a `ConsumeResult`; sync or async.
        batch_listener: Takes up to `batch` messages instead; returns one result, or one each.
        batch: Messages of one batch at most.
        concurrency: Listener calls at a time.
        max_cached_messages, max_cached_bytes: Fetched and not settled, over all queues.
        consume_timeout: A call that takes longer is a failure; None for no bound.
        accelerated: Ordered groups: message groups of one fetch go side by side.
        close_timeout: How long `close` waits for listener calls under way.
        interceptors: Hooks.
    """

    client_type = pb.PUSH_CONSUMER

    def __init__(  # noqa: PLR0913 - options of a client
        self,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        listener: MessageListener | None = None,
        batch_listener: BatchListener | None = None,
        batch: int = 32,
        concurrency: int = 20,
        max_cached_messages: int = 4096,
        max_cached_bytes: int = 64 << 20,
        consume_timeout: timedelta | float | None = None,
        accelerated: bool = False,
        close_timeout: timedelta | float = 30,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        super().__init__(
            configuration,
            group=group,
            subscriptions=subscriptions or {},
            await_duration=timedelta(seconds=30),
            interceptors=interceptors,
        )
        if (listener is None) == (batch_listener is None):
            raise IllegalArgument("a push consumer needs a listener or a batch_listener")
        if min(batch, concurrency, max_cached_messages, max_cached_bytes) < 1:
            raise IllegalArgument("batch, concurrency and cache bounds are at least 1")
        self._listener: Callable[[Any], Any] | None = listener or batch_listener
        self._is_batch = batch_listener is not None
        self._batch = batch if self._is_batch else 1
        self._concurrency = concurrency
        self._max_cached = (max_cached_messages, max_cached_bytes)
        self._consume_timeout = consume_timeout
        self._accelerated = accelerated
        self._close_timeout_s = seconds_or_delta(close_timeout).total_seconds()
        self._topics: dict[str, _Topic] = {}
        self._scan_now = asyncio.Event()
        self._closed = asyncio.Event()
        self._counts = {"received": 0, "ok": 0, "failed": 0, "corrupted": 0}
        self._calls: ListenerCalls
        self._service: ConsumeService
        self._receivers: Tasks

    @classmethod
    def builder(cls) -> "PushConsumerBuilder[Self]":
        """Build step by step, as Java does."""
        return PushConsumerBuilder(cls)

    # What users do.

    async def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic, or something else of it, from now on; takes effect at once.

        Raises:
            StatusError: The topic does not exist.
        """
        self._check_running()
        route = await self._route(topic)
        wanted = expression if isinstance(expression, Filter) else Filter(expression)
        self._subscriptions[topic] = wanted
        await self._open_sessions(route.endpoints)
        await self._sync()
        await self._scan_topic(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer; what is cached of it is given back."""
        self._check_running()
        if self._subscriptions.pop(topic, None) is not None:
            self._drop(topic, list(self._topic(topic).queues))
            await self._sync()

    def pause(self, topic: str | None = None) -> None:
        """Fetch nothing more of a topic, or of any; what is cached is still consumed."""
        for name in [topic] if topic else list(self._subscriptions):
            self._topic(name).allowed.clear()

    def resume(self, topic: str | None = None) -> None:
        """Fetch again."""
        for name in [topic] if topic else list(self._subscriptions):
            self._topic(name).allowed.set()

    def statistics(self) -> ConsumerStatistics:
        """What it holds and did."""
        queues = [queue for topic in self._topics.values() for queue in topic.queues]
        return ConsumerStatistics(
            len(queues),
            sum(map(len, queues)),
            sum(queue.body_bytes for queue in queues),
            self._counts["received"],
            self._counts["ok"],
            self._counts["failed"],
            self._counts["corrupted"],
        )

    async def wait_closed(self) -> None:
        """Wait until somebody closes the consumer."""
        await self._closed.wait()

    # Starting and stopping.

    async def _on_started(self) -> None:
        await super()._on_started()
        timeout = self._consume_timeout
        assert self._listener is not None
        self._calls = ListenerCalls(
            self._listener,
            Caller(self._interceptors, self._client_id, self._group, self._count),
            is_batch=self._is_batch,
            threads=self._concurrency,
            timeout_s=None if timeout is None else seconds_or_delta(timeout).total_seconds(),
        )
        self._service = self._new_service()
        self._receivers = Tasks()
        self._tasks.spawn(self._scan_for_ever(), "scan assignments")

    def _new_service(self) -> ConsumeService:
        context = ConsumeContext(
            calls=self._calls,
            settler=self._settler,
            tasks=self._tasks,
            policy=lambda: self._told.policy,
            on_evicted=self._on_evicted,
            on_corrupted=self._on_corrupted,
        )
        if self._told.is_fifo:
            return FifoConsumeService(
                context, concurrency=self._concurrency, accelerated=self._accelerated
            )
        return StandardConsumeService(context, concurrency=self._concurrency, batch=self._batch)

    async def _on_closing(self) -> None:
        for topic in self._topics.values():
            for queue in topic.queues:
                queue.is_dropped = True
        # First, so that nothing given back below is fetched again.
        await self._receivers.close()
        await self._service.close(self._close_timeout_s)
        await self._flush_acks()
        self._calls.close()
        self._closed.set()

    # Assignments.

    async def _scan_for_ever(self) -> None:
        while True:
            for topic in list(self._subscriptions):
                try:
                    await self._scan_topic(topic)
                except CosmodromeError as error:
                    _log.info("assignment of %s stays as it was: %s", topic, error)
            self._scan_now.clear()
            try:
                async with asyncio.timeout(SCAN_S):
                    await self._scan_now.wait()
            except TimeoutError:
                continue

    async def _scan_topic(self, topic: str) -> None:
        assigned = await self._query_assignment(topic)
        state = self._topic(topic)
        wanted = self._subscriptions.get(topic)
        if wanted is None:
            return
        now_s = asyncio.get_running_loop().time()
        plan = change(
            state.queues,
            assigned,
            wanted,
            now_s=now_s,
            longest_fetch_s=self._receive_timeout_s,
        )
        self._drop(topic, plan.dropped)
        for queue in plan.added:
            self._begin(state, ProcessQueue(queue, wanted, active_s=now_s))

    async def _query_assignment(self, topic: str) -> list[MessageQueue]:
        route = await self._route(topic)
        isolated = self._isolation.isolated(int(asyncio.get_running_loop().time() * 1000))
        endpoints = next((e for e in route.endpoints if e not in isolated), self._access_point)
        request = rpc.QueryAssignmentRequest(
            topic=self._resource(topic),
            group=self._resource(self._group),
            endpoints=self._access_point.to_wire(),
        )
        answer = await self._rpc.call(endpoints, "QueryAssignment", request)
        return [queue_of(one.message_queue) for one in answer.check().assignments]

    def _drop(self, topic: str, queues: list[ProcessQueue]) -> None:
        state = self._topic(topic)
        for queue in queues:
            queue.is_dropped = True
            state.queues.remove(queue)
            event = state.evicted.pop(id(queue), None)
            if event is not None:
                event.set()

    def _begin(self, state: _Topic, queue: ProcessQueue) -> None:
        evicted = state.evicted[id(queue)] = asyncio.Event()
        state.queues.append(queue)
        loop = ReceiveLoop(
            queue,
            self._fetch,
            self._thresholds,
            self._deliver,
            state.allowed,
            evicted,
        )
        self._receivers.spawn(loop.run(), f"receive {queue.queue.topic} {queue.queue.queue_id}")

    def _topic(self, name: str) -> _Topic:
        state = self._topics.get(name)
        if state is None:
            state = self._topics[name] = _Topic()
            state.allowed.set()
        return state

    # Fetching.

    def _thresholds(self) -> Thresholds:
        queues = sum(len(topic.queues) for topic in self._topics.values())
        return thresholds(*self._max_cached, queues)

    async def _fetch(self, queue: ProcessQueue, room: int) -> Received:
        batch = min(room, self._told.receive_batch)
        request = self._receive_request(queue.queue, queue.filter, batch)
        request.auto_renew = True
        request.attempt_id = queue.attempt_id
        context = HookContext(HookPoint.RECEIVE, self._client_id, queue.queue.topic, self._group)
        self._interceptors.before(context)
        try:
            received = await receive(
                self._rpc, queue.queue.endpoints, request, timeout_s=self._receive_timeout_s
            )
            context.messages = list(received.messages)
        except CosmodromeError as error:
            context.error = error
            raise
        finally:
            self._interceptors.after(context)
        return received

    def _deliver(self, queue: ProcessQueue, messages: list[MessageView]) -> None:
        self._counts["received"] += len(messages)
        self._service.consume(queue, messages)

    def _count(self, outcome: Result) -> None:
        self._counts["ok" if outcome is ConsumeResult.SUCCESS else "failed"] += 1

    def _on_evicted(self, queue: ProcessQueue) -> None:
        state = self._topics.get(queue.queue.topic)
        event = state.evicted.get(id(queue)) if state is not None else None
        if event is not None:
            event.set()

    def _on_corrupted(self, message: MessageView) -> None:
        self._counts["corrupted"] += 1
        _log.warning("message %s arrived damaged", message.message_id)

    # What the broker says.

    def _take_settings(self, told: pb.Settings) -> None:
        was_fifo = self._told.is_fifo
        super()._take_settings(told)
        if self.is_running and was_fifo != self._told.is_fifo:
            _log.info("group %s is %s now", self._group, "ordered" if not was_fifo else "standard")
            old, self._service = self._service, self._new_service()
            self._tasks.spawn(old.close(self._close_timeout_s), "retire consume service")
            for topic in self._topics:
                self._drop(topic, list(self._topic(topic).queues))
        self._scan_now.set()

    async def _on_command(self, command: Command, session: Session) -> None:
        if command.WhichOneof("command") == "verify_message_command":
            self._tasks.spawn(self._verify(command, session), "verify message")
        else:
            await super()._on_command(command, session)

    async def _verify(self, command: Command, session: Session) -> None:
        asked = command.verify_message_command
        view = convert.view(asked.message, str(session.endpoints))
        if view.is_corrupted:
            code = pb.MESSAGE_CORRUPTED
        else:
            outcome = (await self._calls.call([view]))[0]
            fine = outcome is ConsumeResult.SUCCESS
            code = pb.OK if fine else pb.FAILED_TO_CONSUME_MESSAGE
        result = rpc.VerifyMessageResult(nonce=asked.nonce)
        status = pb.Status(code=code, message=pb.Code.Name(code))
        await session.send(Command(status=status, verify_message_result=result))
