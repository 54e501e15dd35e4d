"""The long run: thousands of seeds, each twice, in as many processes as there are processors.

    python -m tests.simulation --seeds 1000:3000 --operations 10000 --jobs 2

Prints one line per seed as it ends, so that a run that was stopped says how far it came. Ends
with 1 if a promise was broken, or if a seed gave two traces.
"""

import argparse
import gc
import multiprocessing
import os
import sys
import time
import traceback
from functools import partial
from typing import NamedTuple

from tests.simulation.wider import WiderSimulation
from tests.simulation.world import Simulation


class Outcome(NamedTuple):
    """What became of a seed.

    Attributes:
        seed: Which.
        trace: The hash of its trace; nothing after a failure.
        crashes: How often its broker died.
        deliveries: How many messages its consumers got.
        cpu_s: What both runs took.
        failure: What went wrong; nothing for nothing.
    """

    seed: int
    trace: str
    crashes: int
    deliveries: int
    cpu_s: float
    failure: str


def run_twice(seed: int, operations: int, kind: type[Simulation] = Simulation) -> Outcome:
    """Run a seed twice; both runs must keep every promise and leave one trace."""
    # Looking for rubbish is a third of the time: up to 500 MB of it lie until the process ends.
    gc.disable()
    started = time.process_time()
    simulation = kind(seed)
    trace = failure = ""
    try:
        trace = simulation.run(operations)
        again = kind(seed, is_repeat=True).run(operations)
        failure = "" if again == trace else f"two traces: {trace} and {again}"
    except Exception:
        failure = traceback.format_exc()
    cpu_s = time.process_time() - started
    return Outcome(seed, trace, simulation.crashes, simulation.deliveries, cpu_s, failure)


def main() -> int:
    """Run what the command line says; return the exit code."""
    options = _parser().parse_args()
    first, end = map(int, options.seeds.split(":"))
    os.nice(options.nice)
    print(f"seeds [{first}, {end}) with {options.operations} operations each, twice", flush=True)
    outcomes, failed = 0, []
    with multiprocessing.Pool(options.jobs, maxtasksperchild=1) as pool:
        kind = WiderSimulation if options.wider else Simulation
        one = partial(run_twice, operations=options.operations, kind=kind)
        for outcome in pool.imap_unordered(one, range(first, end)):
            outcomes += 1
            verdict = "FAILED" if outcome.failure else "ok"
            print(*outcome[:4], f"{outcome.cpu_s:.1f}s", verdict, outcome.failure, flush=True)
            if outcome.failure:
                failed.append(outcome.seed)
    print(f"{outcomes} seeds, {len(failed)} failed: {sorted(failed)}")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", default="1000:3000", help="the first and one past the last")
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--wider", action="store_true", help="with what is rarer, too")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness")
    return parser


if __name__ == "__main__":
    sys.exit(main())
