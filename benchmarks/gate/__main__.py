"""The gate with an empty Python handler: medians of a few rounds, and what they must reach.

    python -m benchmarks.gate [--rounds 3] [--quick]

16 connections × 16 streams, requests of 1 KiB (send) and 60 bytes (receive), h2load on the same
cores. The last columns say where the processor time of a call went, which holds on a busy
machine, too.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.loads import h2load
from benchmarks.requests import send_request
from benchmarks.servers import Target
from cosmodrome_proto import service_pb2 as rpc


@dataclass(frozen=True, slots=True)
class Scenario:
    """One load, and the calls a second it must reach on two quiet cores."""

    name: str
    method: str
    request: bytes
    calls: int
    at_least: int
    is_tls: bool = False


def scenarios(scale: float) -> list[Scenario]:
    """What is measured."""
    send = send_request("bench", 1)
    receive = rpc.ReceiveMessageRequest(batch_size=32)
    receive.group.name, receive.message_queue.topic.name = "bench", "bench"
    encoded = receive.SerializeToString()
    return [
        Scenario("unary", "SendMessage", send, int(400_000 * scale), 80_000),
        Scenario("unary, TLS", "SendMessage", send, int(400_000 * scale), 65_000, is_tls=True),
        Scenario("streams of 34", "ReceiveMessage", encoded, int(60_000 * scale), 12_000),
    ]


@contextmanager
def empty_server() -> Iterator[Target]:
    """The server of `benchmarks.gate.empty_server`."""
    with tempfile.TemporaryDirectory(prefix="cosmodrome-bench-") as scratch:
        command = [sys.executable, "-m", "benchmarks.gate.empty_server", scratch]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            yield Target("gate", "127.0.0.1", int(server.stdout.readline()), server.pid)
        finally:
            server.terminate()
            server.wait(30)


def import_ms() -> float:
    """How long importing the gate takes in a fresh interpreter; the best of five."""
    code = (
        "from time import perf_counter as now; began = now(); import cosmodrome_gate;"
        "print(now() - began)"
    )
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, capture_output=True, check=True).stdout for _ in range(5)]
    return min(map(float, runs)) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    flags = parser.parse_args()
    print("| load | calls/s, median | must be | of it | µs of server a call |")
    print("|---|---|---|---|---|")
    with empty_server() as target:
        for one in scenarios(0.1 if flags.quick else 1.0):
            rates, costs = [], []
            for _ in range(flags.rounds):
                before = target.cpu_s()
                load = h2load(target, one.request, one.calls, 16, 16, one.method, tls=one.is_tls)
                rates.append(load.calls_per_s)
                costs.append((target.cpu_s() - before) / one.calls * 1e6)
            rate = statistics.median(rates)
            cost = statistics.median(costs)
            ratio = rate / one.at_least
            print(f"| {one.name} | {rate:,.0f} | {one.at_least:,} | {ratio:.2f} | {cost:.1f} |")
        print(f"| RSS, MiB | {target.rss_mib():.0f} | | | |")
    print(f"| import, ms | {import_ms():.1f} | 10 | | |")


if __name__ == "__main__":
    main()
