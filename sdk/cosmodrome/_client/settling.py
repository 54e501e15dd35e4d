"""Ending deliveries: acks that share requests, nacks, the way to the dead letters.

    ack(message) ──▶ waiting per (broker, topic) ──▶ one AckMessage of many entries
                     what comes while a request is under way goes with the next one

What fails is tried again every second for as long as the client runs: a lost ack is a
redelivery. Only INVALID_RECEIPT_HANDLE ends it, since then the delivery is over anyway.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cosmodrome._client.rpc import Answer, Rpc
from cosmodrome._client.tasks import Tasks
from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core import status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import (
    CosmodromeError,
    InternalError,
    InvalidReceiptHandle,
    NotRunning,
)
from cosmodrome.interceptors import HookContext, HookPoint, Interceptors, refusal
from cosmodrome.message import MessageView, Receipt
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
RETRY_S = 1.0
# Entries of one request; a handle is about a hundred bytes.
ENTRIES_MAX = 256
Future = asyncio.Future
# Told how an ack ended: None for well.
Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class _Lane:
    """Acks to one broker of one topic."""

    endpoints: Endpoints
    topic: str
    waiting: list[tuple[MessageView, Done]] = field(default_factory=list)
    is_under_way: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Settler:
    """Ends the deliveries of one consumer.

    Args:
        rpc_, tasks: The consumer's.
        group: Its group.
        resource: Names as they go over the wire.
        hooks: The consumer's interceptors and client id, for ACK and its siblings.
    """

    def __init__(
        self,
        rpc_: Rpc,
        tasks: Tasks,
        group: str,
        resource: Callable[[str], pb.Resource],
        hooks: tuple[Interceptors, str],
    ) -> None:
        self._rpc = rpc_
        self._tasks = tasks
        self._group = group
        self._interceptors, self._client_id = hooks
        self._resource = resource
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._endpoints: dict[str, Endpoints] = {}
        self._begun: set[asyncio.Task[None]] = set()

    def ack(self, message: MessageView) -> "Future[None]":
        """Acknowledge; the future says how it went, once, without another try."""
        if self._interceptors:
            return self._hooked_ack(message)
        future: Future[None] = asyncio.get_running_loop().create_future()
        self._ack(message, partial(_settle, future))
        return future

    def ack_then(self, message: MessageView, done: Done) -> None:
        """As `ack`, without a future: `done` is called when the answer came."""
        if self._interceptors:
            self._hooked_ack(message).add_done_callback(lambda future: done(_error_of(future)))
        else:
            self._ack(message, done)

    def _hooked_ack(self, message: MessageView) -> "Future[None]":
        context = self._hook(HookPoint.ACK, message)
        try:
            self._interceptors.before(context)
        except Exception as error:
            refused: Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(refusal(error))
            return refused

        def after(done: "Future[None]") -> None:
            context.error = _error_of(done)
            self._interceptors.after(context)

        future: Future[None] = asyncio.get_running_loop().create_future()
        self._ack(message, partial(_settle, future))
        future.add_done_callback(after)
        return future

    def _hook(self, point: HookPoint, message: MessageView) -> HookContext:
        return HookContext(point, self._client_id, message.topic, self._group, messages=[message])

    def _ack(self, message: MessageView, done: Done) -> None:
        receipt = receipt_of(message)
        lane = self._lanes.get((receipt.endpoint, message.topic))
        if lane is None:
            endpoints = self._where(receipt)
            lane = self._lanes[receipt.endpoint, message.topic] = _Lane(endpoints, message.topic)
        lane.waiting.append((message, done))
        if not lane.is_under_way:
            lane.is_under_way = True
            lane.idle.clear()
            asyncio.get_running_loop().call_soon(self._begin, lane)

    def give_back(self, messages: Iterable[MessageView]) -> None:
        """Let others have messages that nobody here will see: an attempt that never was."""
        for message in messages:
            self.begin(self.nack_for_sure(message, 0, suspend=True), "give back")

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> bool:
        """Do what ends deliveries beside the caller; `flush` waits for it. False once closed."""
        task = self._tasks.spawn(work, name)
        if task is None:
            return False
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return True

    async def hide(self, message: MessageView, duration_ms: int) -> None:
        """Change a message's invisible duration, to the end also if the caller is cancelled.

        Raises:
            NotRunning: The client is closed.
            StatusError: The broker refused.
            TransportError: No answer.
        """
        done: Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await self.change_invisible_duration(message, duration_ms)
            except CosmodromeError as error:
                _settle(done, error)
            except BaseException as error:
                _settle(done, error)  # or its caller would wait for ever
                raise
            else:
                _settle(done, None)

        if not self.begin(work(), "change invisible duration"):
            raise NotRunning("the client was closed before the invisible duration was changed")
        await done

    async def flush(self) -> None:
        """Wait until no ack is under way, and nothing that was begun."""
        for lane in self._lanes.values():
            if lane.is_under_way:
                await lane.idle.wait()
        while self._begun:
            await asyncio.wait(self._begun)

    async def ack_for_sure(self, message: MessageView) -> None:
        """Acknowledge, trying until it is done or pointless."""
        while True:
            try:
                await self.ack(message)
            except InvalidReceiptHandle as error:
                _log.info("ack of %s came too late: %s", message.message_id, error)
            except CosmodromeError as error:
                _log.info("ack of %s fails, again in 1 s: %s", message.message_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def change_invisible_duration(
        self, message: MessageView, duration_ms: int, *, suspend: bool = False
    ) -> None:
        """Hide a message for another while; the view keeps the new handle.

        Raises:
            StatusError: The broker refused.
            TransportError: No answer.
        """
        receipt = receipt_of(message)
        request = rpc.ChangeInvisibleDurationRequest(
            group=self._resource(self._group),
            topic=self._resource(message.topic),
            receipt_handle=receipt.handle,
            message_id=message.message_id,
            invisible_duration=Duration(
                seconds=duration_ms // 1000, nanos=duration_ms % 1000 * 1_000_000
            ),
        )
        if suspend:
            request.suspend = True
        if message.lite_topic:
            request.lite_topic = message.lite_topic
        where = self._where(receipt)
        context = self._hook(HookPoint.CHANGE_INVISIBLE_DURATION, message)
        with self._interceptors.around_ours(context):
            answer = await self._rpc.call(where, "ChangeInvisibleDuration", request)
            receipt.handle = answer.check().receipt_handle or receipt.handle

    async def nack_for_sure(
        self, message: MessageView, duration_ms: int, *, suspend: bool = False
    ) -> None:
        """Give a message back, trying until it is done or pointless."""
        while True:
            try:
                await self.change_invisible_duration(message, duration_ms, suspend=suspend)
            except InvalidReceiptHandle as error:
                _log.info("nack of %s came too late: %s", message.message_id, error)
            except CosmodromeError as error:
                _log.info("nack of %s fails, again in 1 s: %s", message.message_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            return

    async def forward(self, message: MessageView, max_attempts: int) -> None:
        """Give a message up for the dead letters.

        Raises:
            StatusError: The broker refused.
            TransportError: No answer.
        """
        receipt = receipt_of(message)
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            group=self._resource(self._group),
            topic=self._resource(message.topic),
            receipt_handle=receipt.handle,
            message_id=message.message_id,
            delivery_attempt=message.delivery_attempt,
            max_delivery_attempts=max_attempts,
        )
        if message.lite_topic:
            request.lite_topic = message.lite_topic
        where, point = self._where(receipt), HookPoint.FORWARD_TO_DEAD_LETTER_QUEUE
        with self._interceptors.around_ours(self._hook(point, message)):
            (await self._rpc.call(where, "ForwardMessageToDeadLetterQueue", request)).check()

    async def forward_for_sure(self, message: MessageView, max_attempts: int) -> None:
        """Give a message up, trying until it is done or pointless."""
        while True:
            try:
                await self.forward(message, max_attempts)
            except InvalidReceiptHandle as error:
                _log.info("forward of %s came too late: %s", message.message_id, error)
            except CosmodromeError as error:
                _log.info("forward of %s fails, again in 1 s: %s", message.message_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            return

    def _where(self, receipt: Receipt) -> Endpoints:
        known = self._endpoints.get(receipt.endpoint)
        if known is None:
            known = self._endpoints[receipt.endpoint] = endpoint_text.parse(receipt.endpoint)
        return known

    def _begin(self, lane: _Lane) -> None:
        self._tasks.spawn(self._run(lane), f"ack {lane.topic}")

    async def _run(self, lane: _Lane) -> None:
        try:
            while lane.waiting:
                batch, lane.waiting = lane.waiting[:ENTRIES_MAX], lane.waiting[ENTRIES_MAX:]
                await self._ack_batch(lane, batch)
        finally:
            lane.is_under_way = False
            lane.idle.set()

    async def _ack_batch(self, lane: _Lane, batch: list[tuple[MessageView, Done]]) -> None:
        request = rpc.AckMessageRequest(
            group=self._resource(self._group), topic=self._resource(lane.topic)
        )
        for message, _ in batch:
            entry = request.entries.add(
                message_id=message.message_id, receipt_handle=receipt_of(message).handle
            )
            if message.lite_topic:
                entry.lite_topic = message.lite_topic
        try:
            answer = await self._rpc.call(lane.endpoints, "AckMessage", request)
        except CosmodromeError as error:
            for _, done in batch:
                done(error)
            return
        except asyncio.CancelledError as error:
            for _, done in batch:
                done(error)
            raise
        for (_, done), failure in zip(batch, _failures(answer, len(batch)), strict=True):
            done(failure)


def _failures(answer: Answer, messages: int) -> Iterable[CosmodromeError | None]:
    """What an answer to an ack says of each message."""
    where, response = (
        {"endpoint": answer.endpoint, "request_id": answer.request_id},
        answer.response,
    )
    entries = response.entries
    if len(entries) != messages:
        whole = status.error_of(response.status, **where)
        return [whole or InternalError("the broker answered an ack without its entries")] * messages
    if response.status.code == pb.OK:
        # All is well, as nearly always: no look at each.
        return [None] * messages
    return [status.error_of(entry.status, **where) for entry in entries]


def receipt_of(message: MessageView) -> Receipt:
    """The receipt of a view that came from a receive."""
    assert message.receipt is not None, "the message was not received, it cannot be settled"
    return message.receipt


def _error_of(future: "Future[None]") -> BaseException | None:
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _settle(future: "Future[None]", error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)
