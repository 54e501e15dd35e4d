"""DescribeSubscription: which client reads which topics."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import (
    client_info,
    consumers,
    is_consistent,
    subscription_info,
    topic_or_group,
)
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def describe_subscription(
    context: Context, _call: Call, request: admin.DescribeSubscriptionRequest
) -> admin.DescribeSubscriptionResponse:
    """Describe each subscription of each connected client.

    Raises:
        BadRequest: Neither topic nor group.
    """
    topic, group = topic_or_group(request)
    response = admin.DescribeSubscriptionResponse(status=status.OK_STATUS)
    for session in consumers(context, group, topic):
        consistent = is_consistent(list(consumers(context, session.group)))
        for name in session.topics:
            if not topic or name == topic:
                response.client_subscription_info.add(
                    client_info=client_info(session),
                    subscription_info=subscription_info(
                        session, name, online=True, consistent=consistent
                    ),
                )
    return response
