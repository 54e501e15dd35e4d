"""What a scrape says of a broker that works."""

from collections.abc import Mapping

from cosmodrome_server.clock import SystemClock
from cosmodrome_server.config import load
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.message import MessageType
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.proxy.metrics import catalogue
from cosmodrome_server.proxy.metrics.collector import Collector
from cosmodrome_server.proxy.metrics.exposition import render
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.store.figures import StoreFigures
from tests.support.broker_world import START_MS, World, new_message

FRONT = {
    "connections": 3,
    "connections_accepted": 9,
    "connections_refused": 1,
    "handshakes_failed": 2,
    "connections_abusive": 3,
    "connections_dead": 4,
    "calls": 5,
}


def collector_of(world: World) -> Collector:
    config = load(None, environment={}, overrides={})
    sessions = Sessions(world.broker, SystemClock(), config)
    figures = StoreFigures()
    return Collector(config, world.clocks, world.broker, sessions, lambda: figures)


def histogram(collector: Collector, metric: catalogue.Metric) -> Mapping[object, object]:
    found = collector.snapshot().distributions[metric]
    return {labels: (spread.counts, spread.total) for labels, spread in found.items()}


async def test_how_long_transactions_took_is_counted_by_topic() -> None:
    world = World()
    world.broker.create_topic(Topic("money", TopicType.TRANSACTION, queues=1))
    for name in ("a", "b"):
        half = new_message(name.encode(), message_type=MessageType.TRANSACTION)
        await world.send("money", half)
    world.clocks.pass_ms(4_000)
    world.broker.end_transaction("money", "a", commit=True, from_check=False)
    world.clocks.pass_ms(56_500)
    world.broker.end_transaction("money", "b", commit=False, from_check=False)
    collector = collector_of(world)
    assert histogram(collector, catalogue.FINISH_LATENCY) == {
        ("money",): ((1, 0, 1, 0, 0, 0, 0), 64.5)
    }
    world.broker.abandon()


async def test_delays_are_counted_as_asked_for_and_what_is_overdue_is_told() -> None:
    world = World()
    world.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
    world.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    for after_ms in (60_000, 90_000):
        message = new_message(b"%d" % after_ms, message_type=MessageType.DELAY)
        message.delivery_timestamp_ms = START_MS + after_ms
        await world.send("later", message)
    collector = collector_of(world)
    assert histogram(collector, catalogue.DELAY_LATENCY) == {
        ("later",): ((1, 1, 0, 0, 0, 0, 0), 150.0)
    }
    assert collector.snapshot().values[catalogue.TIMER_LATENCY] == {(): 0}
    world.clocks.pass_ms(60_700)  # and nobody woke the broker
    (overdue_ms,) = collector.snapshot().values[catalogue.TIMER_LATENCY].values()
    assert 600 <= overdue_ms <= 700
    await world.later(1)
    assert collector.snapshot().values[catalogue.TIMER_LATENCY] == {(): 0}
    world.broker.abandon()


async def test_connections_are_told_where_the_front_counts_them() -> None:
    world = World()
    collector = collector_of(world)
    assert "cosmodrome_connections" not in render(collector.snapshot()).decode()
    collector.connections = lambda: FRONT
    values = collector.snapshot().values
    assert values[catalogue.CONNECTIONS] == {(): 3}
    assert values[catalogue.CONNECTIONS_IN] == {(): 9}
    assert values[catalogue.CALLS_OPEN] == {(): 5}
    assert values[catalogue.CONNECTIONS_OUT] == {
        ("limit",): 1,
        ("handshake",): 2,
        ("abuse",): 3,
        ("silence",): 4,
    }
    world.broker.abandon()
