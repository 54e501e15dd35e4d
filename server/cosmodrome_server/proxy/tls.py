"""The server's certificate: given, or made for development; read again when it changes.

Without `tls.certificate` a self-signed one is made once and kept in the data directory.
Java, Go and C# clients dial TLS and check nothing, so that they connect to a server
fresh from the box.
"""

import datetime as dt
import ipaddress
import logging
import os
import ssl
import tempfile
from pathlib import Path

import msgspec

from cosmodrome_server.config import Config, ConfigError

_log = logging.getLogger(__name__)

DEVELOPMENT_DAYS = 3650


class CertificateFiles(msgspec.Struct, frozen=True):
    """PEM texts: certificate chain, its key, and who may sign client certificates ("" for none)."""

    chain: bytes
    key: bytes
    client_ca: bytes


class Certificates:
    """The certificate in use. `refresh` looks whether the files changed."""

    def __init__(self, config: Config) -> None:
        tls = config.tls
        if bool(tls.certificate) != bool(tls.key):
            raise ConfigError("tls.certificate and tls.key go together: one of them is missing")
        self.is_development = not tls.certificate
        if self.is_development:
            self._chain, self._key = development_certificate(config.data)
        else:
            self._chain, self._key = Path(tls.certificate), Path(tls.key)
        self._client_ca = Path(tls.client_ca) if tls.client_ca else None
        self.requires_client = tls.client_certificate == "required"
        if tls.client_certificate != "none" and self._client_ca is None:
            raise ConfigError("tls.client_certificate needs tls.client_ca: who signs them?")
        self.generation = 0
        self._current = self._read()

    def current(self) -> CertificateFiles:
        """What to present now."""
        return self._current

    def refresh(self) -> bool:
        """Read the files again; returns whether they changed. A broken pair is not taken."""
        try:
            found = self._read()
        except ConfigError as error:
            _log.error("certificate not reloaded: %s", error)
            return False
        if found == self._current:
            return False
        self._current = found
        self.generation += 1
        _log.info("certificate reloaded file=%s", self._chain)
        return True

    def _read(self) -> CertificateFiles:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._chain, self._key)
            return CertificateFiles(
                self._chain.read_bytes(),
                self._key.read_bytes(),
                self._client_ca.read_bytes() if self._client_ca is not None else b"",
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot use the certificate {self._chain} with the key {self._key}: {error}"
            ) from error


def development_certificate(data: Path) -> tuple[Path, Path]:
    """The self-signed certificate and key of a data directory, made if missing."""
    chain, key = data / "tls" / "development.crt", data / "tls" / "development.key"
    if not (chain.exists() and key.exists()):
        chain.parent.mkdir(parents=True, exist_ok=True)
        chain_pem, key_pem = _make_certificate()
        _write_private(key, key_pem)
        _write_private(chain, chain_pem)
    return chain, key


def _write_private(path: Path, text: bytes) -> None:
    """Put a file in place whole, readable by its owner only."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # made with mode 0600
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
    Path(name).replace(path)


def _make_certificate() -> tuple[bytes, bytes]:
    # 60 ms and 10 MB that only the first start pays.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cosmodrome development")])
    now = dt.datetime.now(dt.UTC)
    names = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=DEVELOPMENT_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
