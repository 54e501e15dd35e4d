"""GetConsumerRunningInfo: what the server knows of one consumer."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import (
    consumer,
    settings_of,
    subscriptions,
)
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def get_consumer_running_info(
    context: Context, _call: Call, request: admin.GetConsumerRunningInfoRequest
) -> admin.GetConsumerRunningInfoResponse:
    """Return subscriptions and client properties; the rest a gRPC client does not tell.

    Raises:
        BadRequest: No client id.
        NotFound: The client is not there.
    """
    session = consumer(context, request.client_id, request.group.name)
    sent = settings_of(session)
    info = admin.ConsumerRunningInfo(
        properties={
            **sent.client_properties,
            "client_type": pb.ClientType.Name(pb.ClientType.ValueType(session.client_type)),
            "group": session.group,
            "peer": session.peer,
        }
    )
    for topic, wanted in subscriptions(session).items():
        info.subscriptions[topic].CopyFrom(wanted)
    return admin.GetConsumerRunningInfoResponse(status=status.OK_STATUS, consumer_running_info=info)
