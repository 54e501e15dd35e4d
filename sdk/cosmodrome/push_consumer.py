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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from cosmodrome._client import meters
from cosmodrome._client.client import State
from cosmodrome._client.consume_service import ConsumeContext
from cosmodrome._client.consumer import Consumer, seconds_or_delta
from cosmodrome._client.counts import SAMPLE_S
from cosmodrome._client.dispatch import Dispatch, Options
from cosmodrome._client.listening import (
    EVERY_OTHER,
    Caller,
    Kind,
    ListenerCalls,
    common_listener,
    listener_of,
)
from cosmodrome._client.observing import Observations
from cosmodrome._client.receive_loop import ReceiveLoop
from cosmodrome._client.receiving import Received
from cosmodrome._client.session import Command, Session
from cosmodrome._client.tasks import Tasks
from cosmodrome._core import convert
from cosmodrome._core.process_queue import ProcessQueue, Thresholds, change, thresholds
from cosmodrome._core.route import MessageQueue, queue_of
from cosmodrome.builders import PushConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import CosmodromeError, IllegalArgument
from cosmodrome.filters import Filter, Subscriptions
from cosmodrome.interceptors import Interceptor
from cosmodrome.message import MessageView
from cosmodrome.orderly import OrderlyListener
from cosmodrome.results import BatchListener, MessageListener, TopicLimits
from cosmodrome.statistics import ConsumerStatistics, QueueInfo, RunningInfo, TopicStatistics
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
SCAN_S = 5.0
Function = TypeVar("Function", bound=Callable[..., Any])


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
        orderly_listener: RocketMQ 4's, for ordered groups: see `cosmodrome.orderly`.
        batch: Messages of one batch at most; 32, for orderly listeners 1, unless given.
        concurrency: Listener calls at a time, for each listener and each topic with limits.
        limits: Topic → its own concurrency and rate.
        max_cached_messages, max_cached_bytes: Fetched and not settled, over all queues.
        consume_timeout: A call that takes longer is a failure; None for no bound.
        accelerated: Ordered groups: message groups of one fetch go side by side.
        close_timeout: How long `close` waits for listener calls under way.
        interceptor_filtering: What an interceptor takes out of a CONSUME's messages counts as
            consumed and is acknowledged.
        interceptors: Hooks.

    Listeners of single topics are added by the decorator `listener`.
    """

    client_type: int = pb.PUSH_CONSUMER

    def __init__(  # noqa: PLR0913 - options of a client
        self,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        subscriptions: Subscriptions | None = None,
        listener: MessageListener | None = None,
        batch_listener: BatchListener | None = None,
        orderly_listener: OrderlyListener | None = None,
        batch: int | None = None,
        concurrency: int = 20,
        limits: Mapping[str, TopicLimits] | None = None,
        max_cached_messages: int = 4096,
        max_cached_bytes: int = 64 << 20,
        consume_timeout: timedelta | float | None = None,
        accelerated: bool = False,
        close_timeout: timedelta | float = 30,
        interceptor_filtering: bool = False,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        super().__init__(
            configuration,
            group=group,
            subscriptions=subscriptions or {},
            await_duration=timedelta(seconds=30),
            interceptors=interceptors,
        )
        if min(batch or 1, concurrency, max_cached_messages, max_cached_bytes) < 1:
            raise IllegalArgument("batch, concurrency and cache bounds are at least 1")
        given = {
            Kind.MESSAGE: listener,
            Kind.BATCH: batch_listener,
            Kind.ORDERLY: orderly_listener,
        }
        self._listeners = common_listener(given, batch)
        self._limits = dict(limits or {})
        self._options = Options(
            concurrency,
            accelerated,
            None if consume_timeout is None else seconds_or_delta(consume_timeout).total_seconds(),
            seconds_or_delta(close_timeout).total_seconds(),
        )
        self._is_filtering = interceptor_filtering
        self._max_cached = (max_cached_messages, max_cached_bytes)
        self._topics: dict[str, _Topic] = {}
        self._seen = Observations(self._meters)
        self._scan_now = asyncio.Event()
        self._started_at: datetime
        self._dispatch: Dispatch
        self._receivers = Tasks()

    @classmethod
    def builder(cls) -> "PushConsumerBuilder[Self]":
        """Build step by step, as Java does."""
        return PushConsumerBuilder(cls)

    # What users do.

    def listener(
        self,
        topic: str,
        expression: Filter | str = "*",
        *,
        kind: str = "message",
        batch: int | None = None,
        limits: TopicLimits | None = None,
    ) -> Callable[[Function], Function]:
        """Decorate the listener of one topic, and subscribe to it; before the start.

        Args:
            topic: Which.
            expression: What is wanted of it.
            kind: What the listener takes: a "message", a "batch", or as an "orderly" listener.
            batch: Messages of one call at most.
            limits: The topic's own concurrency and rate.

        Raises:
            IllegalArgument: The consumer was started, the topic has a listener, or no such kind.

        Example:
            @consumer.listener("orders", "new || paid", limits=TopicLimits(concurrency=4))
            async def bill(message: MessageView) -> ConsumeResult: ...
        """
        if self._state is not State.CREATED:
            raise IllegalArgument("listeners are added before the consumer is started")
        if topic in self._listeners:
            raise IllegalArgument(f"topic {topic!r} has a listener already")
        if kind not in {one.value for one in Kind}:
            raise IllegalArgument(f"a listener's kind is message, batch or orderly, not {kind!r}")
        wanted = expression if isinstance(expression, Filter) else Filter(expression)

        def add(function: Function) -> Function:
            self._listeners[topic] = listener_of(Kind(kind), function, batch)
            self._subscriptions[topic] = wanted
            if limits is not None:
                self._limits[topic] = limits
            return function

        return add

    def set_limits(self, topic: str, limits: TopicLimits | None) -> None:
        """Bound how fast a topic is consumed, from now on; None lifts its bounds.

        What the topic's listener has not begun is given back and comes again.
        """
        if limits is None:
            self._limits.pop(topic, None)
        else:
            self._limits[topic] = limits
        if self.is_running:
            self._dispatch.renew(self._tasks, topic)

    async def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic, or something else of it, from now on; takes effect at once.

        Raises:
            IllegalArgument: No listener takes it.
            StatusError: The topic does not exist.
        """
        self._check_running()
        self._check_listener(topic)
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

    def statistics(self, window: timedelta | float = 60) -> ConsumerStatistics:
        """What it holds, did, and does; rates are over the last `window`, up to an hour."""
        now_s = asyncio.get_running_loop().time()
        window_s = seconds_or_delta(window).total_seconds()
        return ConsumerStatistics.of(
            {
                name: self._topic_statistics(name, topic, now_s, window_s)
                for name, topic in self._topics.items()
            }
        )

    def _topic_statistics(
        self, name: str, topic: _Topic, now_s: float, window_s: float
    ) -> TopicStatistics:
        seen = self._seen.topic(name)
        counts, rates = seen.now, seen.rates(now_s, window_s)
        return TopicStatistics(
            queues=len(topic.queues),
            cached_messages=sum(map(len, topic.queues)),
            cached_bytes=sum(queue.body_bytes for queue in topic.queues),
            received=counts.received,
            consumed_ok=counts.ok,
            consumed_failed=counts.failed,
            corrupted=counts.corrupted,
            consume_ok_tps=rates.ok_tps,
            consume_failed_tps=rates.failed_tps,
            consume_rt_ms=rates.call_ms,
            pull_tps=rates.pull_tps,
            pull_rt_ms=rates.pull_ms,
            is_paused=not topic.allowed.is_set(),
        )

    def running_info(self) -> RunningInfo:
        """Everything about it now; for operators."""
        self._check_running()
        now_s = asyncio.get_running_loop().time()
        queues = tuple(
            QueueInfo(
                one.queue.topic,
                one.queue.queue_id,
                one.queue.broker,
                len(one),
                one.body_bytes,
                now_s - one.active_s,
            )
            for topic in self._topics.values()
            for one in topic.queues
        )
        return RunningInfo(
            self._client_id,
            self._group,
            self._started_at,
            self._told.is_fifo,
            self.subscriptions,
            queues,
            self.statistics(),
        )

    async def wait_closed(self) -> None:
        """Wait until somebody closes the consumer."""
        await self._is_over.wait()

    # Starting and stopping.

    async def _on_started(self) -> None:
        await super()._on_started()
        if not self._listeners:
            raise IllegalArgument(
                "a push consumer needs a listener, a batch_listener or an orderly_listener"
            )
        for topic in self._subscriptions:
            self._check_listener(topic)
        self._dispatch = Dispatch(
            self._listeners,
            self._limits,
            options=self._options,
            caller=Caller(
                self._interceptors,
                self._client_id,
                self._group,
                self._seen.consumed,
                self._is_filtering,
            ),
            context=self._consume_context,
            is_fifo=lambda: self._told.is_fifo,
        )
        self._dispatch.check()
        self._started_at = datetime.now(UTC)
        self._tasks.spawn(self._scan_for_ever(), "scan assignments")
        self._tasks.spawn(self._every(SAMPLE_S, SAMPLE_S, self._seen.sample), "sample statistics")

    def _check_listener(self, topic: str) -> None:
        if topic not in self._listeners and EVERY_OTHER not in self._listeners:
            raise IllegalArgument(f"no listener takes topic {topic!r}")

    def _consume_context(self, calls: ListenerCalls) -> ConsumeContext:
        return ConsumeContext(
            calls=calls,
            settler=self._settler,
            tasks=self._tasks,
            policy=lambda: self._told.policy,
            on_evicted=self._on_evicted,
            on_corrupted=self._on_corrupted,
        )

    async def _on_closing(self) -> None:
        for topic in self._topics.values():
            for queue in topic.queues:
                queue.is_dropped = True
        # First, so that nothing given back below is fetched again.
        await self._receivers.close()
        await self._dispatch.close()
        await self._flush_acks()

    async def _release(self, caller: asyncio.Task[object] | None) -> None:
        await self._receivers.close()  # of a start that failed, too
        await super()._release(caller)

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
        longest_s = self._receive_timeout_s
        plan = change(state.queues, assigned, wanted, now_s=now_s, longest_fetch_s=longest_s)
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
            lambda: self._told.receive_batch,
            self._thresholds,
            self._dispatch.consume,
            state.allowed,
            evicted,
            lambda: self._told.is_fifo,
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

    async def _fetch(self, queue: ProcessQueue, messages: int, attempt_id: str) -> Received:
        request = self._receive_request(queue.queue, queue.filter, messages)
        request.auto_renew = True
        request.attempt_id = attempt_id
        started_s = asyncio.get_running_loop().time()
        received = await self._hooked_receive(queue.queue, request)
        topic, transport_ms = queue.queue.topic, received.transport_ms
        received.is_full = len(received.messages) >= messages
        received.messages = self._leave_out(received.messages, queue.filter)
        self._seen.pulled(topic, received.messages, started_s, transport_ms)
        return received

    def _gauges(self) -> Iterable[tuple[str, str, float]]:
        for name, topic in list(self._topics.items()):  # for other threads, too
            yield meters.CACHED_MESSAGES, name, sum(map(len, topic.queues))
            yield meters.CACHED_BYTES, name, sum(queue.body_bytes for queue in topic.queues)

    def _on_evicted(self, queue: ProcessQueue) -> None:
        state = self._topics.get(queue.queue.topic)
        event = state.evicted.get(id(queue)) if state is not None else None
        if event is not None:
            event.set()

    def _on_corrupted(self, message: MessageView) -> None:
        self._seen.corrupted(message)
        _log.warning("message %s arrived damaged", message.message_id)

    # What the broker says.

    def _take_settings(self, told: pb.Settings) -> None:
        was_fifo = self._told.is_fifo
        super()._take_settings(told)
        if self.is_running and was_fifo != self._told.is_fifo:
            _log.info("group %s is %s now", self._group, "ordered" if not was_fifo else "standard")
            try:
                self._dispatch.check()
            except IllegalArgument as error:
                _log.error("messages of one queue may overtake each other now: %s", error)
            self._dispatch.renew(self._tasks)
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
            fine = await self._dispatch.verify(view)
            code = pb.OK if fine else pb.FAILED_TO_CONSUME_MESSAGE
        result = rpc.VerifyMessageResult(nonce=asked.nonce)
        status = pb.Status(code=code, message=pb.Code.Name(code))
        await session.send(Command(status=status, verify_message_result=result))
