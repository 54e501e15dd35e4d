"""Access rules: which entry decides about one request (ACL 2.0, protocol.md 2.4).

    user ──▶ policies of kind CUSTOM that fit ──▶ none? those of kind DEFAULT ──▶ none? denied
                        └── the most specific decides; of equal ones a denial

A policy fits when its resource, one of its actions and its networks fit. More specific is: a
named type before any, an exact name before a prefix before `*`, a longer prefix before a shorter.
The reference lets ALLOW win a tie although it promises the contrary; here DENY wins.
"""

import ipaddress
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from cosmodrome_server.errors import BadRequest


class ResourceType(StrEnum):
    """What a rule is about."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """What a request does; ALL in a rule stands for every one."""

    ALL = "all"
    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"


class Need(msgspec.Struct, frozen=True):
    """What a request needs: one of `actions` on a resource."""

    resource_type: ResourceType
    name: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        return f"{self.resource_type}:{self.name}"


class Policy(msgspec.Struct, frozen=True):
    """One rule of one user.

    Attributes:
        user: Whose.
        resource: As written: `Topic:orders`, `Group:bill*`, `Topic:*`, `*`.
        actions: What it speaks of.
        sources: Addresses and networks; empty for everywhere.
        is_denial: Denies instead of allows.
        is_default: Only looked at when no other rule of the user fits.
    """

    user: str
    resource: str
    actions: tuple[Action, ...]
    sources: tuple[str, ...] = ()
    is_denial: bool = False
    is_default: bool = False

    def __str__(self) -> str:
        word = "deny" if self.is_denial else "allow"
        where = f" from {', '.join(self.sources)}" if self.sources else ""
        return f"{word} {','.join(self.actions)} on {self.resource}{where}"


class Decision(msgspec.Struct, frozen=True):
    """The answer, and why."""

    is_allowed: bool
    reason: str


def parse_resource(text: str) -> tuple[ResourceType, str]:
    """Split `Type:name`; `*` alone is everything.

    Raises:
        BadRequest: No such type, or no name.
    """
    if text == "*":
        return ResourceType.ANY, "*"
    kind, colon, name = text.partition(":")
    known = {t.value.lower(): t for t in ResourceType}
    if not colon or kind.lower() not in known or not name:
        types = ", ".join(t.value for t in ResourceType)
        raise BadRequest(f"resource {text!r} is not * and not TYPE:NAME with TYPE of {types}")
    return known[kind.lower()], name


def parse_action(text: str) -> Action:
    """Read one action, in any case.

    Raises:
        BadRequest: No such action.
    """
    try:
        return Action(text.strip().lower())
    except ValueError:
        known = ", ".join(Action)
        raise BadRequest(f"there is no action {text!r}; there are {known}") from None


def check_sources(sources: Iterable[str]) -> None:
    """Refuse what is neither an address nor a network.

    Raises:
        BadRequest: Says which.
    """
    for source in sources:
        try:
            ipaddress.ip_network(source, strict=False)
        except ValueError:
            raise BadRequest(f"source {source!r} is neither an address nor a network") from None


def decide(policies: Iterable[Policy], need: Need, address: str) -> Decision:
    """Find the rule that decides about one need of one user."""
    fitting = [policy for policy in policies if _fits(policy, need, address)]
    custom = [policy for policy in fitting if not policy.is_default]
    candidates = custom or fitting
    if not candidates:
        return Decision(is_allowed=False, reason="no matched policies")
    chosen = max(candidates, key=_precedence)
    if chosen.is_denial:
        return Decision(is_allowed=False, reason=f"the decision is deny ({chosen})")
    return Decision(is_allowed=True, reason=str(chosen))


def _fits(policy: Policy, need: Need, address: str) -> bool:
    resource_type, pattern = parse_resource(policy.resource)
    return (
        resource_type in (ResourceType.ANY, need.resource_type)
        and _name_fits(pattern, need.name)
        and (Action.ALL in policy.actions or any(a in policy.actions for a in need.actions))
        and _source_fits(policy.sources, address)
    )


def _name_fits(pattern: str, name: str) -> bool:
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return pattern == name


def _source_fits(sources: tuple[str, ...], address: str) -> bool:
    if not sources:
        return True
    try:
        caller = ipaddress.ip_address(address)
    except ValueError:
        return False  # a unix socket has no address; a rule that names networks does not fit it
    return any(caller in ipaddress.ip_network(source, strict=False) for source in sources)


def _precedence(policy: Policy) -> tuple[bool, int, int, bool]:
    resource_type, pattern = parse_resource(policy.resource)
    exact = 2 if not pattern.endswith("*") else 1 if pattern != "*" else 0
    return (resource_type is not ResourceType.ANY, exact, len(pattern), policy.is_denial)
