"""Certificates: given or made, and read again when they change."""

import stat
from pathlib import Path

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
