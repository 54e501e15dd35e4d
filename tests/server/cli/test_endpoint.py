"""Where commands find a broker: addresses, URLs, the variables that the SDK reads, too."""

from pathlib import Path

import pytest

from cosmodrome.testing import TestBroker
from cosmodrome_server.cli.endpoint import EndpointError, parse
from tests.gate.world import certificate
from tests.server.cli.conftest import Cli


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:8081", "127.0.0.1:8081"),
        ("broker.example", "broker.example:8081"),
        ("::1", "[::1]:8081"),
        ("[::1]", "[::1]:8081"),
        ("[::1]:9", "[::1]:9"),
        (" 10.0.0.1:1; 10.0.0.2:2; ", "10.0.0.1:1;10.0.0.2:2"),
        ("http://h:1/", "h:1"),
        ("https://h:1", "https://h:1"),
        ("rocketmq://key:secret@h:1", "h:1"),
        ("rocketmq://h:1?tls=true&server_name=n", "https://h:1"),
        ("rocketmqs://h", "https://h:8081"),
    ],
)
def test_an_endpoint_is_an_address_several_or_a_url(text: str, shown: str) -> None:
    assert str(parse(text, {})) == shown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("h:99999", "write HOST:PORT"),
        (":1", "write HOST:PORT"),
        ("ftp://h:1", "no scheme 'ftp'"),
        ("rocketmq://h:1/orders", "the namespace 'orders'"),
        ("rocketmq://h:1?tsl=true", "no URL option tsl"),
        ("rocketmq://h:1?tls=insecure", "true or false"),
        ("rocketmq://h:1?certificate=c.pem", "go together"),
    ],
)
def test_what_is_no_endpoint_says_why(text: str, words: str) -> None:
    with pytest.raises(EndpointError, match=words):
        parse(text, {})


@pytest.mark.parametrize("key", ["ключ", "key\n"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(EndpointError, match="COSMODROME_ACCESS_KEY goes into a header"):
        parse("h", {"COSMODROME_ACCESS_KEY": key})


def test_the_variables_of_the_sdk_say_how_it_is_spoken_to() -> None:
    assert not parse("h", {}).is_tls
    assert parse("h", {"COSMODROME_CA": "ca.pem"}).is_tls
    assert parse("h", {"COSMODROME_TLS": "true"}).is_tls
    assert not parse("http://h", {"COSMODROME_CA": "ca.pem"}).is_tls
    assert not parse("h", {"COSMODROME_CA": "ca.pem", "COSMODROME_TLS": "false"}).is_tls
    keys = {"COSMODROME_ACCESS_KEY": "root", "COSMODROME_SECRET_KEY": "s"}
    assert parse("h", keys)[-2:] == ("root", "s")
    assert parse("rocketmq://k%3A:s%40@h", keys)[-2:] == ("k:", "s@")


def test_files_that_are_missing_or_no_pem_are_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSMODROME_CA", str(tmp_path / "nowhere"))
    assert "cannot read COSMODROME_CA" in cli("topic", "list", code=1)
    (tmp_path / "ca.pem").write_text("no certificate")
    monkeypatch.setenv("COSMODROME_CA", str(tmp_path / "ca.pem"))
    assert "ca.pem is not PEM: it holds no CERTIFICATE" in cli("topic", "list", code=1)


def test_a_broker_with_several_addresses_is_reached(cli: Cli, broker: TestBroker) -> None:
    assert cli("status", "--endpoint", f"127.0.0.1:1;{broker.endpoint}").startswith("broker ")


def test_a_broker_that_asks_for_certificates_takes_ours(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate("authority")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    for name in ("broker", "operator"):
        pair = certificate(name, authority)
        (tmp_path / f"{name}.pem").write_bytes(pair.certificate)
        (tmp_path / f"{name}.key").write_bytes(pair.key)
    settings = {
        "tls.mode": "required",
        "tls.certificate": str(tmp_path / "broker.pem"),
        "tls.key": str(tmp_path / "broker.key"),
        "tls.client_certificate": "required",
        "tls.client_ca": str(tmp_path / "ca.pem"),
    }
    with TestBroker(settings=settings) as broker:
        monkeypatch.setenv("COSMODROME_CA", str(tmp_path / "ca.pem"))
        where = ("--endpoint", broker.endpoint.replace("127.0.0.1", "localhost"))
        assert "no answer from https://" in cli("status", *where, code=1)
        monkeypatch.setenv("COSMODROME_CERTIFICATE", str(tmp_path / "operator.pem"))
        monkeypatch.setenv("COSMODROME_KEY", str(tmp_path / "operator.key"))
        assert cli("status", *where).startswith("broker ")
