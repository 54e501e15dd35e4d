"""One suite for every road, against our own server."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cosmodrome_spark.errors import BrokerRefused, DataLoss, TopicNotFound
from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueRange
from cosmodrome_spark.options import Connection, ReadQuery, sink_options
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.road import read_ranges
from cosmodrome_spark.read.segments import SegmentReader
from cosmodrome_spark.schema import ALL_COLUMNS, arrow_schema
from cosmodrome_spark.sink.encode import Place
from cosmodrome_spark.sink.writers import write_task
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.topic_filler import fill

ROADS = ("auto", "bulk", "pull")
COUNT = 12_000


@pytest.fixture(scope="module")
def server() -> Iterator[CosmodromeProcess]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        # Small segments: most of the topic is sealed.
        with CosmodromeProcess(data, "store.segment_mib=4") as running:
            fill(running.endpoints, "orders", COUNT, body_bytes=600)
            yield running


@pytest.fixture(scope="module")
def ends(server: CosmodromeProcess) -> Offsets:
    with WireCluster(Connection((server.endpoints,))) as cluster:
        bounds = cluster.bounds(cluster.queues("orders"))
    return {queue: each.max_offset for queue, each in bounds.items()}


def read(server: CosmodromeProcess, spans: list[QueueRange], **query: Any) -> pa.Table:
    query.setdefault("columns", ALL_COLUMNS)
    batches = read_ranges(Connection((server.endpoints,)), tuple(spans), ReadQuery(**query))
    return pa.Table.from_batches(batches, arrow_schema(query["columns"]))


@pytest.mark.parametrize("road", ROADS)
def test_every_road_gives_every_message_once_and_in_order(
    server: CosmodromeProcess, ends: Offsets, road: str
) -> None:
    for queue, end in ends.items():
        table = read(server, [QueueRange(queue, 0, end)], read_mode=road)
        assert table["queue_offset"].to_pylist() == list(range(end))
    spans = [QueueRange(queue, 0, end) for queue, end in sorted(ends.items())]
    ids = read(server, spans, read_mode=road, columns=("message_id",))["message_id"].to_pylist()
    assert sorted(ids) == [f"orders-{number:012d}" for number in range(COUNT)]


def test_all_roads_give_the_same_rows(server: CosmodromeProcess, ends: Offsets) -> None:
    queue, end = min(ends.items())
    wanted = tuple(name for name in ALL_COLUMNS if name != "store_host")
    tables = [
        read(server, [QueueRange(queue, 3, end - 2)], read_mode=road, columns=wanted)
        for road in ROADS
    ]

    rows = [table.to_pylist() for table in tables]

    assert rows[0] == rows[1]
    assert rows[1] == rows[2]
    assert rows[0][0]["keys"] == [f"k{int(dict(rows[0][0]['properties'])['number'])}"]


def test_most_of_a_full_topic_is_read_from_sealed_segments(
    server: CosmodromeProcess, ends: Offsets
) -> None:
    queue, end = min(ends.items())
    with SegmentReader(Connection((server.endpoints,))) as reader:
        manifest = reader.manifest(QueueRange(queue, 0, end))
        assert manifest is not None
        assert 0 < manifest.sealed_end <= end
        sealed = QueueRange(queue, 0, manifest.sealed_end)
        batches = list(reader.read(sealed, ReadQuery(("queue_offset",))))

    found = [offset for batch in batches for offset in batch.column(0).to_pylist()]
    assert found == list(range(manifest.sealed_end))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(
    ("filter_type", "expression"), [("TAG", "odd"), ("SQL", "TAGS = 'odd' AND region = 'eu-west'")]
)
def test_the_server_filters_on_every_road(
    server: CosmodromeProcess, ends: Offsets, road: str, filter_type: str, expression: str
) -> None:
    queue, end = min(ends.items())

    table = read(
        server,
        [QueueRange(queue, 0, end)],
        read_mode=road,
        filter=expression,
        filter_type=filter_type,
        columns=("queue_offset", "tag"),
    )

    everything = read(server, [QueueRange(queue, 0, end)], columns=("queue_offset", "tag"))
    wanted = [row for row in everything.to_pylist() if row["tag"] == "odd"]
    assert table.to_pylist() == wanted


@pytest.mark.parametrize("road", ROADS)
def test_a_range_past_the_end_is_a_loss(
    server: CosmodromeProcess, ends: Offsets, road: str
) -> None:
    queue, end = min(ends.items())

    with pytest.raises(DataLoss):
        read(server, [QueueRange(queue, end - 1, end + 3)], read_mode=road)


@pytest.mark.parametrize("road", ROADS)
def test_a_range_that_begins_past_the_end_is_a_loss_or_nothing(
    server: CosmodromeProcess, ends: Offsets, road: str
) -> None:
    queue, end = min(ends.items())
    span = QueueRange(queue, end + 3, end + 9)

    with pytest.raises(DataLoss, match="6 of the offsets"):
        read(server, [span], read_mode=road)
    assert read(server, [span], read_mode=road, fail_on_data_loss=False).num_rows == 0


@pytest.mark.parametrize("road", ROADS)
def test_a_topic_or_a_queue_that_is_not_there_is_refused(
    server: CosmodromeProcess, ends: Offsets, road: str
) -> None:
    queue = min(ends)
    with pytest.raises(BrokerRefused):
        read(server, [QueueRange(MessageQueue("orders", queue.broker, 99), 0, 5)], read_mode=road)


def test_topics_are_listed_without_those_of_the_system(server: CosmodromeProcess) -> None:
    with WireCluster(Connection((server.endpoints,))) as cluster:
        # Other tests of this server have made topics of their own, in whatever order they run.
        assert set(cluster.topics()) - {f"packed-{road}" for road in ROADS} == {"orders"}
        with pytest.raises(TopicNotFound):
            cluster.queues("%DLQ%nobody")


@pytest.mark.parametrize("road", ROADS)
def test_bodies_that_unpack_to_far_more_come_in_batches_of_the_size_asked_for(
    server: CosmodromeProcess, road: str
) -> None:
    topic = f"packed-{road}"
    bodies = [b"%d" % number + bytes(1 << 20) for number in range(24)]
    options = sink_options({"endpoints": server.endpoints, "topic": topic})
    write_task(options, iter([pa.RecordBatch.from_pydict({"body": bodies})]), Place(topic, 0, 0))
    with WireCluster(Connection((server.endpoints,))) as cluster:
        bounds = cluster.bounds(cluster.queues(topic))
    ends = {queue: each.max_offset for queue, each in bounds.items() if each.max_offset}
    spans = tuple(QueueRange(queue, 0, end) for queue, end in ends.items())
    query = ReadQuery(columns=("body",), read_mode=road, batch_bytes=4 << 20)

    batches = list(read_ranges(Connection((server.endpoints,)), spans, query))

    assert sorted(body for each in batches for body in each["body"].to_pylist()) == sorted(bodies)
    assert max(each.nbytes for each in batches) < 6 << 20
