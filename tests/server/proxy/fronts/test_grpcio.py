"""What the front on grpcio cannot do, it says at start."""

from pathlib import Path

import pytest

from cosmodrome_server.config import Config, ConfigError, load
from cosmodrome_server.proxy.fronts.grpcio import GrpcioFront
from cosmodrome_server.proxy.tls import Certificates


def settings(data: Path, **tls: str) -> Config:
    given = {"server.data": str(data), "server.port": "0"}
    given |= {f"tls.{key}": value for key, value in tls.items()}
    return load(None, environment={}, overrides=given)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_optional_client_certificates_are_refused_with_a_way_out(tmp_path: Path, mode: str) -> None:
    Certificates(settings(tmp_path))  # makes the development certificate, its own authority
    authority = str(tmp_path / "tls" / "development.crt")
    config = settings(tmp_path, mode=mode, client_certificate="optional", client_ca=authority)
    with pytest.raises(ConfigError, match=r"tls\.client_certificate is optional.*server\.front"):
        GrpcioFront([], config, Certificates(config))


def test_without_tls_the_setting_means_nothing(tmp_path: Path) -> None:
    GrpcioFront([], settings(tmp_path, mode="off", client_certificate="optional"), None)
