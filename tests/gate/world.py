"""A gate under test: its process, its clients, its memory."""

import base64
import datetime as dt
import itertools
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.gate.http2 import Http2

SERVER = Path(__file__).parent / "echo_server.py"
# What an allocator may keep of a round more than of the one before.
FLAT_KIB = 2 * 1024


class World:
    """A running echo server."""

    def __init__(self, **settings: object) -> None:
        texts = {
            key: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for key, value in settings.items()
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER), json.dumps(texts)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # As the image and the unit file set it: glibc's arena per thread is memory that
            # measures how the threads were scheduled.
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
        )
        line = self._line()
        self.addresses: list[tuple[str, int]] = [(host, port) for host, port in json.loads(line)]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the server ended: {self.process.stderr.read()}")
        return line

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self.addresses[0]

    def client(self, **options: Any) -> Http2:
        """A new connection."""
        return Http2(self.address, **options)

    def order(self, what: str, **more: object) -> Any:
        """Have the server do something, and say what it said."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def statistics(self) -> dict[str, int]:
        """The gate's counters."""
        counters: dict[str, int] = self.order("look")["statistics"]
        return counters

    def seen(self, what: str) -> int:
        """How often something happened to its handlers."""
        count: int = self.order("look")["seen"].get(what, 0)
        return count

    def wait_for(self, is_so: Callable[[dict[str, Any]], bool], wait_s: float = 20) -> None:
        """Wait until a look at the server shows something."""
        end = time.monotonic() + wait_s
        while not is_so(look := self.order("look")):
            assert time.monotonic() < end, look
            time.sleep(0.01)

    def close(self) -> None:
        """Stop it, and see that it ended well."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self.process.stderr and self.process.stderr.read()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def state_of(look: dict[str, Any]) -> dict[str, int]:
    """What must be as it was when an attack is over."""
    counters = look["statistics"]
    return {
        name: counters[name]
        for name in (
            "connections", "calls", "bytes_inbound", "bytes_headers", "bytes_replies", "restarts",
        )
    }  # fmt: skip


def endures(world: World, attack: Callable[[], None], rounds: int = 5) -> None:
    """Attack again and again: nothing crashes, nothing leaks, others are served all the while."""
    with world.client() as bystander:
        bystander.start("/test.Echo/HoldBidi")  # as clients do: this keeps it from being idle
        world.wait_for(
            lambda look: look["seen"].get("open") == look["statistics"]["connections"] == 1
        )
        before = state_of(world.order("look"))
        after = []
        for number in range(rounds):
            attack()
            began = time.monotonic()
            assert bystander.call("/test.Echo/Unary", b"still here?").messages == [b"still here?"]
            assert time.monotonic() - began < 5
            # The gate may take up the last of an attack after it served the bystander.
            world.wait_for(lambda look: state_of(look) == before)
            if number:  # the first round fills caches and pools
                after.append(world.order("look")["rss_kib"])
    # Pools and fragments fill ever more slowly; a leak grows by as much every round.
    growth = [later - sooner for sooner, later in itertools.pairwise(after)][-3:]
    allowed = max(FLAT_KIB, after[-1] // 50)
    assert min(growth) < allowed, f"memory after each round, KiB: {after}"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes
    x509: x509.Certificate
    signer: ec.EllipticCurvePrivateKey


def certificate(name: str, issuer: Pair | None = None, *, days: int = 2) -> Pair:
    """A certificate for `name`, by itself or by an issuer; `days` < 0 is over already."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.x509.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30))
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer.signer if issuer else key, hashes.SHA256())
    )
    return Pair(
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        made,
        key,
    )


def trusting(
    ca: Pair | None = None, client: Pair | None = None, folder: Path | None = None
) -> ssl.SSLContext:
    """A client's TLS settings: trusts one authority, or anybody; shows a certificate, or none."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=ca.certificate.decode())
    if client is not None:
        assert folder is not None
        files = folder / "client.pem", folder / "client.key"
        files[0].write_bytes(client.certificate)
        files[1].write_bytes(client.key)
        context.load_cert_chain(*files)
    return context
