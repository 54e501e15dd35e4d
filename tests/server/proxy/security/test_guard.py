"""Who gets past the guard, and how guessing is slowed."""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from cosmodrome_server.config import ConfigError, Security
from cosmodrome_server.errors import (
    BadRequest,
    NotFound,
    OverloadedError,
    StoreFull,
    Unauthorized,
)
from cosmodrome_server.proxy.security.directory import Directory, User
from cosmodrome_server.proxy.security.guard import Guard
from cosmodrome_server.proxy.security.policies import Action, Need, Policy, ResourceType

DATE = "20260102T030405Z"
NEED = Need(ResourceType.TOPIC, "orders", (Action.PUB,))
NAME = "apache.rocketmq.v2.SendMessageRequest"


class Kept(dict[str, bytes]):
    """A keeper in memory."""

    def keep(self, key: str, value: bytes | None) -> None:
        if value is None:
            self.pop(key, None)
        else:
            self[key] = value

    def kept(self, prefix: str) -> dict[str, bytes]:
        return {key: value for key, value in self.items() if key.startswith(prefix)}


class StoppedClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.ms = 1_767_323_045_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def signed(name: str, secret: str) -> Mapping[str, str]:
    signature = hmac.new(secret.encode(), DATE.encode(), hashlib.sha1).hexdigest()
    value = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": value, "x-mq-date-time": DATE}


def guarded(
    *, date_window_s: int = 0, failures_per_s: int = 10, open_requests: tuple[str, ...] = ()
) -> tuple[Guard, StoppedClock]:
    chosen = Security(
        authentication=True,
        authorization=True,
        date_window_s=date_window_s,
        failures_per_s=failures_per_s,
        open_requests=list(open_requests),
    )
    directory = Directory(Kept(), chosen)
    directory.put_user(User("root", "r", is_super=True))
    directory.put_user(User("ann", "a"))
    directory.put_user(User("bob", "b", is_disabled=True))
    directory.put_policy(Policy("ann", "Topic:orders", (Action.PUB,)))
    clock = StoppedClock()
    return Guard(directory, chosen, clock), clock


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: directory.put_user(User("new", "n")),
        lambda directory: directory.put_user(User("ann", "other", is_disabled=True)),
        lambda directory: directory.delete_user("ann"),
        lambda directory: directory.put_policy(Policy("ann", "Topic:more", (Action.PUB,))),
        lambda directory: directory.delete_policy("ann", "Topic:orders"),
    ],
    ids=["new", "changed", "deleted", "policy", "no policy"],
)
def test_what_cannot_be_kept_is_not_so_until_the_next_start_either(
    change: Callable[[Directory], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    directory = guarded()[0].directory
    before = (directory.users(), directory.policies())
    with monkeypatch.context() as patch:
        patch.setattr(Kept, "keep", refused)
        with pytest.raises(StoreFull):
            change(directory)
    assert (directory.users(), directory.policies()) == before
    change(directory)
    assert (directory.users(), directory.policies()) != before


def refusal(guard: Guard, headers: Mapping[str, str], need: Need = NEED) -> str:
    with pytest.raises(Unauthorized) as caught:
        guard.admit(NAME, headers, "10.0.0.1:999", [need])
    return str(caught.value)


def test_the_right_secret_and_a_fitting_policy_pass() -> None:
    guard, _ = guarded()
    guard.admit(NAME, signed("ann", "a"), "10.0.0.1:999", [NEED])
    guard.admit(NAME, signed("root", "r"), "[::1]:999", [NEED])


def test_each_refusal_says_why() -> None:
    guard, _ = guarded()
    assert refusal(guard, {}) == "username cannot be null"
    assert refusal(guard, {"authorization": "x"}) == "datetime is null"
    assert refusal(guard, signed("eve", "e")) == "User:eve is not found"
    assert refusal(guard, signed("bob", "b")) == "User:bob is disabled"
    assert refusal(guard, signed("ann", "wrong")) == "check signature failed"
    other = Need(ResourceType.TOPIC, "bills", (Action.PUB,))
    assert refusal(guard, signed("ann", "a"), other) == (
        "User:ann has no permission to access Topic:bills from 10.0.0.1, no matched policies"
    )


def test_with_authentication_off_everybody_passes() -> None:
    guard = Guard(Directory(Kept(), Security()), Security(), StoppedClock())
    guard.admit(NAME, {}, "10.0.0.1:1", [NEED])


def test_open_requests_need_no_signature() -> None:
    guard, _ = guarded(open_requests=(NAME,))
    guard.admit(NAME, {}, "10.0.0.1:1", [NEED])


def test_a_date_outside_the_window_is_refused_where_one_is_set() -> None:
    guard, clock = guarded(date_window_s=900)
    guard.admit(NAME, signed("ann", "a"), "10.0.0.1:999", [NEED])
    clock.ms += 901_000
    assert "security.date_window_s" in refusal(guard, signed("ann", "a"))


def test_guessing_is_slowed_per_key_and_address_and_forgotten_after_a_second() -> None:
    guard, clock = guarded(failures_per_s=3)
    for _ in range(3):
        refusal(guard, signed("ann", "wrong"))
    with pytest.raises(OverloadedError, match=r"security\.failures_per_s"):
        guard.admit(NAME, signed("ann", "a"), "10.0.0.1:999", [NEED])
    guard.admit(NAME, signed("ann", "a"), "10.0.0.2:999", [NEED])
    guard.admit(NAME, signed("root", "r"), "10.0.0.1:999", [NEED])
    clock.ms += 1_000
    guard.admit(NAME, signed("ann", "a"), "10.0.0.1:999", [NEED])


def test_explanations_name_the_deciding_rule() -> None:
    guard, _ = guarded()
    assert guard.explain("ann", NEED, "1.1.1.1").reason == "allow pub on Topic:orders"
    assert guard.explain("root", NEED, "1.1.1.1").is_allowed
    assert not guard.explain("bob", NEED, "1.1.1.1").is_allowed
    assert not guard.explain("eve", NEED, "1.1.1.1").is_allowed


def test_users_and_policies_survive_and_secrets_are_sealed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key from outside")
    kept = Kept()
    settings = Security(secret_key_file=str(key))
    first = Directory(kept, settings)
    first.put_user(User("ann", "hunter2"))
    first.put_policy(Policy("ann", "Topic:*", (Action.SUB,)))
    assert b"hunter2" not in kept["user/ann"]
    again = Directory(kept, settings)
    user = again.user("ann")
    assert user is not None
    assert user.secret == "hunter2"
    assert again.policies("ann") == first.policies("ann")
    assert "hunter2" not in repr(user)
    key.write_text("another key")
    with pytest.raises(ConfigError, match="is not the key"):
        Directory(kept, settings)


def test_users_and_policies_come_from_files_too(tmp_path: Path) -> None:
    users, policies = tmp_path / "users.toml", tmp_path / "policies.toml"
    users.write_text('[[user]]\nname = "ann"\nsecret = "a"\n')
    policies.write_text('[[policy]]\nuser = "ann"\nresource = "Topic:orders"\nactions = ["Pub"]\n')
    settings = Security(
        users=str(users), policies=str(policies), admin_user="root", admin_secret="r"
    )
    directory = Directory(Kept(), settings)
    assert [user.name for user in directory.users()] == ["ann", "root"]
    assert directory.policies() == [Policy("ann", "Topic:orders", (Action.PUB,))]
    policies.write_text('[[policy]]\nuser = "ann"\nresource = "Nothing"\nactions = ["pub"]\n')
    with pytest.raises(ConfigError, match="does not read"):
        Directory(Kept(), settings)


def test_what_does_not_exist_cannot_be_changed_or_deleted() -> None:
    directory = Directory(Kept(), Security())
    with pytest.raises(BadRequest, match="a name and a secret"):
        directory.put_user(User("ann", ""))
    with pytest.raises(NotFound):
        directory.delete_user("ann")
    with pytest.raises(NotFound):
        directory.put_policy(Policy("ann", "*", (Action.ALL,)))
    with pytest.raises(NotFound):
        directory.delete_policy("ann", "*")
