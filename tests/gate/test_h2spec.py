"""h2spec, where it can be had: all it knows of RFC 9113 and RFC 7541, with and without TLS."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.gate.world import World, certificate

# It sends GETs without a content type, which the gate answers at once: its streams never pile up.
# `test_life.test_more_streams_than_allowed_are_refused` does that case as gRPC would.
NOT_FOR_GRPC = {
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded"
}


def h2spec() -> str:
    """Where it is."""
    found = shutil.which("h2spec") or shutil.which("h2spec", path=str(Path.home() / "go" / "bin"))
    if found is None:
        pytest.skip("no h2spec here: go install github.com/summerwind/h2spec/cmd/h2spec@latest")
    return found


@pytest.mark.parametrize("tls", [(), ("-t", "-k")], ids=["plaintext", "TLS"])
def test_the_gate_passes_h2spec(tls: tuple[str, ...]) -> None:
    command = [h2spec(), *tls, "-P", "/test.Echo/Unary", "-o", "3"]
    pair = certificate("server")
    with World(tls="auto", certificate=pair.certificate, key=pair.key) as world:
        host, port = world.address
        command += ["-h", host, "-p", str(port)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        counters = world.statistics()
    said = ran.stdout
    _, _, summary = said.rpartition("Failures:")
    failed = set(re.findall(r"× \d+: (.*)", summary))
    assert failed <= NOT_FOR_GRPC, summary
    counts = re.search(r"(\d+) tests, (\d+) passed", said)
    assert counts is not None, said
    assert int(counts[2]) >= 140
    assert counters["restarts"] == 0
    assert (counters["connections_tls"] > 100) == bool(tls)
