"""Which rule decides."""

import pytest

from cosmodrome_server.errors import BadRequest
from cosmodrome_server.proxy.security.policies import (
    Action,
    Need,
    Policy,
    ResourceType,
    check_sources,
    decide,
    parse_action,
    parse_resource,
)

SEND = Need(ResourceType.TOPIC, "orders", (Action.PUB,))
HOME = "10.1.2.3"


def rule(
    resource: str,
    actions: str = "all",
    *,
    deny: bool = False,
    default: bool = False,
    source: str = "",
) -> Policy:
    return Policy(
        "u",
        resource,
        tuple(map(parse_action, actions.split(","))),
        tuple(filter(None, [source])),
        is_denial=deny,
        is_default=default,
    )


def allowed(*policies: Policy, need: Need = SEND, address: str = HOME) -> bool:
    return decide(policies, need, address).is_allowed


def test_without_a_fitting_rule_the_answer_is_no() -> None:
    assert not allowed()
    assert not allowed(rule("Topic:other"))
    assert not allowed(rule("Group:orders"))
    assert not allowed(rule("Topic:orders", "sub"))
    assert decide([], SEND, HOME).reason == "no matched policies"


@pytest.mark.parametrize("resource", ["Topic:orders", "topic:orders", "Topic:ord*", "Topic:*", "*"])
def test_exact_names_prefixes_and_stars_fit(resource: str) -> None:
    assert allowed(rule(resource, "pub"))


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("*", "Topic:*"),
        ("Topic:*", "Topic:o*"),
        ("Topic:o*", "Topic:ord*"),
        ("Topic:ord*", "Topic:orders"),
    ],
)
def test_the_more_specific_rule_decides(wide: str, narrow: str) -> None:
    assert allowed(rule(wide, deny=True), rule(narrow))
    assert not allowed(rule(wide), rule(narrow, deny=True))


def test_a_denial_wins_a_tie() -> None:
    assert not allowed(rule("Topic:orders"), rule("Topic:orders", deny=True))
    assert not allowed(rule("Topic:orders", deny=True), rule("Topic:orders"))


def test_default_rules_count_only_when_no_other_fits() -> None:
    default = rule("Topic:orders", default=True)
    assert allowed(default)
    assert not allowed(default, rule("Topic:*", deny=True))


def test_rules_bind_to_networks() -> None:
    at_home = rule("Topic:orders", source="10.0.0.0/8")
    assert allowed(at_home)
    assert not allowed(at_home, address="192.168.0.1")
    assert not allowed(at_home, address="unix:socket")
    assert allowed(rule("Topic:orders", source="10.1.2.3"))


def test_one_of_several_actions_is_enough() -> None:
    route = Need(ResourceType.TOPIC, "orders", (Action.PUB, Action.SUB))
    assert allowed(rule("Topic:orders", "sub"), need=route)


@pytest.mark.parametrize("text", ["", "orders", "Queue:orders", "Topic:"])
def test_a_resource_that_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_resource(text)


def test_unknown_actions_and_sources_are_refused() -> None:
    with pytest.raises(BadRequest, match="there is no action 'fly'"):
        parse_action("fly")
    with pytest.raises(BadRequest, match="neither an address nor a network"):
        check_sources(["everywhere"])
