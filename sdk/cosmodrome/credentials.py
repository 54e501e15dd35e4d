"""Who the client is: asked for before every call, so that rotating keys just work."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cosmodrome.errors import ConfigurationError, CosmodromeError


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key with its secret, and for temporary ones a session token.

    Raises:
        ConfigurationError: A key or token that no header can carry; tokens read from files often
            end in a newline.

    Example:
        >>> Credentials("billing", "hunter2")
        Credentials(access_key='billing')
    """

    access_key: str
    secret_key: str = field(repr=False, default="")
    session_token: str = field(repr=False, default="")

    def __post_init__(self) -> None:
        check_header("the access key", self.access_key)
        check_header("the session token", self.session_token)

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


CredentialsProvider = Callable[[], Credentials | None]


def check_header(what: str, text: str) -> None:
    """See that gRPC can carry a text in a header.

    Raises:
        ConfigurationError: It holds something else than printable ASCII.
    """
    if not (text.isascii() and text.isprintable()):
        # Not itself: it may be a secret.
        raise ConfigurationError(f"{what} goes into a header, which takes printable ASCII only")


def asked(provider: CredentialsProvider) -> Credentials | None:
    """What a provider says; whatever goes wrong in it, the user's, is an error of ours.

    Raises:
        ConfigurationError: It raised, or returned something else.
    """
    try:
        given: object = provider()
    except CosmodromeError:
        raise
    except Exception as error:
        raise ConfigurationError(f"the credentials provider failed: {error!r}") from error
    if not isinstance(given, Credentials | None):
        kind = type(given).__name__  # not itself: there is a secret in it
        raise ConfigurationError(f"a credentials provider returns Credentials or None, not {kind}")
    return given


def fixed(credentials: Credentials | None) -> CredentialsProvider:
    """The same credentials every time."""
    return lambda: credentials


def from_environment() -> CredentialsProvider:
    """COSMODROME_ACCESS_KEY, COSMODROME_SECRET_KEY, COSMODROME_SESSION_TOKEN, read every time."""

    def read() -> Credentials | None:
        access_key = os.environ.get("COSMODROME_ACCESS_KEY", "")
        if not access_key:
            return None
        return Credentials(
            access_key,
            os.environ.get("COSMODROME_SECRET_KEY", ""),
            os.environ.get("COSMODROME_SESSION_TOKEN", ""),
        )

    return read


def from_file(path: Path) -> CredentialsProvider:
    """`KEY=value` lines (access_key, secret_key, session_token); read again when the file changes.

    Raises (when asked):
        ConfigurationError: The file is missing or holds no access_key.
    """
    seen: tuple[float, Credentials] | None = None

    def read() -> Credentials:
        nonlocal seen
        try:
            changed = path.stat().st_mtime
            if seen is None or seen[0] != changed:
                lines = (line.partition("=") for line in path.read_text().splitlines())
                values = {key.strip(): value.strip() for key, equals, value in lines if equals}
                credentials = Credentials(
                    values["access_key"],
                    values.get("secret_key", ""),
                    values.get("session_token", ""),
                )
                seen = (changed, credentials)
        except (OSError, KeyError) as error:
            raise ConfigurationError(f"no credentials in {path}: {error}") from error
        return seen[1]

    return read
