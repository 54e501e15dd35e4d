"""ListSubscription: which groups read which topics."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.model.topic import RETRY_PREFIX
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import (
    consistent_groups,
    consumers,
    subscription_info,
    subscriptions,
    topic_or_group,
)
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def list_subscription(
    context: Context, _call: Call, request: admin.ListSubscriptionRequest
) -> admin.ListSubscriptionResponse:
    """List each group and topic once, also those whose consumers are gone; retry topics never.

    Raises:
        BadRequest: Neither topic nor group.
    """
    topic, group = topic_or_group(request)
    found: dict[tuple[str, str], admin.SubscriptionInfo] = {}
    online = list(consumers(context, group, topic))
    consistent = consistent_groups(context, {session.group for session in online})
    for session in online:
        for name in session.topics:
            key = session.group, name
            if key in found or (topic and name != topic) or name.startswith(RETRY_PREFIX):
                continue
            wanted = subscriptions(session).get(name)
            found[key] = subscription_info(
                session, name, wanted, consistent=session.group in consistent
            )
    topics = context.broker.topics_by_group()
    for name in [group] if group else [one.name for one in context.broker.groups()]:
        for read in topics.get(name, ()):
            if not topic or read == topic:
                found.setdefault((name, read), _offline(name, read))
    return admin.ListSubscriptionResponse(
        status=status.OK_STATUS, subscription_info=[found[key] for key in sorted(found)]
    )


def _offline(group: str, topic: str) -> admin.SubscriptionInfo:
    return admin.SubscriptionInfo(
        group=pb.Resource(name=group),
        topic=pb.Resource(name=topic),
        online=False,
        message_model=admin.CLUSTERING,
        subscription_consistency=True,
    )
