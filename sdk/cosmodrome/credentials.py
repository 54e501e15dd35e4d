"""Who the client is: asked for before every call, so that rotating keys just work."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cosmodrome.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key with its secret, and for temporary ones a session token.

    Example:
        >>> Credentials("billing", "hunter2")
        Credentials(access_key='billing')
    """

    access_key: str
    secret_key: str = field(repr=False, default="")
    session_token: str = field(repr=False, default="")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


CredentialsProvider = Callable[[], Credentials | None]


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
