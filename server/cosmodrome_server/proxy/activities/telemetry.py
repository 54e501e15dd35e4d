"""Telemetry: the conversation with one client, for as long as it is connected.

    client ──▶ SETTINGS                          registered, answered with merged settings
           ──▶ THREAD_STACK_TRACE, VERIFY_MESSAGE_RESULT    passed to whoever asked
    server ──▶ settings that changed, orphaned transactions, questions, "connect anew"

What goes wrong with a command ends the stream: INVALID_ARGUMENT where the client must
change it, else INTERNAL. What goes wrong before it (no client id, not authorized, too
many) is a status command, then a normal end.
"""

from google.protobuf.message import DecodeError

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.core.client_session import CONSUMERS, LITE_CONSUMERS, ClientType
from cosmodrome_server.core.filter_expression import compile_filter
from cosmodrome_server.errors import (
    BadRequest,
    BrokerError,
    ClientIdRequired,
    ConsumerGroupNotFound,
    OverloadedError,
    Unauthorized,
)
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import CLIENT_ID, Context
from cosmodrome_server.proxy.convert import filter_of
from cosmodrome_server.proxy.front import Call, GrpcStatus
from cosmodrome_server.proxy.sessions import client_type_of
from cosmodrome_server.proxy.settings import check_client_properties

# Kept in memory and, over restarts, on disk; a subscription takes some hundred bytes.
SETTINGS_BYTES_MAX = 1 << 20

# The threads of a large client fit; what is more is not even read.
_COMMAND_BYTES = 4 << 20

_PIPELINE = (ClientIdRequired, OverloadedError, Unauthorized)


def telemetry(context: Context, call: Call) -> None:
    """Take part in the conversation until either side ends it."""
    _Conversation(context, call)


class _Conversation:
    """One stream: what a client says on it, in order."""

    def __init__(self, context: Context, call: Call) -> None:
        self._context = context
        self._call = call
        self._client_id = call.headers.get(CLIENT_ID, "").strip()
        self._is_open = True
        call.on_cancel(self._close)
        call.on_message(self._take)
        context.sessions.stream_opened(call)

    def _close(self) -> None:
        self._is_open = False
        self._context.sessions.stream_closed(self._client_id, self._call)

    def _take(self, message: bytes | None) -> None:
        if not self._is_open:
            return
        if message is None:
            self._end(GrpcStatus.OK, "")
            return
        try:
            if len(message) > _COMMAND_BYTES:
                raise BadRequest(
                    f"the command has {len(message)} bytes, {_COMMAND_BYTES} are allowed"
                )
            self._obey(rpc.TelemetryCommand.FromString(message))
        except _PIPELINE as error:
            refused = status.status(status.code_of(error), status.message_of(error))
            self._call.send(rpc.TelemetryCommand(status=refused).SerializeToString())
            self._end(GrpcStatus.OK, "")
        except BrokerError as error:
            theirs = 40000 <= status.code_of(error) < 50000
            kind = GrpcStatus.INVALID_ARGUMENT if theirs else GrpcStatus.INTERNAL
            self._end(kind, status.message_of(error))
        except DecodeError:
            self._end(GrpcStatus.INVALID_ARGUMENT, "the command is not a TelemetryCommand")
        except BaseException:
            self._close()  # a bug, and the front ends the stream
            raise

    def _end(self, kind: GrpcStatus, message: str) -> None:
        self._close()
        self._call.finish(kind, message)

    def _obey(self, command: rpc.TelemetryCommand) -> None:
        context = self._context
        if context.is_guarded:
            context.admit(self._call, command)
        if not self._client_id:
            raise ClientIdRequired("client id cannot be empty")
        match command.WhichOneof("command"):
            case "settings":
                self._settle(command.settings)
            case "thread_stack_trace":
                nonce = command.thread_stack_trace.nonce
                context.sessions.answered(self._client_id, nonce, command)
            case "verify_message_result":
                nonce = command.verify_message_result.nonce
                context.sessions.answered(self._client_id, nonce, command)
            case _:
                pass  # a newer client's command; the reference ignores it too

    def _settle(self, sent: pb.Settings) -> None:
        check_settings(self._context, sent)
        try:
            current = self._context.sessions.register(self._client_id, sent, self._call)
        except ConsumerGroupNotFound as error:
            raise BadRequest(f"group not found: {sent.subscription.group.name}") from error
        answer = rpc.TelemetryCommand(status=status.OK_STATUS, settings=current)
        self._call.send(answer.SerializeToString())


def check_settings(context: Context, sent: pb.Settings) -> None:
    """Check what a client says it is.

    Raises:
        BadRequest: Neither publishing nor subscription, a type that does not go with it, or more
            than is kept of a client.
        IllegalTopic, IllegalConsumerGroup, IllegalFilterExpression, InvalidClientProperties
    """
    size = sent.ByteSize()
    if size > SETTINGS_BYTES_MAX:
        raise BadRequest(f"the settings have {size} bytes, {SETTINGS_BYTES_MAX} are allowed")
    check_client_properties(sent.client_properties)
    if sent.HasField("publishing"):
        for topic in sent.publishing.topics:
            context.names.topic(topic.name)
        return
    if not sent.HasField("subscription"):
        raise BadRequest("there is no publishing or subscription data in settings")
    context.names.group(sent.subscription.group.name)
    for entry in sent.subscription.subscriptions:
        compile_filter(filter_of(entry.expression))
    client_type = client_type_of(sent)
    is_foreign = context.config.server.strict and client_type is ClientType.PULL_CONSUMER
    if client_type not in CONSUMERS or is_foreign:
        raise BadRequest(f"client type {sent.client_type} cannot subscribe")
    if client_type in LITE_CONSUMERS:
        _check_lite(context, sent.subscription.group.name)


def _check_lite(context: Context, name: str) -> None:
    try:
        group = context.broker.group(name)
    except ConsumerGroupNotFound as error:
        raise BadRequest(f"group not found: {name}") from error
    if not group.lite_bind_topic:
        raise BadRequest(f"regular group cannot use LITE mode: {name}")
