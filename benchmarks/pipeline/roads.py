"""How fast is each road into Spark, and into a Parquet table, with the broker beside?

    python -m benchmarks.pipeline.roads [--messages 1000000] [--json FILE] [--svg FILE]
    python -m benchmarks.pipeline.roads --from FILE.json --svg FILE       the plot alone

One broker, one topic of 200-byte bodies with tag, key and two properties, local[2]; each
figure is messages per second of one Spark job over the whole topic, session started and
warm. `scan` counts rows (the noop sink), `archive` is the job of that name. The topic is
filled first, in a fresh folder, and most of it is sealed by small segments.

Beside each rate stands `cpu`: microseconds of all processes, broker included, for a message.
That holds on a machine that others use too; two quiet cores do 2,000,000 / cpu at most.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from benchmarks.machine import users_environment
from cosmodrome_spark.jobs import archive
from cosmodrome_spark.jobs.config import load
from cosmodrome_spark.jobs.progress import BatchProgress
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.report.plot import bars
from cosmodrome_spark.schema import ALL_COLUMNS
from cosmodrome_spark.session import SessionOptions, build_session
from cosmodrome_spark.zygote.start import warm_python
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.topic_filler import fill

COLUMNS_15 = ALL_COLUMNS[:15]
COLUMNS_4 = ("queue_id", "queue_offset", "store_timestamp", "body")
TOPIC = "bench"


def cpu_s() -> float:
    """CPU seconds so far of this process and all its children, the broker among them."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


class Memory:
    """The largest anonymous memory of this process and its children, the broker left out.

    Mapped segment files are the page cache's, not ours. A page that forked processes share
    counts once (the kernel's proportional set size).
    """

    def __init__(self, without: set[int]) -> None:
        self.peak_bytes = 0
        self._without = without
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    if process.pid not in self._without:
                        total += anonymous_bytes(process.pid)
                except (psutil.Error, OSError):
                    continue
            self.peak_bytes = max(self.peak_bytes, total)

    def stop(self) -> int:
        """End the watch; the peak in bytes."""
        self._stop.set()
        self._thread.join()
        return self.peak_bytes


def anonymous_bytes(pid: int) -> int:
    """What of a process's resident set is no file's, its share of what others have too."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    return 0


def scan(spark: SparkSession, endpoints: str, road: str, columns: tuple[str, ...]) -> float:
    options = {"endpoints": endpoints, "subscribe": TOPIC, "readMode": road}
    reader = spark.read.format("rocketmq").options(**options)
    frame = reader.option("columns", ",".join(columns)).option("cores", "2").load()
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def archived(spark: SparkSession, endpoints: str, road: str, folder: Path, messages: int) -> float:
    """Seconds inside batches, the first one (class loading) left out where there are more."""
    told: list[BatchProgress] = []
    sets = [
        f"source.endpoints={endpoints}",
        f"source.subscribe={TOPIC}",
        f"source.readMode={road}",
        f"source.columns={','.join(COLUMNS_15)}",
        f"source.maxOffsetsPerTrigger={max(1, messages // 3)}",
        f"table.path={folder / 'table'}",
        f"stream.checkpoint={folder / 'checkpoint'}",
    ]
    context = JobContext(load("archive", None, sets), once=True, tell=told.append, session=spark)
    assert archive.run(context) == 0
    done = [each for each in told if each.rows]
    assert sum(each.rows for each in done) == messages
    counted = done[1:] or done
    return sum(e.rows for e in counted) / (sum(e.batch_ms for e in counted) / 1000)


def first_commit_s(endpoints: str, folder: Path) -> float:
    """Seconds from the command to the first commit in the table."""
    command = [sys.executable, "-m", "cosmodrome_server", "pipeline", "archive", "--once"]
    for each in (
        f"source.endpoints={endpoints}",
        f"source.subscribe={TOPIC}",
        "source.maxOffsetsPerTrigger=10000",
        f"table.path={folder / 'table'}",
        f"stream.checkpoint={folder / 'checkpoint'}",
        "session.master=local[2]",
    ):
        command += ["--set", each]
    begun = time.perf_counter()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=users_environment())
    sign = folder / "table" / "_manifest" / f"{1:020d}.json"
    while not sign.exists() and process.poll() is None:
        time.sleep(0.02)
    took = time.perf_counter() - begun
    process.terminate()
    process.wait(60)
    return took if sign.exists() else float("nan")


def measure(messages: int, repeats: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"messages": messages, "load_average": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with CosmodromeProcess(folder / "data", "store.segment_mib=32") as server:
            broker = {each.pid for each in psutil.Process().children(recursive=True)}
            fill(server.endpoints, TOPIC, messages, body_bytes=200)
            figures["first_commit_s"] = first_commit_s(server.endpoints, folder / "first")
            memory = Memory(broker)
            warm = warm_python()  # as jobs do
            options = SessionOptions("bench", master="local[2]", share_classes=True)
            spark = build_session(options, python=warm.executable if warm else None)
            scan(spark, server.endpoints, "auto", COLUMNS_4)
            for road in ("auto", "bulk", "pull"):
                for columns in (COLUMNS_15, COLUMNS_4):
                    used, best = cpu_s(), float("inf")
                    for _ in range(repeats):
                        best = min(best, scan(spark, server.endpoints, road, columns))
                    name_of = f"scan {road} {len(columns)} columns"
                    figures[name_of] = round(messages / best)
                    micros = (cpu_s() - used) * 1e6 / (messages * repeats)
                    figures[f"{name_of} cpu"] = round(micros, 2)
            for road in ("auto", "bulk", "pull"):
                into = folder / road
                used = cpu_s()
                rate = archived(spark, server.endpoints, road, into, messages)
                figures[f"archive {road} 15 columns"] = round(rate)
                micros = (cpu_s() - used) * 1e6 / messages
                figures[f"archive {road} 15 columns cpu"] = round(micros, 2)
            spark.stop()
            if warm:
                warm.close()
            figures["peak_mib"] = memory.stop() >> 20
    return figures


def plot(figures: dict[str, Any]) -> str:
    """Bars of the messages per second, by road."""
    rates = {k: v for k, v in figures.items() if "columns" in k and not k.endswith("cpu")}
    drawn = bars({k.replace(" columns", ""): v for k, v in rates.items()}, unit="messages/s")
    # In a page of HTML a drawing has its namespace and its colour from there; a file has not.
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return drawn.replace('fill="currentColor"', 'fill="#55606b"', 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--from", type=Path, dest="known")
    told = parser.parse_args()
    if told.known:
        figures = json.loads(told.known.read_text())
    else:
        figures = measure(told.messages, told.repeats)
    if told.svg:
        told.svg.write_text(plot(figures) + "\n")
    text = json.dumps(figures, indent=2)
    print(text)
    if told.json:
        told.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
