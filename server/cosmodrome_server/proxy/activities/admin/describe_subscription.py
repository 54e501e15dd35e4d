"""DescribeSubscription: which client reads which topics."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import (
    client_info,
    consistent_groups,
    consumers,
    subscription_info,
    subscriptions,
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
    online = list(consumers(context, group, topic))
    consistent = consistent_groups(context, {session.group for session in online})
    for session in online:
        wanted = subscriptions(session)
        for name in session.topics:
            if not topic or name == topic:
                response.client_subscription_info.add(
                    client_info=client_info(session),
                    subscription_info=subscription_info(
                        session, name, wanted.get(name), consistent=session.group in consistent
                    ),
                )
    return response
