"""Our figures: `python -m benchmarks.run [--endpoint HOST:PORT] [--rounds 3] [--json FILE]`.

Starts a broker per round (fsync before every answer) unless an endpoint is given; prints the
median of each figure with its smallest and largest. Machines are noisy: compare figures of one run.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.loads import fill, h2load
from benchmarks.machine import described
from benchmarks.macro import sdk
from benchmarks.requests import send_request
from benchmarks.servers import Target, ours

Figures = dict[str, float]
RESTART_MESSAGES = 1_000_000


def wire(target: Target, scale: float) -> Figures:
    """Unary sends and batches by h2load: what the server can do."""
    target.topic("bench")
    one, many = send_request("bench", 1), send_request("bench", 32)
    fill(target, "bench", 30_000)
    alone = h2load(target, one, int(5_000 * scale), 1, 1)
    together = h2load(target, one, int(150_000 * scale), 16, 16)
    batches = h2load(target, many, int(9_000 * scale), 16, 4)
    return {
        "unary sends/s, 1 in flight": alone.calls_per_s,
        "unary sends/s, 256 in flight": together.calls_per_s,
        "batches of 32, messages/s": batches.calls_per_s * 32,
    }


async def by_sdk(target: Target, scale: float) -> Figures:
    """The SDK's sends, receives and latencies."""
    count = max(5_000, int(40_000 * scale) // 1000 * 1000)
    figures = {
        "SDK sends/s, 1,000 tasks": await sdk.sends(target, count, shared=True),
        "SDK sends/s, waves of 1,000": await sdk.waves(target, count // 2),
        "SDK sends/s, one request each": await sdk.sends(target, count // 4, shared=False),
    }
    figures["SDK push receive+ack/s"] = await sdk.push(target, "sdk-shared", count)
    figures["SDK simple receive+ack/s"] = await sdk.simple(target, "sdk-shared", count // 2)
    return figures | await sdk.latency(target, 500, 5)


def restart(scale: float) -> Figures:
    """How long until ready after a clean stop with many messages stored."""
    messages = int(RESTART_MESSAGES * scale)
    with tempfile.TemporaryDirectory(prefix="cosmodrome-bench-") as folder:
        data = Path(folder) / "data"
        with ours(data=data) as target:
            target.topic("bench")
            request = send_request("bench", 32, body_bytes=100)
            h2load(target, request, messages // 32, 16, 4)
        with ours(data=data) as target:
            return {f"ready ms with {messages:,} messages stored": target.ready_ms}


@contextmanager
def _target(endpoint: str, front: str) -> Iterator[Target]:
    if endpoint:
        host, _, port = endpoint.rpartition(":")
        yield Target("given", host, int(port), is_ours=True)
    else:
        with ours("--front", front) as target:
            yield target


def measure(endpoint: str, front: str, scale: float) -> Figures:
    """One round."""
    figures: Figures = {}
    with _target(endpoint, front) as target:
        if target.pid:
            figures["ready ms"] = target.ready_ms
            figures["idle RSS MiB"] = target.rss_mib()
        figures |= wire(target, scale)
        figures |= asyncio.run(by_sdk(target, scale))
        if target.pid:
            figures["loaded RSS MiB"] = target.rss_mib()
    return figures


def main() -> None:
    """Measure, print, keep if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", default="", help="measure this server instead of our own")
    parser.add_argument("--front", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quarter of the load")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    scale = 0.25 if flags.quick else 1.0
    rounds = []
    for _ in range(flags.rounds):
        rounds.append(measure(flags.endpoint, flags.front, scale))
        sys.stderr.write(f"{rounds[-1]}\n")
    if not flags.endpoint:
        rounds[-1] |= restart(scale)
    print("| figure | median | min | max |\n|---|---|---|---|")
    kept = {}
    for key in {key: None for figures in rounds for key in figures}:
        values = [figures[key] for figures in rounds if key in figures]
        kept[key] = values
        low, high = min(values), max(values)
        print(f"| {key} | {statistics.median(values):,.2f} | {low:,.2f} | {high:,.2f} |")
    if flags.json:
        flags.json.write_text(
            json.dumps({"machine": described(), "figures": kept}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
