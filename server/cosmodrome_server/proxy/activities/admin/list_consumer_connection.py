"""ListConsumerConnection: which clients of a group are there."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import client_info, consumers
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def list_consumer_connection(
    context: Context, _call: Call, request: admin.ListConsumerConnectionRequest
) -> admin.ListConsumerConnectionResponse:
    """List the consumers of a group, of one topic if it is named; maybe none.

    Raises:
        IllegalConsumerGroup
    """
    group = context.names.group(request.group.name)
    return admin.ListConsumerConnectionResponse(
        status=status.OK_STATUS,
        client_info=[client_info(one) for one in consumers(context, group, request.topic.name)],
    )
