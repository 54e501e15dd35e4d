from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import BrokerUnreachable, DataLoss, TopicNotFound
from cosmodrome_spark.offsets import MessageQueue, QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.pull import PullReader
from cosmodrome_spark.schema import ALL_COLUMNS, arrow_schema
from tests.support.pull_server import BROKER, PullServer, at_ms, sample

QUEUE = MessageQueue("orders", BROKER, 0)


@pytest.fixture(params=[1, 7, 32, 1024], ids="at most {} a reply".format)
def capped(request: pytest.FixtureRequest) -> Iterator[PullServer]:
    with PullServer(batch_size_max=request.param) as running:
        running.create("orders", 2)
        yield running


def read(server: PullServer, start: int, end: int, **query: Any) -> list[dict[str, Any]]:
    query.setdefault("columns", ALL_COLUMNS)
    with PullReader(Connection((server.endpoints,))) as reader:
        batches = list(reader.read(QueueRange(QUEUE, start, end), ReadQuery(**query)))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def test_every_offset_of_a_range_comes_once_and_in_order(capped: PullServer) -> None:
    capped.fill("orders", 0, 150)

    rows = read(capped, 5, 143)

    assert [row["queue_offset"] for row in rows] == list(range(5, 143))
    assert [row["body"] for row in rows] == [
        b'{"queue": 0, "offset": %d}' % offset for offset in range(5, 143)
    ]


def test_a_filter_leaves_messages_out_without_that_being_a_loss(capped: PullServer) -> None:
    capped.fill("orders", 0, 61)

    rows = read(capped, 0, 61, filter="odd")

    assert [row["queue_offset"] for row in rows] == list(range(1, 61, 2))


def test_offsets_that_retention_took_are_a_loss(capped: PullServer) -> None:
    capped.fill("orders", 0, 50)
    capped.topics["orders"][0].min_offset = 20

    with pytest.raises(DataLoss, match=r"20 of the offsets \[0, 20\)"):
        read(capped, 0, 50)
    rows = read(capped, 0, 50, fail_on_data_loss=False)
    assert [row["queue_offset"] for row in rows] == list(range(20, 50))


def test_a_range_past_the_end_is_a_loss_and_never_an_endless_wait(capped: PullServer) -> None:
    capped.fill("orders", 0, 10)

    with pytest.raises(DataLoss):
        read(capped, 0, 12)
    assert len(read(capped, 0, 12, fail_on_data_loss=False)) == 10


def test_all_columns_have_the_types_and_values_of_the_row(server: PullServer) -> None:
    server.create("orders", 1)
    message = sample("orders", 0, 0, city="Köln")
    system = message.system_properties
    system.message_group, system.trace_context, system.lite_topic = "customer-7", "00-ab", "lite"
    system.priority, system.message_type = 3, pb.FIFO
    system.delivery_timestamp.CopyFrom(at_ms(1_800_000_000_123))
    system.dead_letter_queue.topic, system.dead_letter_queue.message_id = "origin", "id-1"
    system.keys.extend(["a", "b"])
    server.append("orders", 0, message)
    server.fill("orders", 0, 1)
    with PullReader(Connection((server.endpoints,))) as reader:
        (batch,) = reader.read(QueueRange(QUEUE, 0, 2), ReadQuery(ALL_COLUMNS))

    row, plain = batch.to_pylist()

    assert batch.schema.equals(arrow_schema())
    assert (row["message_group"], row["trace_context"], row["lite_topic"]) == (
        "customer-7", "00-ab", "lite",
    )  # fmt: skip
    assert (row["priority"], row["message_type"], row["tag"]) == (3, "FIFO", "even")
    assert dict(row["properties"]) == {"place": "0-0", "city": "Köln"}
    assert row["keys"] == ["a", "b"]
    assert row["dlq"] == {"topic": "origin", "message_id": "id-1"}
    assert row["delivery_timestamp"].timestamp() == 1_800_000_000.123
    assert row["born_timestamp"].timestamp() == 1_690_000_000.0
    assert row["store_host"] == "127.0.0.1:10911"
    assert plain["message_group"] is plain["priority"] is plain["dlq"] is None
    assert plain["delivery_attempt"] is None


def test_a_topic_that_is_gone_is_named(server: PullServer) -> None:
    with pytest.raises(TopicNotFound, match="orders"):
        read(server, 0, 5)


def test_a_broker_that_is_gone_is_said_so() -> None:
    with PullServer() as server:
        server.create("orders", 1)
    connection = Connection((server.endpoints,), timeout_ms=100)
    with PullReader(connection) as reader, pytest.raises(BrokerUnreachable):
        list(reader.read(QueueRange(QUEUE, 0, 5), ReadQuery(ALL_COLUMNS)))
