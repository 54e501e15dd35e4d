"""TLS on the same port: chosen by the first byte, client certificates, renewal while running."""

import base64
import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cosmodrome_gate as gate
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.gate.http2 import Http2
from tests.gate.world import Pair, World, certificate, trusting

UNARY = "/test.Echo/Unary"
CA = certificate("test authority")
SERVER = certificate("server", CA)
FILES = {"certificate": SERVER.certificate, "key": SERVER.key}


@pytest.fixture
def both() -> Iterator[World]:
    with World(tls="auto", **FILES) as made:
        yield made


def facts(client: Http2) -> dict[str, object]:
    found: dict[str, object] = json.loads(client.call("/test.Echo/Facts", b"").messages[0])
    return found


def test_tls_and_plaintext_share_a_port(both: World) -> None:
    with both.client() as plain, both.client(tls=trusting(CA)) as secure:
        assert secure.socket.selected_alpn_protocol() == "h2"  # type: ignore[attr-defined]  # an SSLSocket
        assert (facts(plain)["is_tls"], facts(secure)["is_tls"]) == (False, True)
        assert secure.call(UNARY, bytes(1 << 20)).messages == [bytes(1 << 20)]
    assert both.statistics()["connections_tls"] == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_12_and_13_are_spoken(both: World, version: ssl.TLSVersion) -> None:
    context = trusting(CA)
    context.minimum_version = context.maximum_version = version
    with both.client(tls=context) as client:
        assert client.call(UNARY, b"x").messages == [b"x"]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_older_versions_are_refused(both: World) -> None:
    context = trusting(CA)
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        both.client(tls=context)


def test_a_client_that_offers_only_http1_is_refused(both: World) -> None:
    context = trusting(CA)
    context.set_alpn_protocols(["http/1.1"])
    with pytest.raises(ssl.SSLError):
        both.client(tls=context)


def test_http1_inside_tls_without_alpn_gets_a_short_answer(both: World) -> None:
    context = ssl.create_default_context(cadata=CA.certificate.decode())
    with (
        socket.create_connection(both.address, 5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert secure.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_plaintext_is_told_that_tls_is_required() -> None:
    with World(tls="required", **FILES) as world:
        with world.client() as plain:
            plain.wait_closed()
            assert plain.goaway == 12  # INADEQUATE_SECURITY
        with world.client(tls=trusting(CA)) as secure:
            assert secure.call(UNARY, b"x").messages == [b"x"]


def test_tls_is_refused_where_it_is_off(world: World) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        world.client(tls=trusting())


def test_a_required_client_certificate_is_checked_and_reaches_python(tmp_path: Path) -> None:
    settings = {**FILES, "client_ca": CA.certificate, "client_certificate": "required"}
    known = certificate("client one", CA)
    with World(tls="required", **settings) as world:
        with world.client(tls=trusting(CA, known, tmp_path)) as client:
            der = base64.b64decode(str(facts(client)["certificate"]))
        assert x509.load_der_x509_certificate(der) == known.x509
        for stranger in (None, certificate("nobody"), certificate("late", CA, days=-1)):
            assert is_refused(world, stranger, tmp_path)


def test_an_optional_client_certificate_may_be_missing_but_not_wrong(tmp_path: Path) -> None:
    settings = {**FILES, "client_ca": CA.certificate, "client_certificate": "optional"}
    with World(tls="auto", **settings) as world:
        with world.client(tls=trusting(CA)) as client:
            assert facts(client)["certificate"] == ""
        with world.client(tls=trusting(CA, certificate("c", CA), tmp_path)) as client:
            assert facts(client)["certificate"] != ""
        assert is_refused(world, certificate("nobody"), tmp_path)


def test_another_authority_of_clients_is_used_and_no_connection_dropped(tmp_path: Path) -> None:
    other_ca = certificate("other authority")
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    shown = certificate("old client", CA), certificate("new client", other_ca)
    settings = {**FILES, "client_ca": CA.certificate, "client_certificate": "required"}
    with World(tls="required", **settings) as world:
        with world.client(tls=trusting(CA, shown[0], folders[0])) as old:
            assert old.call(UNARY, b"x").messages == [b"x"]
            more = {"client_ca": base64.b64encode(other_ca.certificate).decode()}
            files = encoded(SERVER.certificate, SERVER.key)
            assert world.order("reload", **files, **more, client_certificate="required") is None
            with world.client(tls=trusting(CA, shown[1], folders[1])) as new:
                assert new.call(UNARY, b"new").messages == [b"new"]
            assert is_refused(world, shown[0], folders[0])
            assert old.call(UNARY, b"old").messages == [b"old"]


def is_refused(world: World, shown: Pair | None, folder: Path) -> bool:
    """With TLS 1.3 a client learns of it after its handshake."""
    try:
        with world.client(tls=trusting(CA, shown, folder)) as client:
            client.wait_closed()
            return True
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_new_certificate_is_used_and_no_connection_dropped(both: World) -> None:
    other_ca = certificate("other authority")
    other = certificate("server", other_ca)
    with both.client(tls=trusting(CA)) as old:
        held = old.begin("/test.Echo/Hold", b"")
        answer = both.order("reload", **encoded(other.certificate, other.key))
        assert answer is None
        with both.client(tls=trusting(other_ca)) as new:
            assert new.call(UNARY, b"new").messages == [b"new"]
        with pytest.raises(ssl.SSLError):
            both.client(tls=trusting(CA))
        assert old.call(UNARY, b"old").messages == [b"old"]
        both.order("release")
        assert old.wait(held).messages == [b"released"]


def test_a_broken_certificate_is_not_taken(both: World) -> None:
    assert "do not fit" in both.order("reload", **encoded(SERVER.certificate, CA.key))
    assert "no certificate" in both.order("reload", **encoded(b"nonsense", CA.key))
    assert "key file is damaged" in both.order(
        "reload", **encoded(SERVER.certificate, UNFIT["P-521"])
    )
    with both.client(tls=trusting(CA)) as client:
        assert client.call(UNARY, b"x").messages == [b"x"]


def pem(key: Any, *, passphrase: bytes = b"", layout: str = "PKCS8") -> bytes:
    """A private key as a file holds it."""
    encryption = (
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption()
    )
    layouts = {
        "PKCS8": serialization.PrivateFormat.PKCS8,
        "PKCS1": serialization.PrivateFormat.TraditionalOpenSSL,
    }
    text: bytes = key.private_bytes(serialization.Encoding.PEM, layouts[layout], encryption)
    return text


UNFIT = {
    "P-521": pem(ec.generate_private_key(ec.SECP521R1())),
    "RSA of 1024 bits": pem(rsa.generate_private_key(65_537, 1_024)),
    "encrypted": pem(SERVER.signer, passphrase=b"secret"),
}


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (b"", "the key file holds no private key (it is empty)"),
        (b"\x30\x82 DER", "the key file holds no private key (it is not PEM)"),
        (SERVER.certificate, "the key file holds no private key (it holds CERTIFICATE)"),
        (UNFIT["encrypted"], "the key file holds no private key (it holds ENCRYPTED PRIVATE KEY)"),
        (SERVER.key[:-20], "the key file cannot be read: the line END PRIVATE KEY is missing"),
        (SERVER.key.replace(b"\nM", b"\n!"), "the key file cannot be read: what stands after"),
        (SERVER.key.replace(b"KEY-----\n", b"KEY--\n", 1), "a BEGIN line is broken"),
        (UNFIT["P-521"], "the key file is damaged, or of a kind that cannot be used"),
        (UNFIT["RSA of 1024 bits"], "the key file is damaged, or of a kind that cannot be used"),
    ],
)
def test_a_key_that_cannot_be_used_is_said_with_what_is_wanted(key: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        gate.check_certificate(SERVER.certificate, key)
    assert "wanted is one in PEM without a passphrase" in str(error.value)
    assert "ECDSA on P-256 or P-384" in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        (b"", "the certificate file holds no certificate (it is empty)"),
        (SERVER.key, "the certificate file holds no certificate (it holds PRIVATE KEY)"),
        (SERVER.certificate[:-20], "the certificate file cannot be read: the line END CERTIFICATE"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_said_with_what_is_wanted(
    chain: bytes, says: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        gate.check_certificate(chain, SERVER.key)
    assert "wanted is one or more in PEM (BEGIN CERTIFICATE)" in str(error.value)
    with pytest.raises(ValueError, match="the client CA file"):
        gate.check_certificate(SERVER.certificate, SERVER.key, chain, "required")


def encoded(chain: bytes, key: bytes) -> dict[str, str]:
    return {
        "certificate": base64.b64encode(chain).decode(),
        "key": base64.b64encode(key).decode(),
    }


def test_keys_of_other_layouts_are_taken() -> None:
    settings = {"certificate": SERVER.certificate, "key": pem(SERVER.signer, layout="PKCS1")}
    with World(tls="required", **settings) as world, world.client(tls=trusting(CA)) as client:
        assert client.call(UNARY, b"x").messages == [b"x"]
