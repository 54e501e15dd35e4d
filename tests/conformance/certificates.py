"""A certificate for 127.0.0.1 that a client process can be told to trust."""

import datetime as dt
import ipaddress
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """Paths of PEM files; the certificate is its own authority."""

    certificate: Path
    key: Path

    def trusted(self) -> dict[str, str]:
        """Environment in which gRPC for Python and for Node trusts this certificate.

        The Java and Go clients trust every certificate, so they need nothing.
        """
        return {
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.certificate),
            "NODE_EXTRA_CA_CERTS": str(self.certificate),
        }


@contextmanager
def issued() -> Iterator[Certificate]:
    """A fresh certificate in a folder that goes away."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "conformance")])
    now = dt.datetime.now(dt.UTC)
    alternatives = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory(prefix="conformance-tls-") as folder:
        issued = Certificate(Path(folder) / "server.crt", Path(folder) / "server.key")
        issued.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        issued.key.chmod(0o600)
        yield issued
