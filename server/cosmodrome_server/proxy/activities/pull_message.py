"""PullMessage: read a queue at an offset; hides nothing, counts nothing.

Stream order: `status`, the messages, then `next_offset`. An error is the status alone,
but for an offset outside the queue, which is followed by the nearest inside.
"""

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest, BrokerError, IllegalOffset
from cosmodrome_server.model.queries import Pulled, PullQuery, PullWaiter
from cosmodrome_server.proxy import encoding, status
from cosmodrome_server.proxy.context import Context, client_id_of
from cosmodrome_server.proxy.convert import duration_ms, filter_of
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.long_polling import polling_ms
from cosmodrome_server.proxy.packing import packed

_RPC = "PullMessage"
_EMPTY = status.status_field(pb.MESSAGE_NOT_FOUND, "no new message")


def pull_message(context: Context, call: Call, request: rpc.PullMessageRequest) -> None:
    """Answer with the messages at the offset, else wait for one within the polling time."""
    try:
        wait_ms = _polling_ms(context, call, request)
        query = _query(context, request)
        pulled = context.broker.pull(query)
        if pulled.messages:
            _answer(context, call, pulled)
        else:
            _wait(context, call, query, wait_ms)
    except BrokerError as error:
        _refuse(context, call, error)


def _refuse(context: Context, call: Call, error: BrokerError) -> None:
    answer = [status.error_field(error)]
    if isinstance(error, IllegalOffset):
        answer.append(_next(error.corrected))
    call.reply_stream(answer)
    context.refused(_RPC, error)


def _polling_ms(context: Context, call: Call, request: rpc.PullMessageRequest) -> int:
    asked_ms = None
    if request.HasField("long_polling_timeout"):
        asked_ms = duration_ms(request.long_polling_timeout)
    session = context.sessions.known.get(client_id_of(call))
    request_timeout_ms = session.request_timeout_ms if session is not None else 0
    return polling_ms(call, asked_ms, request_timeout_ms, context.config.delivery)


def _query(context: Context, request: rpc.PullMessageRequest) -> PullQuery:
    """The request, checked.

    Raises:
        IllegalTopic, IllegalConsumerGroup, BadRequest
    """
    topic = context.names.topic(request.message_queue.topic.name)
    group = context.names.group(request.group.name)
    if request.batch_size < 0:
        raise BadRequest(f"the batch size is {request.batch_size}, it must not be negative")
    return PullQuery(
        group,
        topic,
        request.message_queue.id,
        request.offset,
        min(max(request.batch_size, 1), context.config.delivery.pull_max),
        filter_of(request.filter_expression),
    )


def _answer(context: Context, call: Call, pulled: Pulled) -> None:
    messages = [status.OK]
    messages += [encoding.pulled(message, context.store_host) for message in pulled.messages]
    messages.append(_next(pulled.next_offset))
    call.reply_stream(packed(context.config, call, messages))
    context.answered(_RPC, pb.OK)


def _wait(context: Context, call: Call, query: PullQuery, wait_ms: int) -> None:
    def on_ready(pulled: Pulled) -> None:
        context.waits.end(query, number)
        call.on_cancel(None)
        if pulled.messages:
            _answer(context, call, pulled)
        else:
            call.reply_stream([_EMPTY, _next(pulled.next_offset)])
            context.answered(_RPC, pb.MESSAGE_NOT_FOUND)

    def ask_again() -> None:
        context.broker.cancel(waiter)
        try:
            pulled = context.broker.pull(query)
            if not pulled.messages:
                waiter.is_open = True
                context.broker.wait_pull(waiter)
        except BrokerError as error:
            context.waits.end(query, number)
            call.on_cancel(None)
            _refuse(context, call, error)
        else:
            if pulled.messages:
                on_ready(pulled)

    def give_up() -> None:
        context.waits.end(query, number)
        context.broker.cancel(waiter)

    waiter = PullWaiter(query, context.clock.monotonic_ms() + wait_ms, on_ready)
    context.broker.wait_pull(waiter)
    number = context.waits.begin(query, ask_again)
    call.on_cancel(give_up)


def _next(queue_offset: int) -> bytes:
    """`PullMessageResponse { next_offset = 3 }`; a oneof, so a zero is written too."""
    return b"\x18" + encoding.varint(queue_offset)
