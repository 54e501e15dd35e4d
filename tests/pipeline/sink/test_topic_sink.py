"""Writing DataFrames to topics, on any server and on ours."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import BrokerRefused, InvalidOption
from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery, sink_options
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.road import read_ranges
from cosmodrome_spark.sink.encode import Encoder, Place, check_schema
from cosmodrome_spark.sink.staging import publish
from cosmodrome_spark.sink.writers import write_task
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.pull_server import PullServer

PLACE = Place("job", 3, 1)


def rows(count: int, **columns: object) -> pa.RecordBatch:
    values = [{"body": b"%d" % number, **columns} for number in range(count)]
    return pa.RecordBatch.from_pylist(values)


def bodies(server: PullServer, topic: str) -> list[bytes]:
    return [message.body for queue in server.topics[topic] for message in queue.messages]


def test_every_row_is_sent_once_and_every_ack_is_waited_for(server: PullServer) -> None:
    server.create("out", 1)
    options = sink_options({"endpoints": server.endpoints, "topic": "out", "batchMessages": "7"})

    written = write_task(options, iter([rows(50), rows(3)]), PLACE)

    assert written.rows == 53
    assert sorted(bodies(server, "out")) == sorted(
        [b"%d" % number for number in range(50)] + [b"0", b"1", b"2"]
    )


def test_rows_of_a_message_group_keep_their_order(server: PullServer) -> None:
    server.create("out", 1)
    options = sink_options({"endpoints": server.endpoints, "topic": "out", "batchMessages": "7"})

    write_task(options, iter([rows(50, message_group="g")]), PLACE)

    assert bodies(server, "out") == [b"%d" % number for number in range(50)]


def test_a_busy_broker_is_asked_again(server: PullServer) -> None:
    server.create("out", 1)
    server.sends_to_refuse = 2
    options = sink_options({"endpoints": server.endpoints, "topic": "out"})

    assert write_task(options, iter([rows(20)]), PLACE).rows == 20

    assert bodies(server, "out") == [b"%d" % n for n in range(20)]


def test_a_task_that_is_repeated_sends_the_same_ids() -> None:
    options = sink_options({"endpoints": "h:1", "topic": "out"})

    first, again = (list(Encoder(options, PLACE, 5).messages(rows(4))) for _ in range(2))

    ids = [message.user_properties["spark_dedup_id"] for message in first]
    assert ids == [f"job:3:1:{number}" for number in range(4)]
    assert first == again
    assert len({message.system_properties.message_id for message in first}) == 4


def test_a_column_can_name_the_row() -> None:
    options = sink_options({"endpoints": "h:1", "topic": "out", "dedupKey": "order"})

    (message,) = Encoder(options, PLACE, 5).messages(rows(1, order="o-7"))

    assert message.user_properties["spark_dedup_id"] == "job:o-7"


def test_types_follow_from_the_columns_and_large_bodies_are_packed() -> None:
    options = sink_options({"endpoints": "h:1", "topic": "out", "compressOver": "100"})
    encoder = Encoder(options, PLACE, 5)

    (fifo,) = encoder.messages(rows(1, message_group="g", tag="t", keys=["a", "b"]))
    (large,) = encoder.messages(pa.RecordBatch.from_pylist([{"body": "x" * 500}]))

    assert fifo.system_properties.message_type == pb.FIFO
    assert list(fifo.system_properties.keys) == ["a", "b"]
    assert large.system_properties.message_type == pb.NORMAL
    assert large.system_properties.body_encoding == pb.GZIP
    assert len(large.body) < 100


@pytest.mark.parametrize(
    ("column", "value"),
    [("properties", [("region", None)]), ("keys", ["a", None])],
)
def test_a_null_that_no_message_can_carry_is_named(column: str, value: object) -> None:
    kinds = {"properties": pa.map_(pa.string(), pa.string()), "keys": pa.list_(pa.string())}
    columns = {"body": pa.array([b"x"]), column: pa.array([value], kinds[column])}
    encoder = Encoder(sink_options({"endpoints": "h:1", "topic": "out"}), PLACE, 5)

    with pytest.raises(InvalidOption, match=column):
        list(encoder.messages(pa.RecordBatch.from_pydict(columns)))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [({"message_type": "TRANSACTION"}, "half"), ({"row": None}, "names no row")],
)
def test_a_row_that_would_be_lost_is_refused(columns: dict[str, object], reason: str) -> None:
    given = {"endpoints": "h:1", "topic": "out"} | ({"dedupKey": "row"} if "row" in columns else {})
    encoder = Encoder(sink_options(given), PLACE, 5)

    with pytest.raises(InvalidOption, match=reason):
        list(encoder.messages(rows(1, **columns)))


def test_what_a_later_write_sets_aside_leaves_what_an_earlier_one_did(
    spark: SparkSession, server: PullServer, tmp_path: Path
) -> None:
    options = {"endpoints": server.endpoints, "topic": "nowhere", "job": "nightly"}
    aside = {"onError": "deadLetterPath", "deadLetterPath": str(tmp_path)}
    for body in ("first", "second"):
        frame = spark.createDataFrame([(body,)], "body STRING").coalesce(1)
        frame.write.format("rocketmq").mode("append").options(**options, **aside).save()

    found = [row for file in tmp_path.iterdir() for row in pa.parquet.read_table(file).to_pylist()]
    kept = {pb.Message.FromString(row["message"]).body for row in found}
    assert kept == {b"first", b"second"}


def test_a_topic_that_is_missing_fails_or_is_set_aside(server: PullServer, tmp_path: Path) -> None:
    base = {"endpoints": server.endpoints, "topic": "nowhere"}
    with pytest.raises(BrokerRefused, match="deadLetterPath"):
        write_task(sink_options(base), iter([rows(2)]), PLACE)

    aside = {"onError": "deadLetterPath", "deadLetterPath": str(tmp_path)}
    written = write_task(sink_options({**base, **aside}), iter([rows(2)]), PLACE)

    found = pa.parquet.read_table(next(tmp_path.glob("*.parquet"))).to_pylist()
    assert (written.rows, written.refused) == (0, 2)
    assert "TOPIC_NOT_FOUND" in found[0]["reason"]
    assert pb.Message.FromString(found[1]["message"]).body == b"1"


@pytest.mark.parametrize(
    ("columns", "given", "reason"),
    [
        ({"value": "string"}, {}, "needs a column body"),
        ({"body": "int"}, {"topic": "t"}, "not string or binary"),
        ({"body": "string"}, {}, "say where to"),
        ({"body": "string", "colour": "string"}, {"topic": "t"}, "not written to topics"),
        ({"body": "string"}, {"topic": "t", "dedupKey": "id"}, "no column"),
    ],
)
def test_columns_are_checked_before_anything_is_sent(
    columns: dict[str, str], given: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidOption, match=reason):
        check_schema(columns, sink_options({"endpoints": "h:1", **given}))


def test_a_frame_is_written_by_its_format(spark: SparkSession, server: PullServer) -> None:
    server.create("out", 1)
    frame = spark.createDataFrame([("a", "x"), ("b", "y")], "body STRING, tag STRING")

    frame.write.format("rocketmq").mode("append").options(
        endpoints=server.endpoints, topic="out"
    ).save()

    assert sorted(bodies(server, "out")) == [b"a", b"b"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CosmodromeProcess]:
    with CosmodromeProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


def in_topic(server: CosmodromeProcess, topic: str) -> list[bytes]:
    connection = Connection((server.endpoints,))
    with WireCluster(connection) as cluster:
        bounds = cluster.bounds(cluster.queues(topic))
    spans = tuple(QueueRange(queue, 0, each.max_offset) for queue, each in bounds.items())
    return [
        body
        for batch in read_ranges(connection, spans, ReadQuery(("body",)))
        for body in batch.column(0).to_pylist()
    ]


def test_what_is_staged_is_seen_by_nobody_until_it_is_published_and_then_once(
    ours: CosmodromeProcess,
) -> None:
    given = {"endpoints": ours.endpoints, "topic": "once", "dedup": "transaction"}
    options = sink_options({**given, "batchMessages": "10"})
    lost_attempt = write_task(options, iter([rows(95)]), PLACE)
    written = write_task(options, iter([rows(95)]), PLACE)
    assert in_topic(ours, "once") == []

    for _ in range(3):
        publish(options.connection, "job", "checkpoint-1", 3, written.tokens)

    assert lost_attempt.tokens != written.tokens
    assert Counter(in_topic(ours, "once")) == {b"%d" % number: 1 for number in range(95)}


def test_a_pattern_over_all_topics_leaves_out_where_messages_are_staged(
    ours: CosmodromeProcess,
) -> None:
    given = {"endpoints": ours.endpoints, "topic": "patterned", "dedup": "transaction"}
    write_task(sink_options(given), iter([rows(1)]), PLACE)

    with WireCluster(Connection((ours.endpoints,))) as cluster:
        found = cluster.topics()

    assert "patterned" in found
    assert not [name for name in found if name.startswith("rmq_sys_")]


def test_a_new_checkpoint_publishes_under_its_own_numbers(ours: CosmodromeProcess) -> None:
    given = {"endpoints": ours.endpoints, "topic": "lineages", "dedup": "transaction"}
    options = sink_options(given)
    for lineage, batch in (("a", 5), ("a", 6), ("b", 0), ("a", 6), ("a", 2)):
        tokens = write_task(options, iter([rows(1)]), PLACE).tokens
        publish(options.connection, "job-2", lineage, batch, tokens)

    assert in_topic(ours, "lineages") == [b"0"] * 3


def test_a_published_batch_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    server = CosmodromeProcess(tmp_path / "data")
    with server:
        given = {"endpoints": server.endpoints, "topic": "once", "dedup": "transaction"}
        options = sink_options(given)
        tokens = write_task(options, iter([rows(30)]), PLACE).tokens
        publish(options.connection, "job", "c", 1, tokens)
        server.kill()
        server.start()
        again = Connection((server.endpoints,))

        publish(again, "job", "c", 1, tokens)

        assert Counter(in_topic(server, "once")) == {b"%d" % number: 1 for number in range(30)}
