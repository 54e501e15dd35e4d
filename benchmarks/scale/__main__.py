"""Much of something: stored messages, queues, delayed messages, messages in flight, clients, calls.

    python -m benchmarks.scale stored [--messages N] [--body BYTES] [--data DIR]
    python -m benchmarks.scale memory
    python -m benchmarks.scale delayed [--seconds N] [--scheduled N] [--fsync-ms N]
    python -m benchmarks.scale idle [--seconds N] [--connections N] [--waiting N] [--front F]
    python -m benchmarks.scale flow [--seconds N] [--front F]

`stored` compares a log of 10,000 messages with one of N (ten million: 2.3 GB of disk). Each
prints JSON. The limits are those of storage.md 4 and of the issue of the storage core.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from benchmarks.machine import described
from benchmarks.scale import delayed, flow, idle, memory, stored

_FEW = 10_000
_FREE_BYTES_MIN = 10 << 30


def _stored(options: argparse.Namespace) -> dict[str, object]:
    data = Path(tempfile.mkdtemp(dir=options.data))
    try:
        if shutil.disk_usage(data).free < _FREE_BYTES_MIN:
            raise SystemExit(f"{data} has less than {_FREE_BYTES_MIN >> 30} GiB free")
        few, many = data / "few", data / "many"
        return {
            "fill": [
                stored.filled(few, _FEW, options.body),
                stored.filled(many, options.messages, options.body),
            ],
            "cost": stored.compared(few, many, options.body),
            "start": stored.starts(many, options.body),
        }
    finally:
        shutil.rmtree(data)


def main() -> None:
    """Measure what the command line says, and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale")
    parser.add_argument("what", choices=["stored", "memory", "delayed", "idle", "flow"])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--data", type=Path, help="where the logs are made (default: TMPDIR)")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--scheduled", type=int, default=1_000_000)
    parser.add_argument("--fsync-ms", type=int, default=0)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--waiting", type=int, default=2_000)
    parser.add_argument("--front", default="gate", choices=["gate", "grpcio"])
    parser.add_argument("--tls", default="auto", choices=["auto", "off"])
    options = parser.parse_args()
    if options.what == "stored":
        found = _stored(options)
    elif options.what == "memory":
        found = memory.measured(options.data)
    elif options.what == "idle":
        found = dict(
            idle.measured(
                *(options.front, options.connections, options.waiting, options.seconds),
                options.tls,
            )
        )
    elif options.what == "flow":
        found = dict(flow.measured(options.front, options.seconds))
    else:
        found = delayed.in_directory(
            options.data, options.scheduled, options.seconds, options.fsync_ms
        )
    print(json.dumps({"machine": described(), options.what: found}, indent=1))


if __name__ == "__main__":
    main()
