"""The producer: sends messages, alone or many at a time, ordered, delayed, in transactions.

    async with Producer("127.0.0.1:8081", topics=["orders"]) as producer:
        receipt = await producer.send(Message("orders", b"hello"))
        receipts = await producer.send([Message("orders", b"1"), Message("orders", b"2")])

Concurrent `send` calls share requests by themselves: no linger, no waiting for a batch to fill
(see `_core.send_queue`). Each call gets its own receipt or error.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Self, overload

from cosmodrome._client.checking import Checks
from cosmodrome._client.client import Client
from cosmodrome._client.consumer import seconds_or_delta
from cosmodrome._client.in_flight import InFlight
from cosmodrome._client.outbox import Outbox
from cosmodrome._client.sender import Outcome, Sender, by_broker
from cosmodrome._client.session import Command, Session
from cosmodrome._core import clock, convert, settings
from cosmodrome._core.message_id import ForkSafeIds, NowSeconds
from cosmodrome._core.route import RoundRobin, Route
from cosmodrome._core.send_queue import Bounds
from cosmodrome.builders import ProducerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import (
    CosmodromeError,
    IllegalArgument,
    PayloadTooLarge,
)
from cosmodrome.filters import topics_of
from cosmodrome.interceptors import HookContext, HookPoint, Interceptor
from cosmodrome.message import Message, MessageType
from cosmodrome.receipt import SendReceipt
from cosmodrome.selection import QueueSelector, placed
from cosmodrome.transaction import Transaction, TransactionChecker, TransactionResolution
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
_ids = ForkSafeIds(NowSeconds())


@dataclass(frozen=True, slots=True)
class Batching:
    """How concurrent sends share requests.

    Attributes:
        messages: In one request at most; 1 switches sharing off. Over 64, what waits is shared out
            among the requests that may begin now, so that broker and producer work side by side.
        body_bytes: In one request at most.
        requests: Under way at the same time, per topic.
    """

    messages: int = 256
    body_bytes: int = 1 << 20
    requests: int = 4


class Producer(Client):
    """Sends messages.

    Args:
        configuration: Where the broker is; an address or URL will do.
        topics: Topics it will send to. Optional, but a broker asks about orphaned transactions
            only producers that named the topic or have sent to it.
        max_attempts: Tries per message; only what may succeed is tried again.
        transaction_checker: Asked what became of a half message; async, or plain in a thread.
        batching: How concurrent sends share requests.
        max_in_flight: Messages under way at most; more wait.
        max_in_flight_bytes: Bytes of bodies under way at most.
        send_timeout: All tries together, seconds or a timedelta; the request timeout times
            max_attempts unless given.
        compress_above: Bodies above so many bytes are gzipped; None for never.
        queue_selector: Chooses the queue of each message, see `cosmodrome.selection`; brokers of
            the reference choose again.
        with_digest: Send a CRC32 that the broker checks.
        by_latency: Pass slow brokers over for a while, as RocketMQ 4 could.
        interceptors: Hooks.
    """

    def __init__(  # noqa: PLR0913 - options of a client
        self,
        configuration: ClientConfiguration | str,
        *,
        topics: Iterable[str] = (),
        max_attempts: int = 3,
        transaction_checker: TransactionChecker | None = None,
        batching: Batching | None = None,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 100 << 20,
        send_timeout: timedelta | float | None = None,
        compress_above: int | None = None,
        queue_selector: QueueSelector | None = None,
        with_digest: bool = False,
        by_latency: bool = False,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        super().__init__(configuration, interceptors=interceptors, by_latency=by_latency)
        if max_attempts < 1:
            raise IllegalArgument(f"max_attempts is at least 1, not {max_attempts}")
        self._topics = topics_of(topics)
        self._max_attempts = max_attempts
        self._checker = transaction_checker
        self._checks = Checks(transaction_checker, partial(self.end_transaction, from_check=True))
        self._batching = batching or Batching()
        self._in_flight = InFlight(max_in_flight, max_in_flight_bytes)
        self._send_timeout = None if send_timeout is None else seconds_or_delta(send_timeout)
        if self._send_timeout is not None and self._send_timeout <= timedelta(0):
            raise IllegalArgument(f"send_timeout is more than 0, not {send_timeout}")
        self._compress_above = compress_above
        self._selector = queue_selector
        self._unplaced: dict[str, Message] = {}  # message id → what the selector is asked about
        self._with_digest = with_digest
        self._told = settings.ProducerSettings()
        self._now_ms = clock.clock_of(str(self._access_point))
        self._encoder: convert.Encoder
        self._sender: Sender
        self._outbox: Outbox

    @classmethod
    def builder(cls) -> "ProducerBuilder[Self]":
        """Build step by step, as Java does."""
        return ProducerBuilder(cls)

    # Sending.

    @overload
    async def send(
        self, message: Message, *, transaction: Transaction | None = None
    ) -> SendReceipt: ...

    @overload
    async def send(self, message: Sequence[Message]) -> list[SendReceipt]: ...

    async def send(
        self, message: Message | Sequence[Message], *, transaction: Transaction | None = None
    ) -> SendReceipt | list[SendReceipt]:
        """Send one message, or several of one topic in one request.

        Args:
            message: What to send.
            transaction: Sends one message as a half message of it.

        Returns:
            A receipt, or one per message in order.

        Raises:
            NotRunning: Outside start and close.
            IllegalArgument: A message that its topic does not take, or several topics at once.
            StatusError: The broker refused; `maybe_stored` says if it may be there anyway.
            TransportError: No answer after all attempts.
        """
        self._check_running()
        if not isinstance(message, Message):
            return await self._send_together(message)
        if transaction is not None:
            return await self._send_half(message, transaction)
        if self._interceptors:
            return await self._send_hooked(message)
        wire = self._encode(message)
        size = len(wire.body)
        if not self._in_flight.try_take(size):
            await self._in_flight.take(size)
        self._remember(message, wire)
        return await self._outbox.add(message, wire, size)

    def send_nowait(self, message: Message) -> "asyncio.Future[SendReceipt]":
        """Begin to send one message; the future has the receipt.

        Raises:
            BufferFull: As much is under way as may be.
            NotRunning, IllegalArgument: As `send`.
        """
        self._check_running()
        if not self._interceptors:
            return self._add_now(message)
        context = self._send_context([message])
        self._interceptors.before(context)
        try:
            future = self._add_now(context.messages[0])
        except BaseException as error:
            context.error = error
            self._interceptors.after(context)
            raise
        future.add_done_callback(lambda done: self._after_send(context, done))
        return future

    def _add_now(self, message: Message) -> "asyncio.Future[SendReceipt]":
        wire = self._encode(message)
        size = len(wire.body)
        self._in_flight.take_now(size)
        self._remember(message, wire)
        return self._outbox.add(message, wire, size)

    def _send_context(self, messages: Sequence[Message]) -> HookContext:
        topic = messages[0].topic
        return HookContext(HookPoint.SEND, self._client_id, topic, messages=list(messages))

    def _after_send(self, context: HookContext, done: "asyncio.Future[SendReceipt]") -> None:
        if done.cancelled():
            context.error = asyncio.CancelledError()
        else:
            context.error = done.exception()
            context.result = None if context.error else done.result()
        self._interceptors.after(context)

    async def flush(self) -> None:
        """Wait until nothing is under way."""
        await self._outbox.flush()

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message before its delivery time; returns its id.

        Raises:
            StatusError: It was delivered or recalled already, or the handle is of another topic.
        """
        self._check_running()
        request = rpc.RecallMessageRequest(topic=self._resource(topic), recall_handle=recall_handle)
        with self._interceptors.around(HookContext(HookPoint.RECALL, self._client_id, topic)):
            route = await self._route(topic)
            endpoints = route.endpoints[0] if route.endpoints else self._access_point
            answer = await self._rpc.call(endpoints, "RecallMessage", request)
            return str(answer.check().message_id)

    def begin_transaction(self) -> Transaction:
        """A transaction for one message.

        Raises:
            IllegalArgument: The producer has no transaction checker.
        """
        self._check_running()
        if self._checker is None:
            raise IllegalArgument("transactions need a transaction_checker on the producer")
        return Transaction(self, self.end_transaction)

    # How a message goes.

    def _encode(self, message: Message, *, is_transaction: bool = False) -> pb.Message:
        wire = self._encoder.wire(
            message, _ids.next(), self._now_ms(), is_transaction=is_transaction
        )
        if self._compress_above is not None and len(wire.body) > self._compress_above:
            convert.compress(wire)
        if self._with_digest:
            convert.add_digest(wire)
        if len(wire.body) > self._told.body_bytes_max:
            raise PayloadTooLarge(
                f"the body has {len(wire.body)} bytes, the broker takes {self._told.body_bytes_max}"
            )
        return wire

    def _remember(self, message: Message, wire: pb.Message) -> None:
        """Keep what the selector is asked about; `_exchange`, which always follows, forgets it."""
        if self._selector is not None:
            self._unplaced[wire.system_properties.message_id] = message

    async def _exchange(
        self, topic: str, kind: MessageType, wires: list[pb.Message]
    ) -> list[Outcome]:
        started_s = asyncio.get_running_loop().time()
        try:
            outcomes = await self._exchanged(topic, await self._know(topic, kind), kind, wires)
        except CosmodromeError as error:
            error.maybe_stored = False  # of a route: nothing was sent yet
            outcomes = [error] * len(wires)
        finally:
            for wire in wires if self._unplaced else ():
                self._unplaced.pop(wire.system_properties.message_id, None)
        if self._meters.is_on:
            took_ms = (asyncio.get_running_loop().time() - started_s) * 1000
            failed = sum(isinstance(outcome, CosmodromeError) for outcome in outcomes)
            self._meters.take_sends(topic, took_ms, failed=failed, sent=len(outcomes) - failed)
        return outcomes

    async def _exchanged(
        self, topic: str, found: Route, kind: MessageType, wires: list[pb.Message]
    ) -> list[Outcome]:
        if self._selector is not None:
            return await self._exchange_chosen(self._selector, found, wires)
        if kind is not MessageType.FIFO:
            return await self._sender.send(topic, wires)
        return await self._exchange_ordered(topic, found, wires)

    async def _exchange_chosen(
        self, selector: QueueSelector, found: Route, wires: list[pb.Message]
    ) -> list[Outcome]:
        """One request for each queue that the selector chose."""
        messages = [self._unplaced[w.system_properties.message_id] for w in wires]
        parts, outcomes = placed(selector, found, messages)
        sent = await asyncio.gather(
            *(
                self._sender.send(found.topic, [wires[index] for index in part], queue)
                for queue, part in parts.items()
            )
        )
        outcomes.update(zip(chain(*parts.values()), chain(*sent), strict=True))
        return [outcomes[index] for index in range(len(wires))]

    async def _exchange_ordered(
        self, topic: str, found: Route, wires: list[pb.Message]
    ) -> list[Outcome]:
        parts = by_broker(found, wires)
        if len(parts) == 1:
            return await self._sender.send(topic, wires)
        sent = await asyncio.gather(
            *(self._sender.send(topic, [wires[index] for index in part]) for part in parts)
        )
        by_index = dict(zip(chain(*parts), chain(*sent), strict=True))
        return [by_index[index] for index in range(len(wires))]

    async def _know(self, topic: str, kind: MessageType) -> Route:
        """Have the topic's route and sessions, tell the broker we publish it, check its type."""
        route = self._routes.get(topic)
        if route is None:
            route = await self._route(topic)
        if topic not in self._topics:
            self._topics[topic] = None
            await self._open_sessions(route.endpoints)
            await self._sync()
        if self._told.validates_type and route.writable:
            accepted = route.writable[0].accepts
            if accepted and kind not in accepted:
                names = ", ".join(sorted(one.name for one in accepted))
                raise IllegalArgument(
                    f"topic {topic} takes {names} messages, not {kind.name} ones: a message's type"
                    " follows from message_group, delay, priority, lite_topic and transaction"
                )
        return route

    async def _send_together(self, messages: Sequence[Message]) -> list[SendReceipt]:
        if not messages:
            return []
        topics = {message.topic for message in messages}
        if len(topics) > 1:
            raise IllegalArgument(f"one send is of one topic, not of {', '.join(sorted(topics))}")
        if len({message.message_type for message in messages}) > 1:
            raise IllegalArgument("one send is of one message type")
        if self._interceptors:
            with self._interceptors.around(self._send_context(messages)) as context:
                context.result = await self._send_encoded(context.messages)
            return list(context.result)
        return await self._send_encoded(messages)

    async def _send_encoded(self, messages: Sequence[Message]) -> list[SendReceipt]:
        wires = [self._encode(message) for message in messages]
        size = sum(len(wire.body) for wire in wires)
        await self._in_flight.take(size)
        for message, wire in zip(messages, wires, strict=True):
            self._remember(message, wire)
        try:
            results = await self._exchange(messages[0].topic, messages[0].message_type, wires)
        finally:
            self._in_flight.give(size)
        failed = [result for result in results if isinstance(result, CosmodromeError)]
        if failed:
            raise failed[0]
        return [result for result in results if isinstance(result, SendReceipt)]

    async def _send_hooked(self, message: Message) -> SendReceipt:
        with self._interceptors.around(self._send_context([message])) as context:
            replaced: Message = context.messages[0]
            wire = self._encode(replaced)
            size = len(wire.body)
            await self._in_flight.take(size)
            self._remember(replaced, wire)
            receipt = context.result = await self._outbox.add(replaced, wire, size)
        return receipt

    # Transactions.

    async def _send_half(self, message: Message, transaction: Transaction) -> SendReceipt:
        if message.message_type is not MessageType.NORMAL:
            raise IllegalArgument(
                f"a transaction takes a plain message, not {message.message_type.name}"
            )
        transaction.reserve(self)
        try:
            with self._interceptors.around(self._send_context([message])) as context:
                wire = self._encode(context.messages[0], is_transaction=True)
                self._remember(context.messages[0], wire)
                results = await self._exchange(message.topic, MessageType.TRANSACTION, [wire])
                if isinstance(results[0], CosmodromeError):
                    raise results[0]
                receipt = context.result = results[0]
        except BaseException:
            transaction.release()
            raise
        transaction.hold(receipt)
        return receipt

    async def end_transaction(
        self,
        receipt: SendReceipt,
        resolution: TransactionResolution,
        *,
        from_check: bool = False,
    ) -> None:
        """Commit or roll back a half message; `Transaction` is the usual way.

        Raises:
            StatusError: Unknown, or resolved the other way.
        """
        self._check_running()
        point = (
            HookPoint.COMMIT_TRANSACTION
            if resolution is TransactionResolution.COMMIT
            else HookPoint.ROLLBACK_TRANSACTION
        )
        request = rpc.EndTransactionRequest(
            topic=self._resource(receipt.topic),
            message_id=receipt.message_id,
            transaction_id=receipt.transaction_id,
            resolution=pb.TransactionResolution.ValueType(resolution),
            source=pb.SOURCE_SERVER_CHECK if from_check else pb.SOURCE_CLIENT,
        )
        with self._interceptors.around(HookContext(point, self._client_id, receipt.topic)):
            route = await self._route(receipt.topic)
            known = {str(endpoints): endpoints for endpoints in route.endpoints}
            endpoints = known.get(receipt.endpoint, self._access_point)
            (await self._rpc.call(endpoints, "EndTransaction", request)).check()

    async def _on_command(self, command: Command, session: Session) -> None:
        if command.WhichOneof("command") == "recover_orphaned_transaction_command":
            # A task of its own: a slow checker must not hold up other commands.
            asked = command.recover_orphaned_transaction_command
            work = self._checks.check(asked, str(session.endpoints))
            self._tasks.spawn(work, "transaction check")
        else:
            await super()._on_command(command, session)

    # What every client does.

    def _settings(self) -> pb.Settings:
        return settings.producer_settings(
            self._configuration, list(self._topics), self._max_attempts
        )

    def _take_settings(self, told: pb.Settings) -> None:
        self._told = settings.read_producer(told)

    def _startup_topics(self) -> list[str]:
        return list(self._topics)

    async def _on_started(self) -> None:
        timeout_s = self._configuration.request_timeout_s
        born_host = self._client_id.partition("@")[0]
        self._encoder = convert.Encoder(born_host, self._configuration.namespace)
        bounds = Bounds(self._batching.messages, self._batching.body_bytes, self._batching.requests)
        self._outbox = Outbox(bounds, self._in_flight, self._tasks, self._exchange)
        self._sender = Sender(
            rpc=self._rpc,
            isolation=self._isolation,
            # Clients that start together should not all begin with the same queue.
            round_robin=RoundRobin(random.randrange(1 << 16)),
            max_attempts=self._max_attempts,
            policy=lambda: self._told.policy,
            find_route=self._route,
            refresh_route=lambda topic: self._route(topic, fresh=True),
            deadline_s=(
                self._send_timeout.total_seconds()
                if self._send_timeout
                else timeout_s * self._max_attempts
            ),
            request_timeout_s=timeout_s,
        )

    async def _on_closing(self) -> None:
        try:
            async with asyncio.timeout(self._configuration.request_timeout_s):
                await self.flush()
        except TimeoutError:
            _log.warning("closed with %d messages under way", self._in_flight.messages)
        self._outbox.close()
        self._checks.close()
