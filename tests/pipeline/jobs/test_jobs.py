"""Jobs run in this process over one session, against a server in memory or a real one."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import InvalidJobConfig, TableConflict
from cosmodrome_spark.jobs import registry
from cosmodrome_spark.jobs.compact import groups_to_compact
from cosmodrome_spark.jobs.config import TableConfig, load
from cosmodrome_spark.jobs.lag import summary
from cosmodrome_spark.jobs.latest import LatestOptions, merge_rows
from cosmodrome_spark.jobs.progress import BatchProgress
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import DataFile, Layout
from cosmodrome_spark.lake.open import read_table
from tests.support.pull_server import PullServer, sample

Told = list[BatchProgress]


@pytest.fixture
def orders(server: PullServer) -> PullServer:
    server.create("orders", 2)
    server.fill("orders", 0, 300)
    server.fill("orders", 1, 7)
    return server


def run(
    spark: SparkSession,
    job: str,
    tmp_path: Path,
    *sets: str,
    name: str = "",
    told: Told | None = None,
) -> int:
    config = load(
        job,
        None,
        [
            f"job.name={name or job}",
            f"table.path={tmp_path / 'table'}",
            f"stream.checkpoint={tmp_path / 'checkpoint'}",
            *sets,
        ],
    )
    tell = (lambda _: None) if told is None else told.append
    return registry.job(job)(JobContext(config, once=True, tell=tell, session=spark))


def archive(spark: SparkSession, server: PullServer, tmp_path: Path, *sets: str) -> int:
    source = (f"source.endpoints={server.endpoints}", "source.subscribe=orders")
    return run(spark, "archive", tmp_path, *source, *sets)


def places(spark: SparkSession, tmp_path: Path, table_format: str = "parquet") -> list[Any]:
    table = load("x", None, [f"table.path={tmp_path / 'table'}", f"table.format={table_format}"])
    rows = read_table(spark, table.must_table().open()).select("queue_id", "queue_offset")
    return sorted((row[0], row[1]) for row in rows.collect())


EVERYTHING = [(0, offset) for offset in range(300)] + [(1, offset) for offset in range(7)]


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_archive_holds_every_message_once_and_goes_on_where_it_was(
    spark: SparkSession, orders: PullServer, tmp_path: Path, table_format: str
) -> None:
    kind = f"table.format={table_format}"
    assert archive(spark, orders, tmp_path, kind, "source.maxOffsetsPerTrigger=200") == 0
    assert places(spark, tmp_path, table_format) == EVERYTHING
    orders.fill("orders", 1, 3)

    assert archive(spark, orders, tmp_path, kind) == 0

    assert places(spark, tmp_path, table_format) == [*EVERYTHING, (1, 7), (1, 8), (1, 9)]


def test_a_lost_checkpoint_goes_on_from_the_tables_own_offsets(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    archive(spark, orders, tmp_path)
    orders.fill("orders", 0, 5)

    archive(spark, orders, tmp_path, f"stream.checkpoint={tmp_path / 'new'}")

    assert places(spark, tmp_path) == sorted([*EVERYTHING, *((0, 300 + n) for n in range(5))])
    with pytest.raises(TableConflict, match="another checkpoint"):
        archive(spark, orders, tmp_path)


def test_a_queue_that_is_added_is_read_from_its_beginning(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    archive(spark, orders, tmp_path)
    orders.topics["orders"].append(type(orders.topics["orders"][0])())
    orders.fill("orders", 2, 4)

    assert archive(spark, orders, tmp_path) == 0

    assert places(spark, tmp_path) == [*EVERYTHING, *((2, offset) for offset in range(4))]


@pytest.mark.parametrize("lost", ["retention", "topic"])
def test_what_was_lost_while_the_job_was_down_fails_it_or_is_passed_over(
    spark: SparkSession, orders: PullServer, tmp_path: Path, lost: str
) -> None:
    archive(spark, orders, tmp_path)
    if lost == "retention":
        orders.fill("orders", 0, 50)
        orders.topics["orders"][0].min_offset = 320
    else:
        orders.create("orders", 2)
        orders.fill("orders", 0, 20)

    assert archive(spark, orders, tmp_path, "stream.retries=0") == 1
    assert archive(spark, orders, tmp_path, "source.failOnDataLoss=false") == 0

    again = (
        [(0, n) for n in range(320, 350)] if lost == "retention" else [(0, n) for n in range(20)]
    )
    assert places(spark, tmp_path) == sorted([*EVERYTHING, *again])


def test_a_topic_deleted_while_the_job_was_down_fails_it_or_leaves_what_was_read(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    archive(spark, orders, tmp_path)
    del orders.topics["orders"]

    assert archive(spark, orders, tmp_path, "stream.retries=0") == 1
    assert archive(spark, orders, tmp_path, "source.failOnDataLoss=false") == 0
    assert places(spark, tmp_path) == EVERYTHING


def test_progress_says_rows_and_lag_by_queue(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    told: Told = []
    source = (f"source.endpoints={orders.endpoints}", "source.subscribe=orders")

    run(spark, "archive", tmp_path, *source, "source.maxOffsetsPerTrigger=200", told=told)

    batches = [each for each in told if each.rows]
    assert batches[0].rows in range(195, 202)
    assert sum(each.rows for each in batches) == 307
    assert batches[0].lag == 307 - batches[0].rows
    assert batches[-1].lag_by_queue == {"orders/broker-a:0": 0, "orders/broker-a:1": 0}


def test_compact_joins_files_and_audit_finds_nothing_missing(
    spark: SparkSession, orders: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(spark, orders, tmp_path, "source.maxOffsetsPerTrigger=60")

    assert run(spark, "compact", tmp_path, "job.older_than=0s") == 0
    assert run(spark, "audit", tmp_path, "job.of=archive") == 0

    table = load("x", None, [f"table.path={tmp_path / 'table'}"]).must_table().open()
    assert len(table.files()) == 1
    assert places(spark, tmp_path) == EVERYTHING
    assert '"is_complete": true' in capsys.readouterr().out


def test_small_files_are_joined_by_as_many_as_make_one() -> None:
    layout = Layout("table", target_bytes=100)
    sizes = (40, 50, 90, 60, 30, 5, 74)
    files = [DataFile(f"{size}", 1, size, {"topic": "orders"}, 0) for size in sizes]

    groups = groups_to_compact(files, layout, resting_before_ms=1)

    assert [[each.bytes for each in group] for group in groups] == [[40, 50], [60, 30, 5]]


def test_audit_names_what_is_missing(
    spark: SparkSession, orders: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(spark, orders, tmp_path)
    reason = "job.reason=asked to"
    run(spark, "purge", tmp_path, "job.column=message_id", "job.values=orders-0-17", reason)

    assert run(spark, "audit", tmp_path, "job.of=archive") == 1

    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    gap = {"topic": "orders", "broker": "broker-a", "queue_id": 0, "start": 17, "end": 18}
    assert {"gap": gap} in said
    assert places(spark, tmp_path) == [each for each in EVERYTHING if each != (0, 17)]


def test_decode_makes_columns_and_sets_bad_rows_aside(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    bad = sample("orders", 1, 7)
    bad.body = b"no json"
    orders.append("orders", 1, bad)

    code = run(
        spark,
        "decode",
        tmp_path,
        f"source.endpoints={orders.endpoints}",
        "source.subscribe=orders",
        f"rejects.path={tmp_path / 'rejects'}",
        "job.schema=queue INT, offset BIGINT",
    )

    rejects = load("x", None, [f"table.path={tmp_path / 'rejects'}"]).must_table().open()
    table = load("x", None, [f"table.path={tmp_path / 'table'}"]).must_table().open()
    rows = read_table(spark, table).select("queue_id", "queue", "queue_offset", "offset").collect()
    (reject,) = read_table(spark, rejects).collect()
    assert code == 0
    assert len(rows) == 307
    assert all(row[0] == row[1] and row[2] == row[3] for row in rows)
    assert (reject["queue_offset"], bytes(reject["body"])) == (7, b"no json")
    assert "schema" in reject["reason"]


def test_replay_sends_rows_of_a_table_in_the_order_of_their_queues(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    archive(spark, orders, tmp_path)
    orders.create("copy", 1)
    target = (f"target.endpoints={orders.endpoints}", "target.topic=copy")

    assert run(spark, "replay", tmp_path, *target, "job.where=queue_id = 1 AND tag = 'odd'") == 0

    copies = orders.topics["copy"][0].messages
    assert [each.user_properties["cosmodrome_origin"] for each in copies] == [
        "orders-1-1", "orders-1-3", "orders-1-5",
    ]  # fmt: skip
    assert [each.body for each in copies] == [
        orders.topics["orders"][1].messages[offset].body for offset in (1, 3, 5)
    ]


def test_what_was_replayed_is_replayed_again(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    for source, target in (("orders", "copy"), ("copy", "copy-of-copy")):
        orders.create(target, 1)
        where = (f"source.endpoints={orders.endpoints}", f"source.subscribe={source}")
        sets = (*where, f"target.endpoints={orders.endpoints}", f"target.topic={target}")
        config = load("replay", None, sets)
        assert registry.job("replay")(JobContext(config, session=spark)) == 0

    copies, again = (orders.topics[name][0].messages for name in ("copy", "copy-of-copy"))
    origins = {each.user_properties["cosmodrome_origin"] for each in again}
    assert len(again) == len(copies) == 307
    assert origins == {each.system_properties.message_id for each in copies}


def test_dead_letters_are_reported_and_go_back_once_each(
    spark: SparkSession, server: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create("%DLQ%billing", 1)
    server.create("orders", 1)
    server.create("billing-quarantine", 1)
    for number in range(5):
        letter = sample("orders", 0, number, exception="Timeout")
        letter.system_properties.dead_letter_queue.topic = "orders"
        letter.system_properties.dead_letter_queue.message_id = f"first-{number}"
        if number == 4:
            letter.user_properties["cosmodrome_redrives"] = "3"
        server.append("%DLQ%billing", 0, letter)
    where = (f"source.endpoints={server.endpoints}", "job.group=billing")

    page = tmp_path / "page.html"
    report = (f"job.html={page}", "job.format=json", "table.path=unused")
    assert run(spark, "dlq-report", tmp_path, *where, *report) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["origin"], said["reason"], said["messages"]) == ("orders", "Timeout", 5)
    assert "<svg" in page.read_text()
    assert "Timeout" in page.read_text()

    for _ in range(2):
        assert run(spark, "dlq-redrive", tmp_path, *where, "job.rate=0") == 0

    back = server.topics["orders"][0].messages
    assert [each.user_properties["cosmodrome_origin"] for each in back] == [
        f"first-{number}" for number in range(4)
    ]
    assert {each.user_properties["cosmodrome_redrives"] for each in back} == {"1"}
    assert len(server.topics["billing-quarantine"][0].messages) == 1


def test_letters_of_a_later_run_have_ids_of_their_own(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    server.create("%DLQ%billing", 1)
    server.create("orders", 1)
    where = (f"source.endpoints={server.endpoints}", "job.group=billing", "job.rate=0")
    for number in range(2):
        letter = sample("orders", 0, number)
        letter.system_properties.dead_letter_queue.topic = "orders"
        server.append("%DLQ%billing", 0, letter)
        assert run(spark, "dlq-redrive", tmp_path, *where) == 0

    back = server.topics["orders"][0].messages

    assert len({each.system_properties.message_id for each in back}) == 2
    assert len({each.user_properties["spark_dedup_id"] for each in back}) == 2


def test_a_moment_to_begin_at_brings_no_letter_back_twice(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    server.create("%DLQ%billing", 1)
    server.create("orders", 1)
    letter = sample("orders", 0, 0)
    letter.system_properties.dead_letter_queue.topic = "orders"
    server.append("%DLQ%billing", 0, letter)
    where = (f"source.endpoints={server.endpoints}", "job.group=billing", "job.rate=0")

    for _ in range(2):
        assert run(spark, "dlq-redrive", tmp_path, *where, "source.startingTimestamp=1") == 0

    assert len(server.topics["orders"][0].messages) == 1


def test_a_message_keeps_its_kind_on_every_way(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    for topic in ("%DLQ%billing", "orders", "mirrored", "replayed"):
        server.create(topic, 1)
    for number in range(2):
        letter = sample("orders", 0, number)
        letter.system_properties.dead_letter_queue.topic = "orders"
        server.append("%DLQ%billing", 0, letter)
    urgent, late = (each.system_properties for each in server.topics["%DLQ%billing"][0].messages)
    urgent.priority = 3
    late.delivery_timestamp.seconds = 1_700_000_000
    source = f"source.endpoints={server.endpoints}"
    orders = (source, "source.subscribe=orders", f"target.endpoints={server.endpoints}")

    assert run(spark, "dlq-redrive", tmp_path, source, "job.group=billing", "job.rate=0") == 0
    assert run(spark, "mirror", tmp_path, *orders, 'job.map={"orders": "mirrored"}') == 0
    config = load("replay", None, [*orders, "target.topic=replayed"])
    assert registry.job("replay")(JobContext(config, session=spark)) == 0

    for topic in ("orders", "mirrored", "replayed"):
        first, second = (each.system_properties for each in server.topics[topic][0].messages)
        assert (first.message_type, first.priority) == (pb.PRIORITY, 3)
        assert second.message_type == pb.DELAY
        assert second.delivery_timestamp == late.delivery_timestamp


def test_a_dry_run_sends_nothing(
    spark: SparkSession, server: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create("%DLQ%billing", 1)
    letter = sample("orders", 0, 1)
    letter.system_properties.dead_letter_queue.topic = "orders"
    server.append("%DLQ%billing", 0, letter)
    where = (f"source.endpoints={server.endpoints}", "job.group=billing", "job.dry_run=true")

    assert run(spark, "dlq-redrive", tmp_path, *where) == 0

    assert json.loads(capsys.readouterr().out)["outcome"] == "redriven"
    assert run(spark, "dlq-redrive", tmp_path, *where) == 0


def test_dedup_keeps_the_first_of_each_key(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    server.create("orders", 1)
    for offset in range(20):
        server.append("orders", 0, sample("orders", 0, offset % 8))
    source = (f"source.endpoints={server.endpoints}", "source.subscribe=orders")

    assert run(spark, "dedup", tmp_path, *source, "job.horizon=1 minute") == 0

    table = load("x", None, [f"table.path={tmp_path / 'table'}"]).must_table().open()
    ids = [row[0] for row in read_table(spark, table).select("message_id").collect()]
    assert sorted(ids) == sorted(f"orders-0-{number}" for number in range(8))


def test_latest_keeps_the_newest_row_of_each_key(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    sets = (
        f"source.endpoints={orders.endpoints}",
        "source.subscribe=orders",
        "source.maxOffsetsPerTrigger=100",
        "table.format=delta",
        "job.select=tag AS kind; queue_id; queue_offset; store_timestamp",
        "job.key=kind",
    )

    assert run(spark, "latest", tmp_path, *sets) == 0

    rows = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted((row["kind"], row["queue_offset"]) for row in rows) == [
        ("even", 298), ("odd", 299),
    ]  # fmt: skip


def test_latest_keeps_rows_of_which_the_condition_to_delete_says_nothing(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    options = LatestOptions(select="", key="key", order="number", delete="gone = 'gone'")
    where = TableConfig(str(tmp_path / "table"), format="delta")
    columns = pa.schema([("key", pa.string()), ("number", pa.int32()), ("gone", pa.string())])
    rows = [{"key": "a", "number": 1}, {"key": "b", "number": 1}]
    merge_rows(pa.Table.from_pylist(rows, columns), where, options)
    rows = [{"key": "a", "number": 2}, {"key": "b", "number": 2, "gone": "gone"}]
    merge_rows(pa.Table.from_pylist(rows, columns), where, options)

    found = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()

    assert found == [{"key": "a", "number": 2, "gone": None}]


def test_mirror_copies_topics_under_other_names(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    with PullServer() as other:
        other.create("orders-copy", 1)
        sets = (
            f"source.endpoints={orders.endpoints}",
            "source.subscribe=orders",
            f"target.endpoints={other.endpoints}",
            'job.map={"orders": "orders-copy"}',
        )

        assert run(spark, "mirror", tmp_path, *sets) == 0

        copies = other.topics["orders-copy"][0].messages
        places = {each.user_properties["cosmodrome_mirror_of"] for each in copies}
        assert len(copies) == 307
        assert places == {f"orders:broker-a:{queue}:{offset}" for queue, offset in EVERYTHING}


def test_a_mirror_of_a_mirror_has_ids_that_follow_from_where_rows_were(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    for source, target in (("orders", "near"), ("near", "far")):
        orders.create(target, 1)
        sets = (
            f"source.endpoints={orders.endpoints}",
            f"source.subscribe={source}",
            f"target.endpoints={orders.endpoints}",
            f'job.map={{"{source}": "{target}"}}',
            f"stream.checkpoint={tmp_path / source}",
        )
        assert run(spark, "mirror", tmp_path, *sets) == 0

    far = orders.topics["far"][0].messages
    assert sorted(each.user_properties["spark_dedup_id"] for each in far) == sorted(
        f"mirror:near:broker-a:0:{offset}" for offset in range(307)
    )


def test_aggregate_writes_what_a_query_says(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    orders.create("counts", 1)
    sets = (
        f"source.endpoints={orders.endpoints}",
        "source.subscribe=orders",
        f"target.endpoints={orders.endpoints}",
        "target.topic=counts",
        "job.output_mode=update",
        "job.sql=SELECT tag, count(*) AS n FROM messages GROUP BY tag",
    )
    config = load(
        "aggregate", None, ["job.name=a", f"stream.checkpoint={tmp_path / 'checkpoint'}", *sets]
    )

    code = registry.job("aggregate")(
        JobContext(config, once=True, tell=lambda _: None, session=spark)
    )

    bodies = [json.loads(each.body) for each in orders.topics["counts"][0].messages]
    assert code == 0
    assert {each["tag"]: each["n"] for each in bodies} == {"even": 154, "odd": 153}


def test_aggregate_writes_rows_of_any_columns_into_a_table(
    spark: SparkSession, orders: PullServer, tmp_path: Path
) -> None:
    source = (f"source.endpoints={orders.endpoints}", "source.subscribe=orders")

    assert run(spark, "aggregate", tmp_path, *source, "job.sql=SELECT tag FROM messages") == 0

    table = load("x", None, [f"table.path={tmp_path / 'table'}"]).must_table().open()
    assert read_table(spark, table).where("tag = 'odd'").count() == 153


def test_latency_gives_percentiles_and_a_page(
    spark: SparkSession, orders: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "latency.html"
    source = (f"source.endpoints={orders.endpoints}", "source.subscribe=orders")

    assert run(spark, "latency", tmp_path, *source, f"job.html={page}") == 0

    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["messages"] for row in said) == 307
    assert all(row["store_ms"][0] <= row["store_ms"][3] for row in said)
    assert all(row["deliver_ms"] is row["total_ms"] is None for row in said)
    assert "polyline" in page.read_text()


def test_lag_is_sampled_into_a_history(
    spark: SparkSession, orders: PullServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.committed["billing", "orders", 0] = 100
    source = (f"source.endpoints={orders.endpoints}", "source.subscribe=orders")

    page = tmp_path / "lag.html"
    sets = (*source, "job.groups=billing", f"job.html={page}")
    for _ in range(2):
        assert run(spark, "lag", tmp_path, *sets) == 0

    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "billing on orders" in page.read_text()
    assert "polyline" in page.read_text()
    table = load("x", None, [f"table.path={tmp_path / 'table'}"]).must_table().open()
    assert (said["lag"], said["eta_s"]) == (207, -1)
    assert read_table(spark, table).where("lag = 200").count() == 2


def test_a_topic_that_comes_later_has_its_lag_reckoned_from_then() -> None:
    def sampled(second: int, *topics: str) -> list[dict[str, Any]]:
        at = dt.datetime.fromtimestamp(second, dt.UTC)
        place = {"consumer_group": "g", "broker": "b", "queue_id": 0, "sampled_at": at}
        ends = {"end_offset": 10 * second, "committed_offset": 5 * second, "lag": 5 * second}
        return [{**place, **ends, "topic": topic} for topic in topics]

    seen = [sampled(1, "orders"), sampled(2, "orders", "bills"), sampled(4, "orders", "bills")]

    assert [each["stuck"] for each in summary(seen[:2])] == [[], []]
    assert [(each["topic"], each["produced_per_s"]) for each in summary(seen)] == [
        ("bills", 10.0), ("orders", 10.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        (["tabel.path=x"], "did you mean table"),
        (["table.pth=x"], "did you mean path"),
        (["table.path=3"], "expected str"),
        (["stream.retries=many"], "expected int"),
        (["nonsense"], "section.key=value"),
    ],
)
def test_a_configuration_says_what_is_wrong_with_it(sets: list[str], reason: str) -> None:
    with pytest.raises(InvalidJobConfig, match=reason):
        load("archive", None, sets)


def test_a_file_and_settings_on_top_of_it(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[job]\nname = "a"\nforce_new_lineage = true\n'
        '[source]\nendpoints = "h:1"\nfailOnDataLoss = false\nmaxOffsetsPerTrigger = 5\n'
        '[table]\npath = "t"\n'
    )

    config = load("archive", file, ["table.path=other"])

    assert config.name == "a"
    assert config.source["failOnDataLoss"] == "false"
    assert config.must_table().path == "other"
    assert config.job == {"force_new_lineage": True}
