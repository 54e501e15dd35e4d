"""The table of RPCs, and the boundary around each: decode, admit, act, answer.

    MESSAGING   apache.rocketmq.v2.MessagingService   clients
    ADMIN       apache.rocketmq.v2.Admin              operators who look
    CONTROL     cosmodrome.v1.Control                 operators who change
    BULK        cosmodrome.v1.Bulk                    the data pipeline

Every business error becomes a Status in a response that is gRPC OK; any other exception
is a bug: logged with its traceback, answered INTERNAL_SERVER_ERROR without one. A method
of these services that this server does not know is answered a Status too, not
UNIMPLEMENTED, so that a newer client can read why. Under `server.strict` what the reference
does not have is not there, and is UNIMPLEMENTED as it is there.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message

from cosmodrome_proto import Method, methods
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import (
    BadRequest,
    BrokerError,
    ClientIdRequired,
    OverloadedError,
)
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities import admin, control
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
from cosmodrome_server.proxy.bulk import table as bulk
from cosmodrome_server.proxy.context import CLIENT_ID, Activity, Context, Reply
from cosmodrome_server.proxy.encoding import bytes_field
from cosmodrome_server.proxy.flow import FlowControl
from cosmodrome_server.proxy.front import Call, GrpcStatus, Handler, Kind
from cosmodrome_server.proxy.health import SERVICE as HEALTH_SERVICE
from cosmodrome_server.proxy.health import Health
from cosmodrome_server.proxy.receives import Receives
from cosmodrome_server.proxy.reflection import SERVICES as REFLECTION_SERVICES
from cosmodrome_server.proxy.reflection import Reflection
from cosmodrome_server.proxy.sends import Sends

_log = logging.getLogger(__name__)

MESSAGING_SERVICE = "apache.rocketmq.v2.MessagingService"
ADMIN_SERVICE = "apache.rocketmq.v2.Admin"
CONTROL_SERVICE = "cosmodrome.v1.Control"
BULK_SERVICE = "cosmodrome.v1.Bulk"

_Table = Mapping[str, Activity[Any]]

MESSAGING: _Table = {
    "QueryRoute": query_route,
    "Heartbeat": heartbeat,
    "SendMessage": send_message,
    "QueryAssignment": query_assignment,
    "ReceiveMessage": receive_message,
    "AckMessage": ack_message,
    "ForwardMessageToDeadLetterQueue": forward_message_to_dead_letter_queue,
    "PullMessage": pull_message,
    "UpdateOffset": update_offset,
    "GetOffset": get_offset,
    "QueryOffset": query_offset,
    "EndTransaction": end_transaction,
    "NotifyClientTermination": notify_client_termination,
    "ChangeInvisibleDuration": change_invisible_duration,
    "RecallMessage": recall_message,
    "SyncLiteSubscription": sync_lite_subscription,
}

# They hold many bodies; the fronts bound them. Others hold one at most.
LARGE = frozenset({"SendMessage", "StageMessages"})
# Beside a body. Two bytes are an entry of a list, which takes 22 once it is read.
_REQUEST_BYTES = 1 << 20

# What the reference's proxies do not have; absent under `server.strict`.
OURS_ONLY = frozenset({"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"})

# Their answers leave at once: they look, or what they change may be lost with the process.
PROMPT = frozenset(
    {
        "QueryRoute",
        "Heartbeat",
        "QueryAssignment",
        "GetOffset",
        "QueryOffset",
        "NotifyClientTermination",
        "ReadQueue",
        "QuerySegments",
        "ReleaseSegments",
    }
)


class Rpc(msgspec.Struct, frozen=True):
    """A `front.Route`."""

    path: str
    kind: Kind
    handler: Handler


def routes(context: Context, health: Health, *, has_reflection: bool) -> list[Rpc]:
    """Every RPC this server answers."""
    services = [MESSAGING_SERVICE, ADMIN_SERVICE, CONTROL_SERVICE]
    table = _business(context)
    # A watch is a stream that goes on; its one request is the first message.
    table.append(Rpc(f"/{HEALTH_SERVICE}/Check", Kind.UNARY, health.check))
    table.append(Rpc(f"/{HEALTH_SERVICE}/Watch", Kind.BIDI, health.watch))
    if has_reflection:
        inform = Reflection([*services, *REFLECTION_SERVICES], context.reflections).inform
        table += [
            Rpc(f"/{service}/ServerReflectionInfo", Kind.BIDI, inform)
            for service in REFLECTION_SERVICES
        ]
    return table


def _business(context: Context) -> list[Rpc]:
    messaging = MESSAGING
    if context.config.server.strict:
        messaging = {name: act for name, act in MESSAGING.items() if name not in OURS_ONLY}
    return [
        Rpc(f"/{MESSAGING_SERVICE}/Telemetry", Kind.BIDI, lambda call: telemetry(context, call)),
        *_service(context, MESSAGING_SERVICE, messaging),
        *_seldom(context, ADMIN_SERVICE, lambda: admin.ADMIN),
        *_seldom(context, CONTROL_SERVICE, lambda: control.CONTROL),
        *_seldom(context, BULK_SERVICE, lambda: bulk.BULK),
    ]


def _seldom(context: Context, service: str, table: Callable[[], _Table]) -> list[Rpc]:
    """A service of which many brokers are asked nothing: all of it is made at the first call."""

    @cache
    def handlers() -> dict[str, Handler]:
        return {rpc.path: rpc.handler for rpc in _service(context, service, table())}

    def route(method: Method) -> Rpc:
        def handle(call: Call) -> None:
            handlers()[method.path](call)

        return Rpc(method.path, _kind_of(method), handle)

    return [*map(route, methods(service)), _rest_of(context, service)]


def _service(context: Context, service: str, table: _Table) -> list[Rpc]:
    flow = None
    if service == MESSAGING_SERVICE:
        flow = FlowControl(context.config.flow, context.clock, lambda: context.sink)
        context.flow = flow
    found = [
        Rpc(
            method.path,
            _kind_of(method),
            _Boundary(context, method, table[method.name], flow).handle,
        )
        for method in methods(service)
        if method.name in table
    ]
    return [*found, _rest_of(context, service)]


def _kind_of(method: Method) -> Kind:
    return Kind.SERVER_STREAM if method.server_streams else Kind.UNARY


def _rest_of(context: Context, service: str) -> Rpc:
    unknown = _unimplemented if context.config.server.strict else _unknown
    return Rpc(f"/{service}/*", Kind.UNARY, unknown)


class _Boundary:
    """What runs around one activity, for every call; with flow control for clients' calls."""

    __slots__ = (
        "_activity",
        "_context",
        "_is_held",
        "_lane",
        "_most",
        "_name",
        "_parse",
        "_refusal",
        "_request",
        "_toll",
    )

    def __init__(
        self,
        context: Context,
        method: Method,
        activity: Activity[Any],
        flow: FlowControl | None,
    ) -> None:
        self._context = context
        self._name = method.name
        self._activity = activity
        self._request = method.request
        self._parse = _reader(context, self._request)
        limits = context.config.limits
        self._most = sys.maxsize if method.name in LARGE else limits.body_bytes + _REQUEST_BYTES
        self._lane = None if flow is None else flow.lane_of(method.name)
        self._toll = None if flow is None else flow.toll_of(method.name)
        self._is_held = method.name not in PROMPT
        self._refusal = _REFUSALS.get(method.name, _refusal)

    def handle(self, call: Call) -> None:
        """Answer one call; a `front.Handler`."""
        context = self._context
        try:
            reply = self._act(call)
        except BrokerError as error:
            self._refuse(call, error)
            return
        except DecodeError:
            self._refuse(call, BadRequest(f"the request is no {self._request.DESCRIPTOR.name}"))
            return
        except Exception as error:
            _log.exception("%s failed", self._name)
            self._refuse(call, error)
            return
        if reply is None:
            return
        encoded = reply if isinstance(reply, bytes) else reply.SerializeToString()
        if self._is_held:
            sink = context.sink if self._lane is None else self._lane.begin()
            context.broker.reply_when_durable(sink, call, encoded)
        else:
            call.reply(encoded)
        context.answered(self._name, pb.OK)

    def _act(self, call: Call) -> Reply:
        payload = call.payload
        if len(payload) > self._most:
            raise BadRequest(f"the request has {len(payload)} bytes, {self._most} are allowed")
        request = self._parse(payload)
        context = self._context
        context.broker.catch_up()
        if context.is_guarded:
            # Access rules know requests by the protocol's names.
            is_named = isinstance(request, self._request)
            context.admit(call, request if is_named else self._request.FromString(payload))
        if self._lane is not None:
            client_id = call.headers.get(CLIENT_ID)
            if not client_id or client_id.isspace():
                raise ClientIdRequired("client id cannot be empty")
            self._lane.check()
        toll = self._toll
        if toll is not None and toll.charge is not None:
            toll.charge(call, request)
        return self._activity(context, call, request)

    def _refuse(self, call: Call, error: Exception) -> None:
        call.reply(self._refusal(call, error))
        self._context.refused(self._name, error)


def _reader(context: Context, request: type[Message]) -> Callable[[bytes], Any]:
    """What reads these requests: their own description, or another."""
    if request is rpc.SendMessageRequest:
        return Sends(context.config.limits).read
    return Receives().read if request is rpc.ReceiveMessageRequest else request.FromString


def _refusal(_call: Call, error: Exception) -> bytes:
    """Nothing but the status of an error; nearly every response has it as field 1."""
    return status.error_field(error)


def _text_refusal(_call: Call, error: Exception) -> bytes:
    """The same for the one response (ChangeLogLevel's) whose field 1 is a text."""
    return bytes_field(1, status.message_of(error).encode())


def _refusal_with_handle(call: Call, error: Exception) -> bytes:
    """The status and, to a client that may come back, the handle it comes back with."""
    refused = status.error_field(error)
    if not isinstance(error, OverloadedError):
        return refused
    request = rpc.ChangeInvisibleDurationRequest.FromString(call.payload)
    return refused + bytes_field(2, request.receipt_handle.encode())


_REFUSALS: dict[str, Callable[[Call, Exception], bytes]] = {
    "ChangeLogLevel": _text_refusal,
    "ChangeInvisibleDuration": _refusal_with_handle,
}


def _unknown(call: Call) -> None:
    call.reply(status.status_field(pb.NOT_IMPLEMENTED, "this server does not know the method"))


def _unimplemented(call: Call) -> None:
    call.finish(GrpcStatus.UNIMPLEMENTED, "this server does not know the method (server.strict)")
