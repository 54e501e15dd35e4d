"""Certificates: given or made, and read again when they change."""

import stat
from pathlib import Path
from typing import Literal

import pytest

from cosmodrome_server.config import Config, ConfigError, Server, Tls
from cosmodrome_server.proxy.development_certificate import development_certificate
from cosmodrome_server.proxy.tls import Certificates


def test_a_development_certificate_is_made_once_and_kept(tmp_path: Path) -> None:
    first = Certificates(Config(server=Server(data=str(tmp_path))))
    again = Certificates(Config(server=Server(data=str(tmp_path))))
    assert first.is_development
    assert first.current() == again.current()
    key = tmp_path / "tls" / "development.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_changed_files_are_taken_and_a_broken_pair_is_not(tmp_path: Path) -> None:
    old = development_certificate(tmp_path / "old")
    new = development_certificate(tmp_path / "new")
    chain, key = tmp_path / "server.crt", tmp_path / "server.key"

    def install(pair: tuple[Path, Path]) -> None:
        chain.write_bytes(pair[0].read_bytes())
        key.write_bytes(pair[1].read_bytes())

    install(old)
    certificates = Certificates(Config(tls=Tls(certificate=str(chain), key=str(key))))
    assert not certificates.refresh()
    install((new[0], old[1]))
    assert not certificates.refresh(), "the key is not of the certificate"
    assert certificates.current().chain == old[0].read_bytes()
    install(new)
    assert certificates.refresh()
    assert certificates.generation == 1
    assert certificates.current().chain == new[0].read_bytes()


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_passphrase(tmp_path: Path) -> None:
    chain, key = development_certificate(tmp_path)
    key.write_bytes(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="the key is encrypted"):
        Certificates(Config(tls=Tls(certificate=str(chain), key=str(key))))


@pytest.mark.parametrize("front", ["gate", "grpcio"])
@pytest.mark.parametrize(
    ("key", "says"),
    [(None, "the key is another's"), (b"no key", "wanted (is|are).*PEM.*BEGIN PRIVATE KEY")],
    ids=["another's", "none"],
)
def test_a_key_that_cannot_be_used_is_said_with_its_file_and_what_is_wanted(
    tmp_path: Path, front: Literal["gate", "grpcio"], key: bytes | None, says: str
) -> None:
    if front == "gate":
        pytest.importorskip("cosmodrome_gate")
    chain, own = development_certificate(tmp_path)
    other = development_certificate(tmp_path / "other")[1]
    own.write_bytes(other.read_bytes() if key is None else key)
    tls = Tls(certificate=str(chain), key=str(own))
    with pytest.raises(ConfigError, match=f"{chain} with the key {own}: .*{says}"):
        Certificates(Config(server=Server(front=front), tls=tls))


def test_what_the_gate_could_not_present_is_said_before_it_listens(tmp_path: Path) -> None:
    pytest.importorskip("cosmodrome_gate")
    chain, key = development_certificate(tmp_path)
    nobody = tmp_path / "ca.crt"
    nobody.write_text("no certificate")
    tls = Tls(
        certificate=str(chain), key=str(key), client_ca=str(nobody), client_certificate="required"
    )
    with pytest.raises(ConfigError, match=r"ca\.crt: the client CA file holds no certificate"):
        Certificates(Config(tls=tls))


@pytest.mark.parametrize(
    "tls",
    [
        Tls(certificate="only.crt"),
        Tls(certificate="no.crt", key="no.key"),
        Tls(client_certificate="required"),
    ],
)
def test_settings_that_cannot_work_are_said(tmp_path: Path, tls: Tls) -> None:
    with pytest.raises(ConfigError, match=r"tls\.|certificate"):
        Certificates(Config(server=Server(data=str(tmp_path)), tls=tls))
