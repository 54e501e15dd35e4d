"""The guard: who calls, may they, and how fast may they be wrong.

    headers ──▶ back-off? ──▶ signature ──▶ user ──▶ policies, one decision per need

A wrong signature costs an HMAC; someone who guesses is slowed to `failures_per_s` per
(key, address) and ten times that per address, and refused without an HMAC beyond, so that
callers with the right secret do not feel it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from cosmodrome_server.clock import Clock
from cosmodrome_server.config import Security
from cosmodrome_server.errors import OverloadedError, Unauthorized
from cosmodrome_server.proxy.security.directory import Directory, User
from cosmodrome_server.proxy.security.policies import Decision, Need, decide
from cosmodrome_server.proxy.security.signature import Credential, is_genuine, is_recent, parse

# Addresses remembered at most; a flood from more of them forgets the oldest.
FAILURES_REMEMBERED = 10_000


class _Failures(msgspec.Struct):
    """Failures of one caller in the current second."""

    second: int
    count: int


class Guard:
    """Asked once per call; raises, or lets pass."""

    def __init__(self, directory: Directory, settings: Security, clock: Clock) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._open = frozenset(settings.open_requests)
        self._failures: dict[str, _Failures] = {}

    @property
    def directory(self) -> Directory:
        """Users and policies."""
        return self._directory

    def admit(
        self, request_name: str, headers: Mapping[str, str], peer: str, needs: Sequence[Need]
    ) -> None:
        """Let one call pass.

        Args:
            request_name: Full name of the request message, for `security.open_requests`.
            headers: Metadata.
            peer: `ip:port`.
            needs: What the call needs; all must be granted.

        Raises:
            Unauthorized: Not who it says, or may not.
            OverloadedError: Too many wrong signatures from there.
        """
        if not self._settings.authentication or request_name in self._open:
            return
        address = _address(peer)
        user = self._authenticated(headers, address)
        if not self._settings.authorization or user.is_super:
            return
        for need in needs:
            decision = decide(self._directory.policies(user.name), need, address)
            if not decision.is_allowed:
                raise Unauthorized(
                    f"User:{user.name} has no permission to access {need} from {address}, "
                    f"{decision.reason}"
                )

    def explain(self, user_name: str, need: Need, address: str) -> Decision:
        """Say how a need of a user would be decided."""
        user = self._directory.user(user_name)
        if user is None:
            return Decision(is_allowed=False, reason=f"User:{user_name} is not found")
        if user.is_disabled:
            return Decision(is_allowed=False, reason=f"User:{user_name} is disabled")
        if user.is_super:
            return Decision(is_allowed=True, reason=f"User:{user_name} is super")
        return decide(self._directory.policies(user_name), need, address)

    def _authenticated(self, headers: Mapping[str, str], address: str) -> User:
        header = headers.get("authorization", "")
        if not header:
            raise Unauthorized("username cannot be null")
        date = headers.get("x-mq-date-time", "")
        if not date:
            raise Unauthorized("datetime is null")
        credential = parse(header)
        callers = (address, f"{credential.access_key}@{address}")
        self._refuse_guessers(callers)
        try:
            return self._verified(credential, date)
        except Unauthorized:
            self._count_failure(callers)
            raise

    def _verified(self, credential: Credential, date: str) -> User:
        name = credential.access_key
        user = self._directory.user(name)
        if user is None:
            raise Unauthorized(f"User:{name} is not found")
        if user.is_disabled:
            raise Unauthorized(f"User:{name} is disabled")
        if not is_genuine(credential, user.secret, date):
            raise Unauthorized("check signature failed")
        window_s = self._settings.date_window_s
        if window_s and not is_recent(date, self._clock.now_ms(), window_s):
            raise Unauthorized(
                f"x-mq-date-time {date} is more than {window_s} s away (security.date_window_s)"
            )
        return user

    def _refuse_guessers(self, callers: tuple[str, str]) -> None:
        second = self._clock.monotonic_ms() // 1000
        for caller, factor in zip(callers, (10, 1), strict=True):
            failures = self._failures.get(caller)
            most = self._settings.failures_per_s * factor
            if failures and failures.second == second and failures.count >= most:
                raise OverloadedError(
                    f"more than {most} failed signatures in a second (security.failures_per_s), "
                    "try again in 1 s",
                    "security.failures_per_s",
                )

    def _count_failure(self, callers: tuple[str, str]) -> None:
        second = self._clock.monotonic_ms() // 1000
        for caller in callers:
            failures = self._failures.pop(caller, None)
            if failures is None or failures.second != second:
                failures = _Failures(second, 0)
            failures.count += 1
            self._failures[caller] = failures  # youngest last
        while len(self._failures) > FAILURES_REMEMBERED:
            del self._failures[next(iter(self._failures))]


def _address(peer: str) -> str:
    """The address of `1.2.3.4:5` or `[::1]:5`; the whole text for a unix socket."""
    return peer.rpartition(":")[0].strip("[]") or peer
