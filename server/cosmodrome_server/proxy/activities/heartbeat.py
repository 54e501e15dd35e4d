"""Heartbeat: the client lives."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.core.client_session import CONSUMERS, ClientType
from cosmodrome_server.errors import (
    ConsumerGroupNotFound,
    IllegalConsumerGroup,
    UnrecognizedClientType,
)
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context, client_id_of
from cosmodrome_server.proxy.front import Call


def heartbeat(context: Context, call: Call, request: rpc.HeartbeatRequest) -> bytes:
    """Keep a client registered. What counts is the type it said in its settings.

    Raises:
        UnrecognizedClientType: It sent no settings: it must do so first.
        IllegalConsumerGroup: A consumer's group that is malformed or does not exist.
    """
    client_id = client_id_of(call)
    session = context.sessions.known.get(client_id)
    if session is None or not session.settings:
        raise UnrecognizedClientType("cannot find client settings for this client")
    if session.client_type in CONSUMERS:
        check_group(context, request.group.name)
    elif session.client_type is not ClientType.PRODUCER:
        raise UnrecognizedClientType(session.client_type.name)
    context.sessions.touch(client_id)
    return status.OK


def check_group(context: Context, name: str) -> None:
    """Check that a group exists.

    Raises:
        IllegalConsumerGroup: It does not; so the reference says it here.
    """
    try:
        context.broker.group(context.names.group(name))
    except ConsumerGroupNotFound as error:
        raise IllegalConsumerGroup(f"group not found: {name}") from error
