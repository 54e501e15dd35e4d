"""Users and their policies: kept in the broker's log, read from files at start.

Kept values (`Broker.keep`): `user/<name>` and `policies/<name>`, msgspec JSON. A secret is
encrypted with the key in `security.secret_key_file` (Fernet) where one is set, so that a stolen
data directory is no stolen secret; the key itself never enters the log.
"""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from cosmodrome_server.config import ConfigError, Security
from cosmodrome_server.errors import BadRequest, NotFound
from cosmodrome_server.proxy.security.policies import (
    Policy,
    check_sources,
    parse_action,
    parse_resource,
)

USER, POLICIES = "user/", "policies/"


class User(msgspec.Struct, frozen=True):
    """A user; `secret` is in the clear here and nowhere else."""

    name: str
    secret: str
    is_super: bool = False
    is_disabled: bool = False

    def __repr__(self) -> str:
        return f"User({self.name}, secret=***)"


class Keeper(Protocol):
    """What the directory needs of the broker."""

    def keep(self, key: str, value: bytes | None) -> None:
        """Remember a value, or forget it."""

    def kept(self, prefix: str) -> dict[str, bytes]:
        """All remembered values under a prefix."""


class Directory:
    """Every user and policy, in memory; changes go to the keeper."""

    def __init__(self, keeper: Keeper, settings: Security) -> None:
        self._keeper = keeper
        self._seal, self._open = _cipher(settings.secret_key_file)
        self._users: dict[str, User] = {}
        self._policies: dict[str, tuple[Policy, ...]] = {}
        for value in keeper.kept(USER).values():
            user = msgspec.json.decode(value, type=User)
            self._users[user.name] = msgspec.structs.replace(user, secret=self._open(user.secret))
        for value in keeper.kept(POLICIES).values():
            found = msgspec.json.decode(value, type=tuple[Policy, ...])
            if found:
                self._policies[found[0].user] = found
        self._read_settings(settings)

    def user(self, name: str) -> User | None:
        """Find a user."""
        return self._users.get(name)

    def users(self) -> list[User]:
        """All users by name."""
        return [self._users[name] for name in sorted(self._users)]

    def policies(self, user: str = "") -> list[Policy]:
        """The policies of a user, or of all."""
        if user:
            return list(self._policies.get(user, ()))
        return [policy for name in sorted(self._policies) for policy in self._policies[name]]

    def put_user(self, user: User) -> None:
        """Create a user, or change one; an empty secret keeps the one it has.

        Raises:
            BadRequest: No name, or a new user without a secret.
        """
        known = self._users.get(user.name)
        secret = user.secret or (known.secret if known else "")
        if not user.name or not secret:
            raise BadRequest("a user needs a name and a secret")
        user = msgspec.structs.replace(user, secret=secret)
        stored = msgspec.structs.replace(user, secret=self._seal(secret))
        self._keeper.keep(USER + user.name, msgspec.json.encode(stored))
        self._users[user.name] = user

    def delete_user(self, name: str) -> None:
        """Delete a user and its policies.

        Raises:
            NotFound: There is none.
        """
        if name not in self._users:
            raise NotFound(f"there is no user {name}")
        # On a full disk neither is gone: what is forgotten here only would be back at a start.
        self._keeper.keep(POLICIES + name, None)
        self._keeper.keep(USER + name, None)
        self._policies.pop(name, None)
        del self._users[name]

    def put_policy(self, policy: Policy) -> None:
        """Add a policy; one of the same user, resource and decision is replaced.

        Raises:
            BadRequest: A resource, action or source that does not read.
            NotFound: There is no such user.
        """
        parse_resource(policy.resource)
        check_sources(policy.sources)
        if not policy.actions:
            raise BadRequest("a policy needs an action")
        if policy.user not in self._users:
            raise NotFound(f"there is no user {policy.user}")
        others = tuple(
            other
            for other in self._policies.get(policy.user, ())
            if (other.resource, other.is_denial, other.is_default)
            != (policy.resource, policy.is_denial, policy.is_default)
        )
        self._set_policies(policy.user, (*others, policy))

    def delete_policy(self, user: str, resource: str) -> None:
        """Delete the policies of a user on a resource.

        Raises:
            NotFound: There is none.
        """
        known = self._policies.get(user, ())
        kept = tuple(policy for policy in known if policy.resource != resource)
        if len(kept) == len(known):
            raise NotFound(f"{user} has no policy on {resource}")
        self._set_policies(user, kept)

    def _set_policies(self, user: str, policies: tuple[Policy, ...]) -> None:
        value = msgspec.json.encode(policies) if policies else None
        self._keeper.keep(POLICIES + user, value)
        if policies:
            self._policies[user] = policies
        else:
            self._policies.pop(user, None)

    def _read_settings(self, settings: Security) -> None:
        if settings.admin_user:
            self._users[settings.admin_user] = User(
                settings.admin_user, settings.admin_secret, is_super=True
            )
        for table in _tables(settings.users, "user"):
            name = str(table.get("name", ""))
            self._users[name] = User(
                name,
                str(table.get("secret", "")),
                is_super=table.get("super") is True,
                is_disabled=table.get("disabled") is True,
            )
        for table in _tables(settings.policies, "policy"):
            policy = _policy_of(table, settings.policies)
            known = self._policies.get(policy.user, ())
            self._policies[policy.user] = (*(p for p in known if p != policy), policy)


def _tables(file: str, name: str) -> list[dict[str, object]]:
    """Read `[[user]]` or `[[policy]]` tables of a TOML file; none for no file."""
    if not file:
        return []
    import tomllib  # noqa: PLC0415 - 5 ms that only those who have a file pay

    try:
        content = tomllib.loads(Path(file).read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    tables = content.get(name, [])
    if set(content) - {name} or not isinstance(tables, list):
        raise ConfigError(f"{file} holds [[{name}]] tables and nothing else")
    return tables


def _policy_of(table: dict[str, object], file: str) -> Policy:
    actions, sources = table.get("actions", []), table.get("sources", [])
    try:
        assert isinstance(actions, list)
        assert isinstance(sources, list)
        policy = Policy(
            user=str(table["user"]),
            resource=str(table["resource"]),
            actions=tuple(parse_action(str(action)) for action in actions),
            sources=tuple(map(str, sources)),
            is_denial=table.get("decision", "allow") == "deny",
            is_default=table.get("default") is True,
        )
        parse_resource(policy.resource)
        check_sources(policy.sources)
    except (AssertionError, KeyError, BadRequest) as error:
        raise ConfigError(f"{file}: policy {table} does not read: {error}") from error
    return policy


def _cipher(key_file: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """How secrets are written and read: encrypted with the key of a file, or as they are."""
    if not key_file:
        return (lambda secret: secret), (lambda stored: stored)
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - 30 ms few starts need

    try:
        key = Path(key_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read security.secret_key_file: {error}") from error
    # Any text may be the key: its digest has the form Fernet wants.
    fernet = Fernet(base64.urlsafe_b64encode(hashlib.sha256(key).digest()))

    def opened(stored: str) -> str:
        try:
            return fernet.decrypt(stored.encode()).decode()
        except InvalidToken as error:
            raise ConfigError(
                "security.secret_key_file is not the key the users' secrets were kept with"
            ) from error

    return (lambda secret: fernet.encrypt(secret.encode()).decode()), opened
