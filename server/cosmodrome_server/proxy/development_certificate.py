"""The self-signed certificate of a server that was given none, and how it is made in no time.

The gate makes one in a millisecond. Without it, importing what makes certificates, and making one,
are 25 ms of processor time. A first start then has a child process do both while it imports
everything else:

    parent   config ─ fork ─ imports, opens the log (100 ms and more) ─ take ─ keep ─ listens
    child             └───── makes the certificate ───────────────────────┘ through a pipe

A child that cannot be had, or that dies, costs time only: the parent makes its own. The child
writes no files: only who owns the data directory may.
"""

import contextlib
import os
import threading
from importlib.util import find_spec
from pathlib import Path

DEVELOPMENT_DAYS = 3650
_COMMON_NAME = "cosmodrome development"
_HOST, *_ADDRESSES = _NAMES = ["localhost", "127.0.0.1", "::1"]
_END_OF_CHAIN = b"\0"

Pems = tuple[bytes, bytes]


def files_in(data: Path) -> tuple[Path, Path]:
    """Where the certificate and the key of a data directory are kept."""
    return data / "tls" / "development.crt", data / "tls" / "development.key"


def development_certificate(
    data: Path, beforehand: "Beforehand | None" = None
) -> tuple[Path, Path]:
    """The files of a data directory, made if missing.

    Args:
        data: The directory; only its owner may call this.
        beforehand: A child that makes the certificate already.

    Raises:
        OSError: They cannot be written.
    """
    chain, key = files_in(data)
    if not (chain.exists() and key.exists()):
        chain.parent.mkdir(parents=True, exist_ok=True)
        pems = beforehand.take() if beforehand is not None else None
        chain_pem, key_pem = pems or make()
        _write_private(key, key_pem)
        _write_private(chain, chain_pem)
    return chain, key


class Beforehand:
    """A child process that makes a certificate."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _make_and_exit(writer)
        os.close(writer)

    def take(self) -> Pems | None:
        """Wait for it; None if the child died. To be called once."""
        with os.fdopen(self._reader, "rb") as pipe:
            chain, _, key = pipe.read().partition(_END_OF_CHAIN)
        # A process may be born with SIGCHLD ignored: then the system has taken the child away.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return (chain, key) if key else None


def begin(data: Path) -> Beforehand | None:
    """Begin to make the certificate of a directory that has none.

    None where there is no need, or no way. There is none once there are threads: in the child
    they are not, but the locks they hold are.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1 or find_spec("cosmodrome_gate"):
        return None
    try:
        is_needed = not all(file.exists() for file in files_in(data))
        return Beforehand() if is_needed else None
    except OSError:  # no look into the directory, which opening the log explains; no more processes
        return None


def _make_and_exit(writer: int) -> None:
    """What the child does. It never comes back to what its parent was about to do."""
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(_END_OF_CHAIN.join(make()))
    finally:
        os._exit(0)


def make() -> Pems:
    """A new certificate for this machine's own names, and its key, as PEM texts."""
    try:
        from cosmodrome_gate import self_signed  # noqa: PLC0415 - it may not be installed
    except ImportError:
        return _make_without_gate()
    return self_signed(_COMMON_NAME, _NAMES, days=DEVELOPMENT_DAYS)


def _make_without_gate() -> Pems:
    # 10 MB that only the first start, or its child, pays.
    import datetime as dt  # noqa: PLC0415 - see above
    import ipaddress  # noqa: PLC0415 - see above

    from cryptography import x509  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - see above
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - see above

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _COMMON_NAME)])
    now = dt.datetime.now(dt.UTC)
    names = [
        x509.DNSName(_HOST),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES),
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


def _write_private(path: Path, text: bytes) -> None:
    """Put a file in place whole, readable by its owner only."""
    unfinished = path.with_suffix(path.suffix + ".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    unfinished.replace(path)
