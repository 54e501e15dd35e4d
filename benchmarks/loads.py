"""Load generators: h2load for unary calls, the official Java and Go clients, what they print."""

import re
import shutil
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.requests import METADATA, SERVICE, framed_file, send_request
from benchmarks.servers import Target, java_client

HEADERS = (
    "content-type: application/grpc",
    "te: trailers",
    *(f"{name}: {value}" for name, value in METADATA),
)
_STEADY_JVM = "-Xmn768m -XX:TieredStopAtLevel=1"
GO_LATENCY = Path(__file__).parent / "macro" / "latency"


@dataclass(frozen=True, slots=True)
class H2Load:
    """What one run of h2load says: calls a second, and milliseconds a call."""

    calls_per_s: float
    mean_ms: float
    max_ms: float


def h2load(  # noqa: PLR0913 - the knobs of the tool
    target: Target,
    request: bytes,
    calls: int,
    connections: int,
    streams: int,
    method: str = "SendMessage",
    *,
    tls: bool = False,
) -> H2Load:
    """Send the same unary request `calls` times over `connections` × `streams`.

    Raises:
        RuntimeError: h2load is not installed, or a call failed.
    """
    if shutil.which("h2load") is None:
        raise RuntimeError("h2load is missing: apt-get install nghttp2-client")
    scheme = "https" if tls else "http"
    with framed_file(request) as file:
        headers = [word for header in HEADERS for word in ("-H", header)]
        url = f"{scheme}://{target.endpoint}/{SERVICE}/{method}"
        command = ["h2load", "-n", str(calls), "-c", str(connections), "-m", str(streams)]
        done = subprocess.run(
            [*command, "-d", str(file), *headers, url], capture_output=True, text=True, check=True
        )
    if f"{calls} succeeded, 0 failed" not in done.stdout:
        raise RuntimeError(done.stdout)
    rate = re.search(r"finished in .*?, ([\d.]+) req/s", done.stdout)
    times = re.search(r"time for request:\s+\S+\s+(\S+)\s+(\S+)", done.stdout)
    assert rate is not None
    assert times is not None
    return H2Load(float(rate[1]), _ms(times[2]), _ms(times[1]))


def fill(target: Target, topic: str, messages: int) -> None:
    """Store `messages` messages of 1 KiB, in batches of 32."""
    h2load(target, send_request(topic, 32), max(16, messages // 32), 8, 4)


def java_rate(*words: str, tls: bool = True) -> float:
    """Run the Java client; the rate of its last round."""
    rates = re.findall(r"rate=([\d.]+)/s", java_client(*words, tls=tls))
    return float(rates[-1])


def java_push_rate(*words: str) -> float:
    """Run the Java push consumer; the median of its 3-second windows, without the first three.

    A fresh JVM takes some 9 s to compile what the consumer runs through; until then it is the
    consumer that is measured, whatever server feeds it.
    """
    rates = [float(rate) for rate in re.findall(r"rate3=([\d.]+)/s", java_client("push", *words))]
    return statistics.median(rates[3:])


def java_latency(*words: str) -> dict[str, float]:
    """Run the Java client at a fixed rate; p50 and p99 of its last round, in milliseconds.

    Its JVM has room for the garbage of a round and compiles once, quickly: else every second
    compiler and collector take a core for longer than either server takes to answer.
    """
    return _latency(java_client("lat", *words, JAVA_TOOL_OPTIONS=_STEADY_JVM))


def go_latency(*words: str) -> dict[str, float]:
    """Run the Go client at a fixed rate; as `java_latency`, without a compiler in its p99.

    Raises:
        RuntimeError: Go is not installed, or the client failed.
    """
    if shutil.which("go") is None:
        raise RuntimeError("go is missing: apt-get install golang-go")
    command = ["go", "run", ".", *words]
    done = subprocess.run(command, cwd=GO_LATENCY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2_000:])
    return _latency(done.stdout)


def _latency(said: str) -> dict[str, float]:
    found = re.findall(r"(send|e2e) n=\d+ p50=([\d.]+)ms p99=([\d.]+)ms", said)
    result = {}
    for kind, p50, p99 in found:  # later rounds overwrite earlier ones
        result[f"{kind}_p50_ms"] = float(p50)
        result[f"{kind}_p99_ms"] = float(p99)
    return result


def _ms(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(us|ms|s)", text)
    assert found is not None, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]
