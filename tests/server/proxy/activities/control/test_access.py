"""PutUser … CheckAccess: users and rules as operators make them."""

from typing import Any

import pytest
from google.protobuf.message import Message

from cosmodrome_proto import control_pb2 as control
from cosmodrome_proto import definition_pb2 as pb
from tests.support.proxy_world import ProxyWorld, run


def put_user(**settings: Any) -> control.PutUserRequest:
    return control.PutUserRequest(user=control.User(**settings))


def put_policy(**settings: Any) -> control.PutPolicyRequest:
    chosen = {"user": "billing", "resource": "Topic:orders", "actions": ["Pub"], **settings}
    return control.PutPolicyRequest(policy=control.Policy(**chosen))


def test_users_are_listed_without_their_secrets_and_deleted_with_their_policies() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert await world.code("PutUser", put_user(name="billing", secret="s3cret")) == pb.OK
        assert await world.code("PutUser", put_user(name="root", secret="x", super=True)) == pb.OK
        changed = put_user(name="billing", disabled=True)
        assert await world.code("PutUser", changed) == pb.OK, "its secret stays"
        told = (await world.call("ListUsers", control.ListUsersRequest())).users
        assert [(one.name, one.secret, one.super, one.disabled) for one in told] == [
            ("billing", "", False, True),
            ("root", "", True, False),
        ]
        assert await world.code("PutPolicy", put_policy()) == pb.OK
        gone = control.DeleteUserRequest(name="billing")
        assert await world.code("DeleteUser", gone) == pb.OK
        told = (await world.call("ListPolicies", control.ListPoliciesRequest())).policies
        assert len(told) == 0

    run(scenario)


def test_a_policy_is_told_as_it_was_put_and_explains_decisions() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.call("PutUser", put_user(name="billing", secret="s"))
        put = put_policy(sources=["10.0.0.0/8"])
        assert await world.code("PutPolicy", put) == pb.OK
        listing = control.ListPoliciesRequest(user="billing")
        (told,) = (await world.call("ListPolicies", listing)).policies
        assert (told.user, told.resource, list(told.sources)) == (
            *("billing", "Topic:orders", ["10.0.0.0/8"]),
        )
        assert [action.lower() for action in told.actions] == ["pub"]
        for source, is_allowed in (("10.1.2.3", True), ("192.0.2.1", False)):
            question = control.CheckAccessRequest(
                user="billing", action="Pub", resource="Topic:orders", source=source
            )
            answer = await world.call("CheckAccess", question)
            assert answer.allowed is is_allowed
            assert answer.reason
        denial = put_policy(deny=True)
        assert await world.code("PutPolicy", denial) == pb.OK
        question = control.CheckAccessRequest(
            user="billing", action="Pub", resource="Topic:orders", source="10.1.2.3"
        )
        assert not (await world.call("CheckAccess", question)).allowed, "a denial wins"
        gone = control.DeletePolicyRequest(user="billing", resource="Topic:orders")
        assert await world.code("DeletePolicy", gone) == pb.OK
        assert await world.code("DeletePolicy", gone) == pb.NOT_FOUND

    run(scenario)


@pytest.mark.parametrize(
    ("name", "request_", "code", "words"),
    [
        ("PutUser", put_user(secret="s"), pb.BAD_REQUEST, "a name and a secret"),
        ("PutUser", put_user(name="new"), pb.BAD_REQUEST, "a name and a secret"),
        ("DeleteUser", control.DeleteUserRequest(name="x"), pb.NOT_FOUND, "no user x"),
        ("PutPolicy", put_policy(user="x"), pb.NOT_FOUND, "no user x"),
        ("PutPolicy", put_policy(actions=[]), pb.BAD_REQUEST, "needs an action"),
        ("PutPolicy", put_policy(actions=["Fly"]), pb.BAD_REQUEST, "no action 'Fly'; there are"),
        ("PutPolicy", put_policy(resource="orders"), pb.BAD_REQUEST, "not TYPE:NAME"),
        ("PutPolicy", put_policy(sources=["here"]), pb.BAD_REQUEST, "neither an address nor"),
        (
            "DeletePolicy",
            control.DeletePolicyRequest(user="known", resource="Topic:a"),
            *(pb.NOT_FOUND, "known has no policy on Topic:a"),
        ),
        (
            "CheckAccess",
            control.CheckAccessRequest(user="known", action="Sub", resource="?"),
            *(pb.BAD_REQUEST, "'?' is not * and not TYPE:NAME"),
        ),
        (
            "CheckAccess",
            control.CheckAccessRequest(user="known", action="", resource="*"),
            *(pb.BAD_REQUEST, "there is no action ''"),
        ),
    ],
)
def test_what_does_not_read_is_refused_with_what_would(
    name: str, request_: Message, code: int, words: str
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.call("PutUser", put_user(name="billing", secret="s"))
        answer = await world.call(name, request_)
        assert answer.status.code == code
        assert words in answer.status.message

    run(scenario)


def test_a_server_says_what_it_is() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.context.front = "gate"
        told = await world.call("DescribeServer", control.DescribeServerRequest())
        assert (told.name, told.front, told.durability) == ("cosmodrome", "gate", "sync")
        assert told.started.ToMilliseconds() == world.context.started_ms
        assert dict(told.figures) == {"topics": 7, "groups": 3}

    run(scenario)
