"""ReceiveMessage: deliver messages, now or when some arrive.

Stream order: `status`; if OK the messages; always `delivery_timestamp` last, also after an
error of this RPC (errors before it, as a missing client id, are the status alone).
"""

import logging

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.core.client_session import ClientType
from cosmodrome_server.errors import BadRequest, BrokerError, IllegalInvisibleTime
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.proxy import encoding, status
from cosmodrome_server.proxy.context import Context, client_id_of
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.long_polling import polling_ms
from cosmodrome_server.proxy.outgoing import Outgoing
from cosmodrome_server.proxy.packing import packed
from cosmodrome_server.proxy.receives import Asked

_log = logging.getLogger(__name__)

_RPC = "ReceiveMessage"
_EMPTY = status.status_field(pb.MESSAGE_NOT_FOUND, "no new message")


def receive_message(context: Context, call: Call, request: Asked) -> None:
    """Answer with messages if there are any, else wait for them within the polling time.

    Every error of the request is answered on the call, in the stream's order.
    """
    try:
        wait_ms = _polling_ms(context, call, request)
        query = _query(context, call, request)
        context.broker.receive_soon(query, _Receive(context, call, query, wait_ms).answer)
    except BrokerError as error:
        _refuse(context, call, error)


def _polling_ms(context: Context, call: Call, request: Asked) -> int:
    request_timeout_ms = 0
    if request.polling_ms is None:
        session = context.sessions.known.get(client_id_of(call))
        request_timeout_ms = session.request_timeout_ms if session is not None else 0
    return polling_ms(call, request.polling_ms, request_timeout_ms, context.config.delivery)


def _query(context: Context, call: Call, request: Asked) -> ReceiveQuery:
    """The request, checked.

    Raises:
        IllegalTopic, IllegalConsumerGroup, ConsumerGroupNotFound
        IllegalInvisibleTime: Outside the bounds, where the client renews for itself.
        BadRequest: A negative batch size, or a kind of filter that does not exist.
    """
    topic = context.names.topic(request.topic)
    group = context.names.group(request.group)
    delivery = context.config.delivery
    client_id = client_id_of(call)
    if request.auto_renew:
        invisible_ms = delivery.renew_ms
        context.sessions.note_receiver(client_id, group)
    else:
        invisible_ms = request.invisible_ms
        if not delivery.invisible_min_ms <= invisible_ms <= delivery.invisible_max_ms:
            raise IllegalInvisibleTime(
                f"the invisible duration is {invisible_ms} ms, it must be "
                f"{delivery.invisible_min_ms} to {delivery.invisible_max_ms} "
                "(delivery.invisible_min_ms, delivery.invisible_max_ms)"
            )
    batch = request.batch_size
    if batch < 0:
        raise BadRequest(f"the batch size is {batch}, it must not be negative")
    if request.filter is None:
        raise BadRequest(f"there is no filter type {request.filter_type}")
    return ReceiveQuery(
        group,
        topic,
        _queue_id(context, client_id, group, request.queue_id),
        client_id,
        min(batch, delivery.batch_max) or 1,
        invisible_ms,
        request.auto_renew,
        request.filter,
        request.attempt_id,
    )


def _queue_id(context: Context, client_id: str, group: str, named: int) -> int:
    """The queue to serve the receive from; any, unless a FIFO push consumer names one.

    Push consumers of a FIFO group run a loop per queue. Simple consumers rotate through the
    queues, one a call: held to an empty one they would wait its whole polling time.

    Raises:
        ConsumerGroupNotFound
    """
    if not context.broker.group(group).is_fifo:
        return ANY_QUEUE
    session = context.sessions.known.get(client_id)
    rotates = session is not None and session.client_type is ClientType.SIMPLE_CONSUMER
    return ANY_QUEUE if rotates else named


class _Receive:
    """One receive, from the turn it came in to its answer.

    Made for every receive: a wait's part is set when it begins to wait.
    """

    __slots__ = ("_began_ms", "_call", "_context", "_is_gone", "_number", "_query", "_wait_ms",
                 "_waiter")  # fmt: skip

    def __init__(self, context: Context, call: Call, query: ReceiveQuery, wait_ms: int) -> None:
        self._context = context
        self._call = call
        self._query = query
        self._wait_ms = wait_ms
        self._began_ms = context.clock.monotonic_ms()
        self._waiter: Waiter | None = None
        self._is_gone = False
        call.on_cancel(self._give_up)

    def answer(self, found: list[Delivery] | Exception) -> None:
        """Pass on what the broker found, or wait for more."""
        try:
            if isinstance(found, Exception):
                raise found
            if found:
                self._deliver(found)
            elif not self._is_gone:
                self._wait()
        except Exception as error:  # a bug is this call's only, not the whole turn's
            if not isinstance(error, BrokerError):
                _log.exception("%s failed", _RPC)
            self._refuse(error)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Hold the messages until their lease is durable, then write them."""
        context, call = self._context, self._call
        if self._is_gone:
            Outgoing(call, (), context.broker, self._query.group, deliveries).give_back()
            return
        if self._query.auto_renew:
            context.sessions.note_renewed(self._query.client_id, self._query.group)
        fields = encoding.delivered(deliveries, context.store_host)
        replies = packed(context.config, call, [status.OK, *fields, _now(context)])
        outgoing = Outgoing(call, replies, context.broker, self._query.group, deliveries)
        context.broker.reply_when_durable(context.streams, outgoing, b"")
        context.answered(_RPC, pb.OK)

    def _refuse(self, error: Exception) -> None:
        self._end_wait()
        self._call.on_cancel(None)
        _refuse(self._context, self._call, error)

    def _wait(self) -> None:
        context = self._context
        waiter = Waiter(self._query, self._began_ms + self._wait_ms, self._ready)
        context.broker.wait(waiter)
        self._waiter = waiter
        self._number = context.waits.begin_receive(self._query, self._ask_again, self._leave)

    def _ready(self, deliveries: list[Delivery]) -> None:
        context, call = self._context, self._call
        self._end_wait()
        if context.waited is not None:
            context.waited((context.clock.monotonic_ms() - self._began_ms) / 1_000)
        if deliveries:
            self._deliver(deliveries)
        else:
            call.on_cancel(None)
            call.reply_stream([_EMPTY, _now(context)])
            context.answered(_RPC, pb.MESSAGE_NOT_FOUND)

    def _ask_again(self) -> None:
        context, waiter = self._context, self._waiter
        assert waiter is not None, "only who waits asks again"
        context.broker.cancel(waiter)
        try:
            deliveries = context.broker.receive(self._query)
            if not deliveries:
                waiter.is_open = True
                context.broker.wait(waiter)
        except BrokerError as error:
            self._refuse(error)
        else:
            if deliveries:
                self._ready(deliveries)

    def _leave(self) -> None:
        waiter = self._waiter
        assert waiter is not None, "only who waits leaves"
        self._context.broker.cancel(waiter)
        self._ready([])

    def _give_up(self) -> None:
        self._is_gone = True
        waiter = self._waiter
        if waiter is not None:
            self._end_wait()
            self._context.broker.cancel(waiter)

    def _end_wait(self) -> None:
        # The waiter has us: who is answered is not to live until the collector comes.
        if self._waiter is not None:
            self._waiter = None
            self._context.waits.end(self._query, self._number)


def _refuse(context: Context, call: Call, error: Exception) -> None:
    call.reply_stream([status.error_field(error), _now(context)])
    context.refused(_RPC, error)


def _now(context: Context) -> bytes:
    return encoding.delivery_timestamp(context.clock.now_ms())
