"""Users and policies (PutUser … CheckAccess).

Where authentication is off they can be prepared; they bind from the start that turns it on.
"""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.security.directory import User
from cosmodrome_server.proxy.security.policies import (
    Need,
    Policy,
    parse_action,
    parse_resource,
)
from cosmodrome_server.proxy.status import OK_STATUS


def put_user(context: Context, _call: Call, request: wire.PutUserRequest) -> wire.PutUserResponse:
    """Create a user, or change one.

    Raises:
        BadRequest: No name, or a new user without a secret.
    """
    asked = request.user
    user = User(asked.name, asked.secret, is_super=asked.super, is_disabled=asked.disabled)
    context.access.directory.put_user(user)
    return wire.PutUserResponse(status=OK_STATUS)


def delete_user(
    context: Context, _call: Call, request: wire.DeleteUserRequest
) -> wire.DeleteUserResponse:
    """Delete a user and its policies.

    Raises:
        NotFound: There is none.
    """
    context.access.directory.delete_user(request.name)
    return wire.DeleteUserResponse(status=OK_STATUS)


def list_users(
    context: Context, _call: Call, _request: wire.ListUsersRequest
) -> wire.ListUsersResponse:
    """List users without their secrets."""
    response = wire.ListUsersResponse(status=OK_STATUS)
    for user in context.access.directory.users():
        response.users.add(name=user.name, super=user.is_super, disabled=user.is_disabled)
    return response


def put_policy(
    context: Context, _call: Call, request: wire.PutPolicyRequest
) -> wire.PutPolicyResponse:
    """Add a policy.

    Raises:
        BadRequest: A resource, action or source that does not read.
        NotFound: There is no such user.
    """
    asked = request.policy
    policy = Policy(
        user=asked.user,
        resource=asked.resource,
        actions=tuple(map(parse_action, asked.actions)),
        sources=tuple(asked.sources),
        is_denial=asked.deny,
        is_default=asked.is_default,
    )
    context.access.directory.put_policy(policy)
    return wire.PutPolicyResponse(status=OK_STATUS)


def delete_policy(
    context: Context, _call: Call, request: wire.DeletePolicyRequest
) -> wire.DeletePolicyResponse:
    """Delete the policies of a user on a resource.

    Raises:
        NotFound: There is none.
    """
    context.access.directory.delete_policy(request.user, request.resource)
    return wire.DeletePolicyResponse(status=OK_STATUS)


def list_policies(
    context: Context, _call: Call, request: wire.ListPoliciesRequest
) -> wire.ListPoliciesResponse:
    """List policies, of one user or of all."""
    response = wire.ListPoliciesResponse(status=OK_STATUS)
    for policy in context.access.directory.policies(request.user):
        response.policies.add(
            user=policy.user,
            resource=policy.resource,
            actions=policy.actions,
            sources=policy.sources,
            deny=policy.is_denial,
            is_default=policy.is_default,
        )
    return response


def check_access(
    context: Context, _call: Call, request: wire.CheckAccessRequest
) -> wire.CheckAccessResponse:
    """Explain how a request would be decided.

    Raises:
        BadRequest: An action or resource that does not read.
    """
    resource_type, name = parse_resource(request.resource)
    need = Need(resource_type, name, (parse_action(request.action),))
    decision = context.access.explain(request.user, need, request.source or "127.0.0.1")
    return wire.CheckAccessResponse(
        status=OK_STATUS, allowed=decision.is_allowed, reason=decision.reason
    )
