"""Where a broker is: --endpoint, and the variables that the SDK reads, too.

    127.0.0.1:8081                              one address, or several of one broker joined by ;
    https://HOST:PORT, http://HOST:PORT         TLS, plaintext
    rocketmq://KEY:SECRET@HOST:PORT?tls=true    a URL of the SDK; ca=, certificate=, key= are files

COSMODROME_TLS (true, false), COSMODROME_CA, COSMODROME_CERTIFICATE, COSMODROME_KEY. An address
without a scheme is spoken to in TLS where one of these files is named.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import grpc

DEFAULT_PORT = 8081
ACCESS_KEY, SECRET_KEY = "COSMODROME_ACCESS_KEY", "COSMODROME_SECRET_KEY"
_TLS_OF_SCHEME = {"http": "false", "https": "true", "rocketmq": "", "rocketmqs": "true"}
_FILES = ("ca", "certificate", "key")
_YES, _NO = ("true", "on", "1", "yes"), ("false", "off", "0", "no")
_OPTIONS: list[tuple[str, int | str]] = [
    # One answer may hold many messages, or a large one; gRPC would take 4 MiB.
    ("grpc.max_receive_message_length", -1),
    # Else gRPC tries again, until the time is over, what a broker refused with a reason.
    ("grpc.enable_retries", 0),
]


class EndpointError(Exception):
    """What was written is no endpoint, or a file of it cannot be used; the message says why."""


class Endpoint(NamedTuple):
    """How a broker is reached; as text, without its secret.

    `files` names PEM files: of the authority that is trusted, and of the caller's certificate.
    `server_name` is on the broker's certificate where that is not the host.
    """

    addresses: tuple[str, ...]
    is_tls: bool
    files: Mapping[str, str]
    server_name: str
    access_key: str
    secret_key: str

    def __str__(self) -> str:
        return f"{'https://' if self.is_tls else ''}{';'.join(self.addresses)}"

    def channel(self) -> "grpc.Channel":
        """A channel to it.

        Raises:
            EndpointError: A file cannot be read.
        """
        target, options = ",".join(self.addresses), list(_OPTIONS)
        if len(self.addresses) > 1:
            target = f"{'ipv6' if target.startswith('[') else 'ipv4'}:{target}"
            # Several addresses are no authority of HTTP/2.
            options.append(("grpc.default_authority", self.addresses[0]))
        if not self.is_tls:
            return grpc.insecure_channel(target, options)
        roots, chain, key = (self._pem(file) for file in _FILES)
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        credentials = grpc.ssl_channel_credentials(roots, key, chain)
        return grpc.secure_channel(target, credentials, options)

    def _pem(self, file: str) -> bytes | None:
        path = self.files.get(file)
        if not path:
            return None
        named = f"COSMODROME_{file.upper()}={path}"
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise EndpointError(f"cannot read {named}: {error.strerror}") from error
        wanted = "PRIVATE KEY" if file == "key" else "CERTIFICATE"
        if f"{wanted}-----".encode() not in content:
            raise EndpointError(f"{named} is not PEM: it holds no {wanted}")
        return content


def parse(text: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Read what --endpoint says, beside the environment.

    Raises:
        EndpointError
    """
    scheme, rest = "", text.strip()
    options: dict[str, str] = {}
    access_key, secret_key = environment.get(ACCESS_KEY, ""), environment.get(SECRET_KEY, "")
    if "://" in rest:
        url = urlsplit(rest)
        scheme, rest = url.scheme, url.netloc
        options = {key: values[-1] for key, values in parse_qs(url.query).items()}
        user, _, rest = rest.rpartition("@")
        if user:
            access_key, secret_key = map(unquote, user.partition(":")[::2])
        _check(scheme, url.path.strip("/"), options)
    if not (access_key.isascii() and access_key.isprintable()):
        raise EndpointError(f"{ACCESS_KEY} goes into a header, which takes printable ASCII only")
    files = {
        file: options.get(file) or environment.get(f"COSMODROME_{file.upper()}", "")
        for file in _FILES
    }
    if bool(files["certificate"]) != bool(files["key"]):
        raise EndpointError("COSMODROME_CERTIFICATE and COSMODROME_KEY go together: one is missing")
    said = options.get("tls") or _TLS_OF_SCHEME.get(scheme) or environment.get("COSMODROME_TLS")
    is_tls = _is_yes(said) if said else any(files.values())
    addresses = tuple(_address(part.strip()) for part in rest.split(";") if part.strip())
    if not addresses:
        raise EndpointError("the endpoint is empty; write HOST:PORT")
    server_name = options.get("server_name", "")
    return Endpoint(addresses, is_tls, files, server_name, access_key, secret_key)


def _check(scheme: str, namespace: str, options: Mapping[str, str]) -> None:
    if scheme not in _TLS_OF_SCHEME:
        raise EndpointError(f"no scheme {scheme!r}; write HOST:PORT, or https://HOST:PORT for TLS")
    if unknown := options.keys() - {"tls", *_FILES, "server_name", "timeout"}:
        raise EndpointError(f"no URL option {', '.join(sorted(unknown))}")
    if namespace:
        raise EndpointError(
            f"the endpoint names the namespace {namespace!r}, which no command uses: leave it out"
        )


def _is_yes(word: str) -> bool:
    if word.lower() in _YES:
        return True
    if word.lower() in _NO:
        return False
    raise EndpointError(f"COSMODROME_TLS is {word!r}; commands take true or false")


def _address(part: str) -> str:
    """`host:port`, an IPv6 host in brackets; the port may be left out."""
    try:
        if ipaddress.ip_address(part).version == 6:
            return f"[{part}]:{DEFAULT_PORT}"
    except ValueError:
        pass
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]"):
        return f"{part}:{DEFAULT_PORT}"
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise EndpointError(f"{part!r} is no endpoint; write HOST:PORT")
    return part
