"""What the broker has sealed, in a table; against a real broker with small segments."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cosmodrome_spark.errors import UnsupportedByServer
from cosmodrome_spark.jobs import export_segments
from cosmodrome_spark.jobs.config import JobConfig, load
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.open import read_table
from cosmodrome_spark.options import source_options
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.pull_server import PullServer
from tests.support.topic_filler import fill

BATCH = 6_000


def told(endpoints: str, folder: Path) -> JobConfig:
    source = [f"source.endpoints={endpoints}", "source.subscribe=orders"]
    return load("export-segments", None, [*source, f"table.path={folder / 'table'}"])


def test_what_is_sealed_is_exported_once_and_a_later_run_adds_what_was_sealed_since(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with CosmodromeProcess(tmp_path / "data", "store.segment_mib=4") as server:
        config = told(server.endpoints, tmp_path)
        source = source_options(config.source, streaming=False)
        for round_ in range(2):
            fill(server.endpoints, "orders", BATCH, body_bytes=600, first=round_ * BATCH)
            for _ in range(2):
                assert export_segments.run(JobContext(config, session=spark)) == 0
        _, sealed = export_segments.sealed_range(source, {})

    rows = [json.loads(line)["rows"] for line in capsys.readouterr().out.splitlines()]
    table = read_table(spark, config.must_table().open())
    found = sorted(map(tuple, table.select("queue_id", "queue_offset").collect()))
    assert found == sorted(
        (queue.queue_id, offset) for queue, end in sealed.items() for offset in range(end)
    )
    assert rows[0] > 0
    assert rows[2] > 0
    assert (rows[1], rows[3]) == (0, 0)
    assert rows[0] + rows[2] == len(found)


def test_a_server_without_segments_is_said_so(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    server.create("orders", 1)
    server.fill("orders", 0, 10)

    with pytest.raises(UnsupportedByServer):
        export_segments.run(JobContext(told(server.endpoints, tmp_path), session=spark))
