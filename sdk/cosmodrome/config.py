"""How a client reaches a broker: endpoints, credentials, TLS, time-outs.

    ClientConfiguration("127.0.0.1:8081")
    ClientConfiguration.from_url("rocketmq://key:secret@broker:8081/namespace?tls=true&ca=/etc/ca.pem")
    ClientConfiguration.from_environment()
    ClientConfiguration.builder().endpoints("…").credentials("key", "secret").build()

Environment: COSMODROME_ENDPOINT (an address or a URL), COSMODROME_NAMESPACE, COSMODROME_TLS
(true, false, insecure), COSMODROME_CA, COSMODROME_CERTIFICATE, COSMODROME_KEY,
COSMODROME_REQUEST_TIMEOUT (seconds), and those of `credentials.from_environment`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from cosmodrome import credentials as credential_sources
from cosmodrome._core import endpoints as endpoint_text
from cosmodrome.credentials import Credentials, CredentialsProvider
from cosmodrome.errors import ConfigurationError

_PROPERTY_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
PROPERTIES_MAX = 32
PROPERTY_VALUE_MAX = 256
PROPERTIES_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust, and who to be.

    Attributes:
        ca: PEM file of the authority; None for the system's.
        certificate, key: PEM files of the client, for mTLS.
        is_insecure: Trust whatever certificate the broker shows at the first connection.
            For development: it keeps eavesdroppers out, not impostors.
        server_name: The name the certificate must carry, where it is not the host dialled.

    Example:
        >>> Tls(ca=Path("ca.pem"))
        Tls(ca=PosixPath('ca.pem'), certificate=None, key=None, is_insecure=False, server_name='')
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    is_insecure: bool = False
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("mTLS needs both certificate and key")
        if self.is_insecure and self.ca is not None:
            raise ConfigurationError("tls is either insecure or has a ca, not both")


@dataclass(frozen=True, slots=True)
class ClientConfiguration:
    """Everything about the way to a broker; shared freely between clients.

    Attributes:
        endpoints: `host:port`, several joined by `;`.
        credentials: Fixed ones, or a callable that is asked before every call; None for none.
        tls: None for plaintext.
        namespace: Sent along with every call.
        request_timeout: How long one call may take.
        max_startup_attempts: Tries to reach the broker before a start fails.
        properties: What operators see of this client.

    Example:
        >>> ClientConfiguration("127.0.0.1:8081", request_timeout=timedelta(seconds=5)).endpoints
        '127.0.0.1:8081'
    """

    endpoints: str
    credentials: Credentials | CredentialsProvider | None = None
    tls: Tls | None = None
    namespace: str = ""
    request_timeout: timedelta = timedelta(seconds=3)
    max_startup_attempts: int = 3
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        endpoint_text.parse(self.endpoints)
        self._check_kinds()
        credential_sources.check_header(f"the namespace {self.namespace!r}", self.namespace)
        if self.request_timeout <= timedelta(0):
            raise ConfigurationError(f"request_timeout {self.request_timeout} is not positive")
        if self.max_startup_attempts < 1:
            raise ConfigurationError("max_startup_attempts is at least 1")
        _check_properties(self.properties)

    def _check_kinds(self) -> None:
        provider, tls, timeout = self.credentials, self.tls, self.request_timeout
        if not (isinstance(provider, Credentials | None) or callable(provider)):
            given = type(provider).__name__  # not itself: there is a secret in it
            raise ConfigurationError(f"credentials are Credentials or a callable, not {given}")
        if not isinstance(tls, Tls | None):
            raise ConfigurationError(f"tls is a Tls or None, not {tls!r}")
        if not isinstance(timeout, timedelta):
            raise ConfigurationError(f"request_timeout is a timedelta, not {timeout!r}")

    @property
    def request_timeout_s(self) -> float:
        """`request_timeout` in seconds."""
        return self.request_timeout.total_seconds()

    @property
    def provider(self) -> CredentialsProvider:
        """Asks for the credentials of a call."""
        if self.credentials is None or isinstance(self.credentials, Credentials):
            return credential_sources.fixed(self.credentials)
        return self.credentials

    @classmethod
    def of(cls, given: "ClientConfiguration | str") -> "ClientConfiguration":
        """Take a configuration as it is, an address or a URL as one."""
        if isinstance(given, ClientConfiguration):
            return given
        if not isinstance(given, str):
            raise ConfigurationError(
                f"a client takes an address, a URL or a ClientConfiguration, not {given!r}"
            )
        return cls.from_url(given) if "://" in given else cls(given)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read `rocketmq://key:secret@host:port/namespace?tls=true&ca=FILE&timeout=3`.

        Raises:
            ConfigurationError: An option that does not exist, or a value that does not fit.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("rocketmq", "rocketmqs", "http", "https"):
            raise ConfigurationError(f"no scheme {parts.scheme!r}; write rocketmq://host:port")
        options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        unknown = options.keys() - {"tls", "ca", "certificate", "key", "server_name", "timeout"}
        if unknown:
            raise ConfigurationError(f"no URL option {', '.join(sorted(unknown))}")
        user, _, address = parts.netloc.rpartition("@")
        key, _, secret = user.partition(":")
        default_tls = "true" if parts.scheme in ("rocketmqs", "https") else "false"
        return cls(
            address,
            credentials=Credentials(unquote(key), unquote(secret)) if key else None,
            tls=_tls(options.get("tls", default_tls), options),
            namespace=unquote(parts.path.strip("/")),
            request_timeout=_seconds(options.get("timeout", "3")),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read COSMODROME_ENDPOINT and its companions (see the module).

        Raises:
            ConfigurationError: There is no COSMODROME_ENDPOINT, or a value does not fit.
        """
        values = os.environ if environment is None else environment
        endpoint = values.get("COSMODROME_ENDPOINT", "")
        if not endpoint:
            raise ConfigurationError("COSMODROME_ENDPOINT is not set; write host:port into it")
        base = cls.from_url(endpoint) if "://" in endpoint else cls(endpoint)
        files = {
            option: values[f"COSMODROME_{option.upper()}"]
            for option in ("ca", "certificate", "key")
            if values.get(f"COSMODROME_{option.upper()}")
        }
        wanted = values.get("COSMODROME_TLS", "true" if files else "")
        found = replace(
            base,
            tls=_tls(wanted, files) if wanted else base.tls,
            namespace=values.get("COSMODROME_NAMESPACE", base.namespace),
            credentials=base.credentials or credential_sources.from_environment(),
        )
        timeout = values.get("COSMODROME_REQUEST_TIMEOUT", "")
        return replace(found, request_timeout=_seconds(timeout)) if timeout else found

    @classmethod
    def builder(cls) -> "ClientConfigurationBuilder":
        """Build step by step, as Java does."""
        return ClientConfigurationBuilder()


class ClientConfigurationBuilder:
    """Mirrors Java's `ClientConfigurationBuilder`.

    Example:
        >>> ClientConfiguration.builder().endpoints("127.0.0.1:8081").build().endpoints
        '127.0.0.1:8081'
    """

    def __init__(self) -> None:
        self._configuration = ClientConfiguration("127.0.0.1:8081")
        self._has_endpoints = False

    def endpoints(self, endpoints: str) -> Self:
        """Say where the broker is."""
        self._has_endpoints = True
        self._configuration = replace(self._configuration, endpoints=endpoints)
        return self

    def credentials(self, access_key: str, secret_key: str, session_token: str = "") -> Self:
        """Say who the client is."""
        given = Credentials(access_key, secret_key, session_token)
        self._configuration = replace(self._configuration, credentials=given)
        return self

    def credential_provider(self, provider: CredentialsProvider) -> Self:
        """Say whom to ask for credentials, before every call."""
        self._configuration = replace(self._configuration, credentials=provider)
        return self

    def tls(self, tls: Tls | None) -> Self:
        """Say whom to trust; None for plaintext."""
        self._configuration = replace(self._configuration, tls=tls)
        return self

    def namespace(self, namespace: str) -> Self:
        """Set the namespace."""
        self._configuration = replace(self._configuration, namespace=namespace)
        return self

    def request_timeout(self, timeout: timedelta | float) -> Self:
        """Set how long one call may take; a number is seconds."""
        given = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        self._configuration = replace(self._configuration, request_timeout=given)
        return self

    def max_startup_attempts(self, attempts: int) -> Self:
        """Set the tries before a start fails."""
        self._configuration = replace(self._configuration, max_startup_attempts=attempts)
        return self

    def client_property(self, key: str, value: str) -> Self:
        """Add one property that operators see."""
        merged = {**self._configuration.properties, key: value}
        self._configuration = replace(self._configuration, properties=merged)
        return self

    def build(self) -> ClientConfiguration:
        """The configuration.

        Raises:
            ConfigurationError: No endpoints were given.
        """
        if not self._has_endpoints:
            raise ConfigurationError("endpoints are not set")
        return self._configuration


def _tls(wanted: str, options: Mapping[str, str]) -> Tls | None:
    word = wanted.lower()
    if word in ("false", "off", "0", "no"):
        return None
    if word == "insecure":
        return Tls(is_insecure=True)
    if word not in ("true", "on", "1", "yes"):
        raise ConfigurationError(f"tls is true, false or insecure, not {wanted!r}")
    return Tls(
        ca=Path(options["ca"]) if "ca" in options else None,
        certificate=Path(options["certificate"]) if "certificate" in options else None,
        key=Path(options["key"]) if "key" in options else None,
        server_name=options.get("server_name", ""),
    )


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        raise ConfigurationError(f"{text!r} is no number of seconds") from None


def _check_properties(properties: Mapping[str, str]) -> None:
    if len(properties) > PROPERTIES_MAX:
        raise ConfigurationError(f"{len(properties)} client properties; {PROPERTIES_MAX} at most")
    for key, value in properties.items():
        if not _PROPERTY_KEY.fullmatch(key) or key.startswith("rocketmq."):
            raise ConfigurationError(
                f"client property {key!r}: 1 to 64 of a-z A-Z 0-9 _ . -, a letter first, "
                "not beginning with rocketmq."
            )
        if len(value) > PROPERTY_VALUE_MAX:
            raise ConfigurationError(f"client property {key} exceeds {PROPERTY_VALUE_MAX} chars")
    if sum(len(f"{k}{v}".encode()) for k, v in properties.items()) > PROPERTIES_BYTES_MAX:
        raise ConfigurationError(f"client properties exceed {PROPERTIES_BYTES_MAX} bytes")
