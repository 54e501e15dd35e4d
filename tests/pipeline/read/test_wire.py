"""A broker that restarts is waited for, one that was never there is not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cosmodrome_proto import control_pb2
from cosmodrome_spark.errors import BrokerUnreachable
from cosmodrome_spark.offsets import MessageQueue, QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.pull import PullReader
from cosmodrome_spark.read.road import read_ranges
from cosmodrome_spark.read.wire import Wire
from tests.support.cosmodrome_process import CosmodromeProcess
from tests.support.ports import held_port
from tests.support.pull_server import PullServer
from tests.support.topic_filler import fill

NOBODY = "127.0.0.1:1"
COUNT = 12_000  # more than a reader asks for ahead


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CosmodromeProcess]:
    """A broker that comes back where it was, with a topic of one queue."""
    settings = ("topics.queues=1",)
    with (
        held_port() as port,
        CosmodromeProcess(tmp_path / "data", *settings, port=port) as running,
    ):
        fill(running.endpoints, "orders", COUNT, body_bytes=100)
        yield running


def test_who_mistypes_an_address_is_told_at_once() -> None:
    with WireCluster(Connection((NOBODY,))) as cluster, pytest.raises(BrokerUnreachable):
        cluster.queues("orders")


def test_a_broker_that_is_down_is_waited_for(broker: CosmodromeProcess) -> None:
    wire = Wire(Connection((broker.endpoints,)), is_known=True)
    request = control_pb2.ListTopicsRequest().SerializeToString()
    broker.kill()
    started = wire.start("/cosmodrome.v1.Control/ListTopics", request)
    assert started.future.exception() is not None
    broker.start()

    answer = control_pb2.ListTopicsResponse.FromString(wire.finish(started))

    assert "orders" in [each.topic.name for each in answer.topics]
    wire.close()


@pytest.mark.parametrize("road", ["bulk", "pull"])
def test_a_range_that_is_being_read_outlives_its_broker(
    broker: CosmodromeProcess, road: str
) -> None:
    with WireCluster(Connection((broker.endpoints,))) as cluster:
        (queue,) = cluster.queues("orders")
    query = ReadQuery(("queue_offset", "body"), read_mode=road, batch_bytes=20_000)
    batches = read_ranges(Connection((broker.endpoints,)), (QueueRange(queue, 0, COUNT),), query)

    offsets = next(batches)["queue_offset"].to_pylist()
    broker.kill()
    broker.start()
    for batch in batches:
        offsets += batch["queue_offset"].to_pylist()

    assert offsets == list(range(COUNT))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_next_endpoint_answers_where_one_does_not(server: PullServer, host: str) -> None:
    server.create("orders", 2)
    connection = Connection((NOBODY, "nobody.invalid:8081", f"{host}:{server.port}"))

    with WireCluster(connection) as cluster:
        queues = cluster.queues("orders")
        bounds = cluster.bounds(queues)

    assert [queue.queue_id for queue in bounds] == [0, 1]


def test_a_broker_that_is_busy_is_asked_again(server: PullServer) -> None:
    server.create("orders", 1)
    server.fill("orders", 0, 40)
    server.pulls_to_refuse = 2
    queue = MessageQueue("orders", "broker-a", 0)

    with PullReader(Connection((server.endpoints,))) as reader:
        batches = list(reader.read(QueueRange(queue, 0, 40), ReadQuery(("queue_offset",))))

    assert [o for each in batches for o in each["queue_offset"].to_pylist()] == list(range(40))
