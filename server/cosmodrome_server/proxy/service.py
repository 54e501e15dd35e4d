"""The table of RPCs, and the boundary around each: decode, admit, act, answer.

Every business error becomes a Status in a response that is gRPC OK; any other exception
is a bug: logged with its traceback, answered INTERNAL_SERVER_ERROR without one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_server.errors import BrokerError, ClientIdRequired
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.ack_message import ack_message
from cosmodrome_server.proxy.activities.change_invisible_duration import change_invisible_duration
from cosmodrome_server.proxy.activities.end_transaction import end_transaction
from cosmodrome_server.proxy.activities.forward_message_to_dead_letter_queue import (
    forward_message_to_dead_letter_queue,
)
from cosmodrome_server.proxy.activities.get_offset import get_offset
from cosmodrome_server.proxy.activities.heartbeat import heartbeat
from cosmodrome_server.proxy.activities.notify_client_termination import notify_client_termination
from cosmodrome_server.proxy.activities.pull_message import pull_message
from cosmodrome_server.proxy.activities.query_assignment import query_assignment
from cosmodrome_server.proxy.activities.query_offset import query_offset
from cosmodrome_server.proxy.activities.query_route import query_route
from cosmodrome_server.proxy.activities.recall_message import recall_message
from cosmodrome_server.proxy.activities.receive_message import receive_message
from cosmodrome_server.proxy.activities.send_message import send_message
from cosmodrome_server.proxy.activities.sync_lite_subscription import sync_lite_subscription
from cosmodrome_server.proxy.activities.telemetry import telemetry
from cosmodrome_server.proxy.activities.update_offset import update_offset
from cosmodrome_server.proxy.context import CLIENT_ID, Context, Reply
from cosmodrome_server.proxy.front import Call, Handler, Kind

_log = logging.getLogger(__name__)

SERVICE = "apache.rocketmq.v2.MessagingService"

# What the activities of these answer is held until what they staged is durable.
HELD: dict[str, Callable[..., Reply]] = {
    "SendMessage": send_message,
    "AckMessage": ack_message,
    "ChangeInvisibleDuration": change_invisible_duration,
    "ForwardMessageToDeadLetterQueue": forward_message_to_dead_letter_queue,
    "EndTransaction": end_transaction,
    "RecallMessage": recall_message,
    "UpdateOffset": update_offset,
    "SyncLiteSubscription": sync_lite_subscription,
}
# The answers of these leave at once.
PROMPT: dict[str, Callable[..., Reply]] = {
    "QueryRoute": query_route,
    "QueryAssignment": query_assignment,
    "Heartbeat": heartbeat,
    "NotifyClientTermination": notify_client_termination,
    "GetOffset": get_offset,
    "QueryOffset": query_offset,
    "ReceiveMessage": receive_message,
    "PullMessage": pull_message,
}

_NO_CLIENT_ID = ClientIdRequired("client id cannot be empty")


@dataclass(frozen=True, slots=True)
class Rpc:
    """A `front.Route`."""

    path: str
    kind: Kind
    handler: Handler


def routes(context: Context) -> list[Rpc]:
    """Every RPC this server answers."""
    table = []
    for method in methods(SERVICE):
        if method.name == "Telemetry":
            table.append(Rpc(method.path, Kind.BIDI, lambda call: telemetry(context, call)))
            continue
        kind = Kind.SERVER_STREAM if method.server_streams else Kind.UNARY
        table.append(Rpc(method.path, kind, _handler(context, method.name, method.request)))
    table.append(Rpc(f"/{SERVICE}/*", Kind.UNARY, _unknown))
    return table


def _handler(context: Context, name: str, request_type: type[Message]) -> Handler:
    if name in HELD:
        return _bounded(context, name, request_type, HELD[name], is_held=True)
    return _bounded(context, name, request_type, PROMPT[name], is_held=False)


def _bounded(
    context: Context,
    name: str,
    request_type: type[Message],
    activity: Callable[..., Reply],
    *,
    is_held: bool,
) -> Handler:
    """The boundary around one activity: what runs for every call."""
    parse: Callable[[bytes], Any] = request_type.FromString
    broker = context.broker

    def handle(call: Call) -> None:
        try:
            request = parse(call.payload)
            if context.guard is not None:
                context.guard(name, call, request)
            client_id = call.headers.get(CLIENT_ID)
            if not client_id or client_id.isspace():
                raise _NO_CLIENT_ID
            reply = activity(context, call, request)
        except BrokerError as error:
            _refuse(context, name, call, error)
            return
        except DecodeError:
            call.reply(status.status_field(pb.BAD_REQUEST, f"the request is no {name}Request"))
            return
        except Exception as error:
            _log.exception("%s failed", name)
            _refuse(context, name, call, error)
            return
        if reply is None:
            return
        encoded = reply if isinstance(reply, bytes) else reply.SerializeToString()
        if is_held:
            broker.reply_when_durable(context.sink, call, encoded)
        else:
            call.reply(encoded)
        if context.observe is not None:
            context.observe(name, pb.OK)

    return handle


def _refuse(context: Context, name: str, call: Call, error: Exception) -> None:
    """Answer with nothing but the status of an error; every response has it as field 1."""
    call.reply(status.error_field(error))
    if context.observe is not None:
        context.observe(name, status.code_of(error))


def _unknown(call: Call) -> None:
    """A method this server does not know: a newer client's. A Status, not UNIMPLEMENTED."""
    call.reply(status.status_field(pb.NOT_IMPLEMENTED, "this server does not know the method"))
