"""The certificate of a first start: by a child while the parent imports, or by the parent."""

import contextlib
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cosmodrome_server.proxy import development_certificate

# In a process of its own: one that runs tests has threads, and may have made certificates.
START = """
import sys
from pathlib import Path

sys.modules["cosmodrome_gate"] = None  # not installed
from cosmodrome_server.proxy import development_certificate as made

data, real = Path(sys.argv[1]), made.make
{fault}
beforehand = made.begin(data)
assert beforehand is not None
made.make = real
made.development_certificate(data, beforehand)
print("cryptography" in sys.modules)
"""
BROKEN = "made.make = lambda: 1 / 0"
UNHEEDED = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"


@pytest.mark.parametrize(
    ("fault", "made_here"),
    [("", "False"), (BROKEN, "True"), (UNHEEDED, "False")],
    ids=["alive", "dead", "children are reaped by the system"],
)
def test_a_child_makes_it_and_the_parent_does_if_the_child_cannot(
    tmp_path: Path, fault: str, made_here: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START.format(fault=fault), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == (made_here, "")
    chain, key = development_certificate.files_in(tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
    assert sorted(file.name for file in chain.parent.iterdir()) == [chain.name, key.name]


def test_the_gate_makes_one_without_a_child_and_without_what_makes_others(tmp_path: Path) -> None:
    pytest.importorskip("cosmodrome_gate")
    code = START.replace('sys.modules["cosmodrome_gate"] = None  # not installed', "")
    code = code.replace("assert beforehand is not None", "assert beforehand is None")
    done = subprocess.run(
        [sys.executable, "-c", code.format(fault=""), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    certificate, key = development_certificate.files_in(tmp_path)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)


@pytest.mark.parametrize("maker", ["gate", "cryptography"])
def test_a_certificate_is_for_this_machine_and_its_own_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str
) -> None:
    if maker == "gate":
        pytest.importorskip("cosmodrome_gate")
    else:
        monkeypatch.setitem(sys.modules, "cosmodrome_gate", None)
    chain, key = development_certificate.development_certificate(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(chain, key)
    trusting = ssl.create_default_context(cafile=str(chain))
    for name in ("localhost", "127.0.0.1", "::1"):
        shake_hands(served, trusting, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(served, trusting, "example.org")


def shake_hands(served: ssl.SSLContext, trusting: ssl.SSLContext, name: str) -> None:
    """A TLS handshake in memory; raises what the client finds wrong."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = served.wrap_bio(to_server, to_client, server_side=True)
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    for end in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert client.getpeercert()


@pytest.fixture
def _no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosmodrome_gate", None)


@pytest.mark.usefixtures("_no_gate")
def test_a_directory_that_has_one_needs_no_child(tmp_path: Path) -> None:
    development_certificate.development_certificate(tmp_path)
    assert development_certificate.begin(tmp_path) is None


@pytest.mark.usefixtures("_no_gate")
def test_a_directory_that_may_not_be_looked_into_is_not_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start says so in its own words when it opens the log."""

    def refused(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    assert development_certificate.begin(tmp_path) is None


@pytest.mark.usefixtures("_no_gate")
def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        assert development_certificate.begin(tmp_path) is None
    finally:
        end.set()
        other.join()


def test_what_a_crash_left_half_written_is_in_nobodys_way(tmp_path: Path) -> None:
    chain, key = development_certificate.files_in(tmp_path)
    chain.parent.mkdir()
    for file in (chain, key):
        Path(f"{file}.new").write_bytes(b"half")
    assert development_certificate.development_certificate(tmp_path) == (chain, key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key)
