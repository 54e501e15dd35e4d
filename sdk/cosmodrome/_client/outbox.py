"""Messages on their way out: each waits for a request, shares it, and learns what came of it.

    add ──▶ SendQueue of the topic ──take──▶ exchange ──▶ a receipt or an error per message
                     ▲                          │
                     └────── room for the next ◀┘

Sends begun in one turn of the loop go together; what comes while requests are under way forms the
next batch. No task per message: one per request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cosmodrome._client.in_flight import InFlight
from cosmodrome._client.sender import Outcome
from cosmodrome._client.tasks import Tasks
from cosmodrome._core.send_queue import Bounds, SendQueue, Waiting
from cosmodrome.errors import NotRunning
from cosmodrome.message import Message, MessageType
from cosmodrome.receipt import SendReceipt
from cosmodrome_proto import definition_pb2 as pb

Exchange = Callable[[str, MessageType, list[pb.Message]], Awaitable[list[Outcome]]]


@dataclass(slots=True)
class _Ticket:
    """A message under way: what is sent and who waits for it."""

    wire: pb.Message
    future: "asyncio.Future[SendReceipt]"


class Outbox:
    """What one producer has under way.

    Args:
        bounds: How messages share requests.
        in_flight: Room was taken there for what is added; it is given back here.
        tasks: The producer's.
        exchange: Sends messages of one topic and type; one outcome each, never raises ours.
    """

    def __init__(
        self, bounds: Bounds, in_flight: InFlight, tasks: Tasks, exchange: Exchange
    ) -> None:
        self._bounds = bounds
        self._in_flight = in_flight
        self._tasks = tasks
        self._exchange = exchange
        self._queues: dict[str, SendQueue[_Ticket]] = {}
        self._due: set[str] = set()  # topics that `_pump` will see to in this turn of the loop
        self._idle: list[asyncio.Future[None]] = []

    def add(self, message: Message, wire: pb.Message, size: int) -> "asyncio.Future[SendReceipt]":
        """Let a message go; the future has its receipt."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[SendReceipt] = loop.create_future()
        queue = self._queues.get(message.topic)
        if queue is None:
            queue = self._queues[message.topic] = SendQueue(self._bounds)
        ticket = _Ticket(wire, future)
        waiting = Waiting(ticket, message.message_type, message.message_group, size)
        # At the end of this turn of the loop: sends begun together go together.
        if queue.add(waiting) and message.topic not in self._due:
            self._due.add(message.topic)
            loop.call_soon(self._pump, message.topic, queue)
        return future

    async def flush(self) -> None:
        """Wait until nothing is under way."""
        while any(not queue.is_idle for queue in self._queues.values()):
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            await waiter

    def close(self) -> None:
        """Tell everybody who still waits, for a request or for room, that none will come."""
        for queue in self._queues.values():
            for waiting in queue.abandon():
                self._in_flight.give(waiting.body_bytes)
                _settle(waiting.ticket.future, _closed())
        self._in_flight.close()

    def _pump(self, topic: str, queue: SendQueue[_Ticket]) -> None:
        self._due.discard(topic)
        while batch := queue.take():
            self._tasks.spawn(self._send_batch(topic, queue, batch), f"send {topic}")

    async def _send_batch(
        self, topic: str, queue: SendQueue[_Ticket], batch: list[Waiting[_Ticket]]
    ) -> None:
        # What is cancelled under way may have arrived.
        results: list[Outcome] = [_closed(maybe_stored=True)] * len(batch)
        try:
            results = await self._exchange(topic, batch[0].kind, [w.ticket.wire for w in batch])
            if len(batch) > 1:
                _learn(queue, results)
        finally:
            queue.done(batch)
            for waiting, outcome in zip(batch, results, strict=True):
                self._in_flight.give(waiting.body_bytes)
                _settle(waiting.ticket.future, outcome)
            self._pump(topic, queue)
            if self._idle and queue.is_idle:
                self._wake_idle()

    def _wake_idle(self) -> None:
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _learn(queue: SendQueue[_Ticket], results: list[Outcome]) -> None:
    """See whether the broker answers batches message by message, and act on it."""
    receipts = [result for result in results if isinstance(result, SendReceipt)]
    if receipts and all(receipt.queue_offset == -1 for receipt in receipts):
        queue.batches_normal = queue.batches_fifo = False
    elif receipts:
        queue.batches_fifo = True


def _settle(future: "asyncio.Future[SendReceipt]", outcome: Outcome) -> None:
    if future.done():  # cancelled by its caller
        return
    if isinstance(outcome, SendReceipt):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _closed(*, maybe_stored: bool = False) -> NotRunning:
    error = NotRunning("the producer was closed before the message was sent")
    if maybe_stored:
        error = NotRunning("the producer was closed before the broker answered")
    error.maybe_stored = maybe_stored
    return error
