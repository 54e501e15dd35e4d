"""The same scenarios against us and against Apache RocketMQ 5.5, in turn, in one run.

    python -m benchmarks.peer [--rounds 3] [--only send,push] [--quick] [--json FILE]

Every figure of ours is with fsync before the answer. A round measures each server once;
the ratio of each scenario is that of the medians over the rounds. The JVM is warmed by 300,000
messages before it is measured, a third of them one by one: it compiles what it runs through, and
single sends are not batches. Needs Java, Maven and h2load.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.loads import fill, go_latency, h2load, java_latency, java_push_rate, java_rate
from benchmarks.machine import described
from benchmarks.requests import OK, send_one, send_request
from benchmarks.servers import Target, apache, ours

WARM_UP = 300_000
WARM_UP_SINGLE = WARM_UP // 3
Figures = dict[str, float]


def unary(target: Target, scale: float) -> Figures:
    """How many durable unary sends of 1 KiB a second, 16 connections × 16 streams?"""
    request = send_request("bench", 1)
    return {"unary sends/s": h2load(target, request, int(200_000 * scale), 16, 16).calls_per_s}


def batches(target: Target, scale: float) -> Figures:
    """How many messages a second in batches of 32, 16 connections × 4 streams?"""
    done = h2load(target, send_request("bench", 32), int(12_000 * scale), 16, 4)
    return {"batches of 32, messages/s": done.calls_per_s * 32}


def sequential(target: Target, scale: float) -> Figures:
    """How long does one send after the other take?"""
    done = h2load(target, send_request("bench", 1), int(5_000 * scale), 1, 1)
    return {"sequential send, mean ms": done.mean_ms}


def java_send(target: Target, scale: float) -> Figures:
    """How fast does the official Java client send over TLS with 256 in flight?"""
    words = ("send", target.endpoint, "bench", str(int(60_000 * scale)), "256")
    return {"Java client sends/s (TLS)": java_rate(*words)}


def java_push(target: Target, scale: float) -> Figures:
    """How fast does the official push consumer receive and ack, once its JVM is warm?"""
    target.topic("push")
    target.group("push-group")
    fill(target, "push", int(600_000 * max(scale, 0.6)))
    seconds = str(max(18, int(24 * scale)))
    return {"push receive+ack/s": java_push_rate(target.endpoint, "push", "push-group", seconds)}


def java_simple(target: Target, scale: float) -> Figures:
    """How fast do 16 threads of the official simple consumer receive and ack?"""
    target.topic("simple")
    target.group("simple-group")
    fill(target, "simple", int(400_000 * scale))
    seconds = str(int(15 * scale) or 6)
    words = ("simple", target.endpoint, "simple", "simple-group", "16", seconds)
    return {"simple receive+ack/s": java_rate(*words)}


def latency(target: Target, scale: float) -> Figures:
    """How long from send to answer and to the listener, at 500 messages a second?

    By two official clients, each kept from compiling and collecting meanwhile (`loads`).
    """
    found = {}
    seconds = str(int(10 * scale) or 4)
    for client, run in (("Java", java_latency), ("Go", go_latency)):
        topic, group = f"latency-{client}", f"latency-group-{client}"
        target.topic(topic)
        target.group(group)
        times = run(target.endpoint, topic, group, "500", seconds)
        found[f"send p99 ms at 500/s, {client}"] = times["send_p99_ms"]
        found[f"send-to-receive p99 ms at 500/s, {client}"] = times["e2e_p99_ms"]
    return found


SCENARIOS: dict[str, Callable[[Target, float], Figures]] = {
    "unary": unary,
    "batches": batches,
    "sequential": sequential,
    "send": java_send,
    "push": java_push,
    "simple": java_simple,
    "latency": latency,
}


def warm_up(target: Target) -> None:
    """What a server has stored before it is measured; ours has nothing to compile."""
    part = 10 if target.is_ours else 1
    h2load(target, send_request("bench", 1), WARM_UP_SINGLE // part, 16, 16)
    fill(target, "bench", (WARM_UP - WARM_UP_SINGLE) // part)


@contextmanager
def _started(name: str) -> Iterator[Target]:
    if name.startswith("apache-"):
        with apache(name.removeprefix("apache-")) as target:
            yield target
    else:
        with ours("--front", name, name=name) as target:
            yield target


def measure(name: str, wanted: list[str], scale: float) -> Figures:
    """Start one server, warm it up, run the scenarios, stop it."""
    with _started(name) as target:
        target.topic("bench")
        warm_up(target)
        figures: Figures = {"ready ms": target.ready_ms}
        for scenario in wanted:
            try:
                found = SCENARIOS[scenario](target, scale)
                # Load generators count a refusal as an answer, and a quick one.
                if (code := send_one(target.endpoint, "bench")) != OK:
                    raise RuntimeError(f"it takes no messages any more: code {code}")
                figures |= found
            except Exception as error:
                sys.stderr.write(f"{name}: {scenario} failed: {error}\n")
            sys.stderr.write(f"{name}: {figures}\n")
        figures["RSS MiB under load"] = target.rss_mib()
        return figures


def main() -> None:
    """Measure, print a table of medians and ratios, keep them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SCENARIOS))
    parser.add_argument("--servers", default="gate,grpcio,apache-sync,apache-async")
    parser.add_argument("--quick", action="store_true", help="a quarter of the load")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    names = flags.servers.split(",")
    rounds = [
        {name: measure(name, flags.only.split(","), 0.25 if flags.quick else 1.0) for name in names}
        for _ in range(flags.rounds)
    ]
    medians = {name: _medians([r[name] for r in rounds]) for name in names}
    _print(medians)
    if flags.json:
        kept = {"machine": described(), "medians": medians, "rounds": rounds}
        flags.json.write_text(json.dumps(kept, indent=1) + "\n")


def _medians(rounds: list[Figures]) -> Figures:
    keys = {key for figures in rounds for key in figures}
    return {key: statistics.median(f[key] for f in rounds if key in f) for key in sorted(keys)}


def _print(medians: dict[str, Figures]) -> None:
    mine = [name for name in medians if not name.startswith("apache-")]
    pairs = [(one, peer) for one in mine for peer in medians if peer.startswith("apache-")]
    ratios = [f"{one} / {peer}" for one, peer in pairs]
    print("| figure | " + " | ".join([*medians, *ratios]) + " |")
    print("|---" * (1 + len(medians) + len(ratios)) + "|")
    for key in sorted({key for figures in medians.values() for key in figures}):
        cells = [f"{medians[name].get(key, float('nan')):,.2f}" for name in medians]
        for one, peer in pairs:
            ours_, theirs = medians[one].get(key), medians[peer].get(key)
            cells.append(f"{ours_ / theirs:.2f}" if theirs and ours_ else "–")
        print(f"| {key} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
