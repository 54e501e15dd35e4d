"""Where brokers are: parsing what users write, and what routes say.

127.0.0.1:8081                      one address
10.0.0.1:8081;10.0.0.2:8081         several of one kind
broker.example:8081                 a domain name: exactly one
[::1]:8081                          IPv6
rocketmq://key:secret@host:8081/namespace?tls=true    see `config`
"""

import ipaddress
from dataclasses import dataclass
from enum import IntEnum

from cosmodrome.errors import ConfigurationError
from cosmodrome_proto import definition_pb2 as pb

# The port of every RocketMQ 5 proxy; Java's default of 80 helps nobody.
DEFAULT_PORT = 8081


class Scheme(IntEnum):
    """How hosts are written; the numbers of the wire."""

    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


@dataclass(frozen=True, slots=True)
class Endpoints:
    """One broker, or one access point: addresses that serve the same."""

    scheme: Scheme
    addresses: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ";".join(_joined(host, port) for host, port in self.addresses)

    @property
    def target(self) -> str:
        """What gRPC dials."""
        joined = ",".join(_joined(host, port) for host, port in self.addresses)
        if self.scheme is Scheme.DOMAIN_NAME:
            return f"dns:///{joined}"
        return f"{'ipv4' if self.scheme is Scheme.IPV4 else 'ipv6'}:{joined}"

    @property
    def authority(self) -> str:
        """What calls name as the host: one address, since several are no authority of HTTP/2."""
        return _joined(*self.addresses[0])

    def to_wire(self) -> pb.Endpoints:
        """As a protobuf message."""
        return pb.Endpoints(
            scheme=pb.AddressScheme.ValueType(self.scheme),
            addresses=[pb.Address(host=host, port=port) for host, port in self.addresses],
        )


def parse(text: str) -> Endpoints:
    """Read `host:port`, several joined by `;`.

    Raises:
        ConfigurationError: Empty, a URL, kinds mixed, several domain names, or a port that is none.
    """
    parts = [_strip_scheme(part.strip()) for part in text.split(";") if part.strip()]
    if not parts:
        raise ConfigurationError("endpoints are empty; write host:port")
    if any(sign in part for part in parts for sign in "/@"):
        raise ConfigurationError("endpoints are host:port; ClientConfiguration.from_url takes URLs")
    pairs = [_split(part) for part in parts]
    schemes = {_scheme_of(host) for host, _ in pairs}
    if len(schemes) > 1:
        raise ConfigurationError(f"endpoints {text!r} mix IPv4, IPv6 and domain names")
    scheme = schemes.pop()
    if scheme is Scheme.DOMAIN_NAME and len(pairs) > 1:
        raise ConfigurationError(f"endpoints {text!r} name several domains; one is allowed")
    return Endpoints(scheme, tuple(pairs))


def from_wire(endpoints: pb.Endpoints) -> Endpoints:
    """Read what a route says; an unknown scheme is told by the hosts."""
    pairs = tuple((address.host, address.port) for address in endpoints.addresses)
    if not pairs:
        raise ConfigurationError("the broker sent endpoints without addresses")
    known = int(endpoints.scheme) in {int(scheme) for scheme in Scheme}
    return Endpoints(Scheme(endpoints.scheme) if known else _scheme_of(pairs[0][0]), pairs)


def _strip_scheme(part: str) -> str:
    for prefix in ("https://", "http://", "grpc://"):
        part = part.removeprefix(prefix)
    return part.rstrip("/")


def _split(part: str) -> tuple[str, int]:
    host, colon, port = part.rpartition(":")
    if part.startswith("["):
        host, _, rest = part[1:].partition("]")
        colon, port = rest[:1], rest[1:]
    elif part.count(":") > 1:  # a bare IPv6 address
        host, colon, port = part, "", ""
    elif not colon:
        host = part
        port = ""
    if not host:
        raise ConfigurationError(f"endpoint {part!r} has no host")
    if not colon:
        return host, DEFAULT_PORT
    if not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigurationError(f"endpoint {part!r} has port {port!r}; write host:port")
    return host, int(port)


def _scheme_of(host: str) -> Scheme:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return Scheme.DOMAIN_NAME
    return Scheme.IPV4 if version == 4 else Scheme.IPV6


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
