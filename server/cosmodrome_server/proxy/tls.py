"""The server's certificate: given, or made for development; read again when it changes.

Without `tls.certificate` a self-signed one is made once and kept in the data directory.
Java, Go and C# clients dial TLS and check nothing, so that they connect to a server
fresh from the box.
"""

import logging
import ssl
from pathlib import Path

import msgspec

from cosmodrome_server.config import Config, ConfigError
from cosmodrome_server.proxy import fronts
from cosmodrome_server.proxy.development_certificate import development_certificate

_log = logging.getLogger(__name__)


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
        self._client_certificate = tls.client_certificate
        self.requires_client = tls.client_certificate == "required"
        self._is_for_gate = fronts.chosen(config) == "gate"
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
            found = CertificateFiles(
                self._chain.read_bytes(),
                self._key.read_bytes(),
                self._client_ca.read_bytes() if self._client_ca is not None else b"",
            )
            self._check(found)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot use {self._named()}: {error}") from error
        return found

    def _named(self) -> str:
        named = f"the certificate {self._chain} with the key {self._key}"
        return f"{named} and the client CA {self._client_ca}" if self._client_ca else named

    def _check(self, found: CertificateFiles) -> None:
        """Ask what will present them; raises OSError, ValueError."""
        if b"ENCRYPTED" in found.key:  # OpenSSL would ask for the passphrase, the gate find no key
            raise ValueError("the key is encrypted; take the passphrase off")
        if self._is_for_gate:
            import cosmodrome_gate as gate  # noqa: PLC0415 - it may not be installed

            gate.check_certificate(
                found.chain, found.key, found.client_ca, self._client_certificate
            )
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._chain, self._key)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError("certificate and key do not fit: the key is another's") from error
            raise ValueError(
                f"{error}; wanted are PEM files: BEGIN CERTIFICATE in the one, in the other "
                "BEGIN PRIVATE KEY without a passphrase"
            ) from error
