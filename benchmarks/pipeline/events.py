"""What delivery events cost: a message sent, received and acknowledged, with and without them.

    python -m benchmarks.pipeline.events [--messages N] [--pairs N]

The broker on the real store without a front (`benchmarks.micro.cycle`), batches of 32. Runs
without and with events take turns, each on a store of its own; a run's CPU time is that of
all threads until the broker is closed, so that events that are written late count too.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.micro.cycle import (
    BATCH,
    CALLS_PER_TURN,
    TOPIC,
    Server,
    ack_requests,
    receive_request,
)
from benchmarks.requests import send_request
from cosmodrome_server.app import tune_interpreter
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.broker.operation_events import ObservedBroker


async def cpu_us(data: Path, kind: type[LocalBroker], messages: int) -> float:
    """CPU microseconds of a message's whole way."""
    server = Server(data, kind)
    await asyncio.sleep(0)
    rounds = max(1, messages // (BATCH * CALLS_PER_TURN))
    sends = [send_request(TOPIC, BATCH)] * CALLS_PER_TURN
    pops = [receive_request(BATCH)] * CALLS_PER_TURN
    spent = 0.0
    for _ in range(rounds):
        begun = time.process_time()
        await server.call("SendMessage", sends)
        found = await server.call("ReceiveMessage", pops)
        spent += time.process_time() - begun
        acks = ack_requests(found)  # the client's work
        begun = time.process_time()
        await server.call("AckMessage", acks)
        spent += time.process_time() - begun
    begun = time.process_time()
    await server.broker.close()
    spent += time.process_time() - begun
    return spent / (rounds * BATCH * CALLS_PER_TURN) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    told = parser.parse_args()
    tune_interpreter()
    kinds: dict[str, type[LocalBroker]] = {"without": LocalBroker, "with": ObservedBroker}
    figures: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(told.pairs):
            for name, kind in kinds.items():
                data = Path(folder) / f"{name}{pair}"
                figures[name].append(asyncio.run(cpu_us(data, kind, told.messages)))
    for name, runs in figures.items():
        print(f"{name:8} {median(runs):6.2f} µs   {', '.join(f'{each:.2f}' for each in runs)}")
    more = median(w - o for w, o in zip(figures["with"], figures["without"], strict=True))
    print(f"a delivery event costs {more:.2f} µs (median of the pairs)")


if __name__ == "__main__":
    main()
