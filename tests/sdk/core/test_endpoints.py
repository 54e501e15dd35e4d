"""What users write as endpoints."""

import pytest

from cosmodrome._core import endpoints
from cosmodrome._core.endpoints import Endpoints, Scheme
from cosmodrome.errors import ConfigurationError
from cosmodrome_proto import definition_pb2 as pb


@pytest.mark.parametrize(
    ("text", "scheme", "addresses", "target"),
    [
        ("127.0.0.1:8081", Scheme.IPV4, (("127.0.0.1", 8081),), "ipv4:127.0.0.1:8081"),
        ("127.0.0.1", Scheme.IPV4, (("127.0.0.1", 8081),), "ipv4:127.0.0.1:8081"),
        (
            "10.0.0.1:1;10.0.0.2:2",
            Scheme.IPV4,
            (("10.0.0.1", 1), ("10.0.0.2", 2)),
            "ipv4:10.0.0.1:1,10.0.0.2:2",
        ),
        ("[::1]:9", Scheme.IPV6, (("::1", 9),), "ipv6:[::1]:9"),
        ("::1", Scheme.IPV6, (("::1", 8081),), "ipv6:[::1]:8081"),
        (
            "broker.example:80",
            Scheme.DOMAIN_NAME,
            (("broker.example", 80),),
            "dns:///broker.example:80",
        ),
        ("https://broker/", Scheme.DOMAIN_NAME, (("broker", 8081),), "dns:///broker:8081"),
    ],
)
def test_endpoints_are_read_and_dialled(
    text: str, scheme: Scheme, addresses: tuple[tuple[str, int], ...], target: str
) -> None:
    parsed = endpoints.parse(text)
    assert parsed == Endpoints(scheme, addresses)
    assert parsed.target == target
    assert endpoints.from_wire(parsed.to_wire()) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ; ",
        ":8081",
        "host:",
        "host:x",
        "host:0",
        "host:70000",
        "a:1;b:2",
        "a:1;1.2.3.4:2",
        "rocketmq://k:s@host",
    ],
)
def test_endpoints_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        endpoints.parse(text)


def test_a_route_without_addresses_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="without addresses"):
        endpoints.from_wire(pb.Endpoints())
