"""What several RPCs say about clients and their subscriptions."""

from collections.abc import Iterator

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.core.client_session import CONSUMERS, ClientSession
from cosmodrome_server.errors import BadRequest, NotFound
from cosmodrome_server.proxy.context import Context


def settings_of(session: ClientSession) -> pb.Settings:
    """The settings a client sent."""
    return pb.Settings.FromString(session.settings)


def client_info(session: ClientSession) -> admin.ClientInfo:
    """Who a client is and where it connects from."""
    agent = settings_of(session).user_agent
    return admin.ClientInfo(
        client_id=session.client_id,
        version=agent.version,
        language=pb.Language.Name(agent.language),
        hostname=agent.hostname,
        egress_ip=session.peer.rpartition(":")[0],
        message_model=admin.CLUSTERING,
    )


def consumers(context: Context, group: str = "", topic: str = "") -> Iterator[ClientSession]:
    """Consumers of a group, of a topic, of both; "" for any."""
    known = context.sessions.known
    for session in known.members_of(group) if group else known:
        if session.client_type in CONSUMERS and (not topic or topic in session.topics):
            yield session


def subscriptions(session: ClientSession) -> dict[str, pb.FilterExpression]:
    """Topic → filter of one consumer."""
    entries = settings_of(session).subscription.subscriptions
    return {entry.topic.name: entry.expression for entry in entries}


def consistent_groups(context: Context, groups: set[str]) -> set[str]:
    """Those of the groups whose members all subscribe to the same."""
    seen: dict[str, set[tuple[tuple[str, bytes], ...]]] = {group: set() for group in groups}
    for session in consumers(context):
        if session.group in seen:
            wanted = subscriptions(session).items()
            seen[session.group].add(
                tuple(sorted((topic, one.SerializeToString()) for topic, one in wanted))
            )
    return {group for group, different in seen.items() if len(different) <= 1}


def subscription_info(
    session: ClientSession, topic: str, wanted: pb.FilterExpression | None, *, consistent: bool
) -> admin.SubscriptionInfo:
    """One subscription of one consumer that is there."""
    return admin.SubscriptionInfo(
        group=pb.Resource(name=session.group),
        topic=pb.Resource(name=topic),
        expression=wanted,
        online=True,
        message_model=admin.CLUSTERING,
        subscription_consistency=consistent,
    )


def topic_or_group(
    request: admin.ListSubscriptionRequest | admin.DescribeSubscriptionRequest,
) -> tuple[str, str]:
    """The topic and the group a request names, "" for one that is left out.

    Raises:
        BadRequest: Neither.
    """
    if not request.topic.name and not request.group.name:
        raise BadRequest("the request names neither a topic nor a group")
    return request.topic.name, request.group.name


def consumer(context: Context, client_id: str, group: str) -> ClientSession:
    """One consumer that is there.

    Raises:
        BadRequest: No client id.
        NotFound: There is none of this id in the group.
    """
    if not client_id:
        raise BadRequest("the request names no client_id")
    session = context.sessions.known.get(client_id)
    if session is None or (group and session.group != group):
        raise NotFound(f"client {client_id} of group {group or 'any'} is not connected")
    return session
