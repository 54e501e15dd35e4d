"""NotifyClientTermination: a client says good-bye."""

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.core.client_session import CONSUMERS, ClientType
from cosmodrome_server.errors import UnrecognizedClientType
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context, client_id_of
from cosmodrome_server.proxy.front import Call


def notify_client_termination(
    context: Context, call: Call, request: rpc.NotifyClientTerminationRequest
) -> bytes:
    """Forget the client at once, and make visible again what was renewed for it.

    Its receives that wait are answered with nothing.

    It is forgotten also where the request's group is then refused, as the reference does.

    Raises:
        UnrecognizedClientType: It was not known, or is neither producer nor consumer.
        IllegalConsumerGroup: A consumer's group that is malformed.
    """
    client_id = client_id_of(call)
    context.waits.client_left(client_id)
    session = context.sessions.end(client_id)
    if session is None or not session.settings:
        raise UnrecognizedClientType("cannot find client settings for this client")
    if session.client_type in CONSUMERS:
        context.names.group(request.group.name)
    elif session.client_type is not ClientType.PRODUCER:
        raise UnrecognizedClientType(session.client_type.name)
    return status.OK
