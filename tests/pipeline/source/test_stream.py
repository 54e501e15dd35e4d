"""What a stream reads next, as Spark asks on the driver."""

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from cosmodrome_spark.errors import DataLoss
from cosmodrome_spark.options import source_options
from cosmodrome_spark.source.stream import StreamReader
from tests.support.pull_server import PullServer, sample

LIMIT = ReadMaxBytes(100_000)


def reader(server: PullServer, **options: str) -> StreamReader:
    base = {"endpoints": server.endpoints, "subscribe": "orders", "startingOffsets": "earliest"}
    return StreamReader(source_options(base | options, streaming=True))


def fill(server: PullServer, count: int, body_bytes: int) -> None:
    for _ in range(count):
        message = sample("orders", 0, 0)
        message.body = bytes(body_bytes)
        server.append("orders", 0, message)


def at(offset: int) -> dict[str, object]:
    return {"@v": 1, "orders": {"broker-a:0": offset}}


def test_a_limit_in_bytes_follows_messages_that_grow(server: PullServer) -> None:
    server.create("orders", 1)
    fill(server, 200, 100)
    fill(server, 200, 10_000)
    stream = reader(server)

    small = stream.latestOffset(at(0), LIMIT)
    large = stream.latestOffset(at(200), LIMIT)

    assert 10 < small["orders"]["broker-a:0"] <= 210
    assert 200 < large["orders"]["broker-a:0"] <= 211


def test_large_messages_after_small_ones_are_left_to_the_next_batch(server: PullServer) -> None:
    server.create("orders", 1)
    fill(server, 40, 100)
    fill(server, 800, 10_000)

    end = reader(server).latestOffset(at(0), LIMIT)

    assert end["orders"]["broker-a:0"] <= 50


def test_a_topic_that_was_created_anew_is_noticed_beside_one_that_is_over_its_limit(
    server: PullServer,
) -> None:
    server.create("orders", 2)
    fill(server, 400, 1_000)
    stream = reader(server)
    start = {"@v": 1, "orders": {"broker-a:0": 0, "broker-a:1": 7}}

    end = stream.latestOffset(start, LIMIT)

    assert end["orders"]["broker-a:1"] == 0
    with pytest.raises(DataLoss, match="begins again"):
        stream.partitions(start, end)


def test_without_a_limit_a_batch_ends_where_the_queues_do(server: PullServer) -> None:
    server.create("orders", 1)
    fill(server, 3, 1)

    assert reader(server).latestOffset(at(0), ReadAllAvailable()) == at(3)


def test_a_group_is_where_the_last_batch_ended_also_when_nothing_follows(
    server: PullServer,
) -> None:
    server.create("orders", 1)
    fill(server, 3, 1)
    stream = reader(server, group="monitored", reportGroupOffsets="true")
    end = stream.latestOffset(at(0), ReadAllAvailable())
    stream.partitions(at(0), end)

    stream.latestOffset(end, ReadAllAvailable())

    assert server.committed["monitored", "orders", 0] == 3
