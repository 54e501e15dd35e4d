"""DeleteSubscription: forget that the clients of a group read a topic."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.errors import BadRequest, NotFound
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.activities.admin.clients import consumers
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def delete_subscription(
    context: Context, _call: Call, request: admin.DeleteSubscriptionRequest
) -> bytes:
    """Take the topic out of the settings of the group's clients; never deletes the group.

    A client that still wants it subscribes again with its next settings.

    Raises:
        BadRequest: Topic or group is missing.
        NotFound: Nobody of the group subscribes to the topic.
    """
    topic, group = request.topic.name, request.group.name
    if not topic or not group:
        raise BadRequest("the request must name a topic and a group")
    found = list(consumers(context, group, topic))
    if not found:
        raise NotFound(f"nobody of group {group} subscribes to topic {topic}")
    for session in found:
        context.sessions.unsubscribe(session, topic)
    return status.OK
