"""What a scrape says of a broker that works."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

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

ROOT = Path(__file__).parent.parent.parent.parent.parent
# protocol.md 16.2 to 16.5, without `rocketmq_` and, for counters, `_total`.
REFERENCE = """
processor_watermark broker_permission topic_number consumer_group_number
messages_in throughput_in messages_out throughput_out message_size
topic_create_execution_time consumer_group_create_execution_time
producer_connections consumer_connections consumer_lag_messages consumer_lag_latency
consumer_inflight_messages consumer_queueing_latency consumer_ready_messages
send_to_dlq_messages commit_messages rollback_messages finish_message_latency half_messages
rpc_latency storage_size storage_flush_behind_bytes storage_dispatch_behind_bytes
storage_message_reserve_time timer_enqueue_lag timer_enqueue_latency timer_dequeue_lag
timer_dequeue_latency timing_messages timer_enqueue timer_dequeue timer_message_snapshot
delay_message_latency rocksdb_bytes_written rocksdb_bytes_read rocksdb_times_written_self
rocksdb_times_written_other rocksdb_rate_cache_hit rocksdb_times_compressed
rocksdb_read_amplification_bytes rocksdb_times_read pop_buffer_scan_time_consume
pop_revive_in_message pop_revive_out_message pop_revive_retry_messages pop_revive_lag
pop_revive_latency pop_offset_buffer_size pop_checkpoint_buffer_size proxy_up
"""

FRONT = {
    "connections": 3,
    "connections_accepted": 9,
    "connections_refused": 1,
    "handshakes_failed": 2,
    "connections_abusive": 3,
    "connections_dead": 4,
    "calls": 5,
}


def collector_of(world: World, figures: StoreFigures | None = None, **settings: str) -> Collector:
    overrides = {name.replace("__", "."): value for name, value in settings.items()}
    config = load(None, environment={}, overrides=overrides)
    sessions = Sessions(world.broker, SystemClock(), config)
    shown = figures or StoreFigures()
    return Collector(config, world.clocks, world.broker, sessions, lambda: shown)


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
    values = collector.snapshot().values
    assert values[catalogue.TIMER_LATENCY] == values[catalogue.TIMER_LAG] == {(): 0}
    assert values[catalogue.TIMER_IN_LAG] == {(): 2}, "no bucket has them"
    world.clocks.pass_ms(60_700)  # and nobody woke the broker
    assert collector.snapshot().values[catalogue.TIMER_LAG] == {(): 1}
    (overdue_ms,) = collector.snapshot().values[catalogue.TIMER_LATENCY].values()
    assert 600 <= overdue_ms <= 700
    await world.later(1)
    values = collector.snapshot().values
    assert values[catalogue.TIMER_LATENCY] == values[catalogue.TIMER_LAG] == {(): 0}
    world.broker.abandon()


async def test_how_near_a_group_is_to_losing_what_it_has_not_read_is_told() -> None:
    world = World()
    world.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    hour_ms = 3_600_000
    for topic, kept_ms in (("usual", 0), ("longer", 100 * hour_ms), ("no shorter", hour_ms)):
        world.broker.create_topic(Topic(topic, queues=1, retention_ms=kept_ms))
        await world.send(topic, new_message(b"a"))
        world.broker.ack("billing", topic, world.receive(topic, "billing")[0].receipt_handle)
        await world.send(topic, new_message(b"not read"))
    world.clocks.pass_ms(25 * hour_ms)
    ratios = collector_of(world, store__retention_hours="50").snapshot().values
    assert ratios[catalogue.LAG_RETENTION] == {
        ("billing", "usual"): 0.5,
        ("billing", "longer"): 0.25,
        ("billing", "no shorter"): 0.5,
    }
    for_ever = collector_of(world, store__retention_hours="0").snapshot().values
    assert not for_ever.get(catalogue.LAG_RETENTION)
    world.broker.abandon()


async def test_by_size_a_group_is_as_near_as_what_is_kept_behind_its_first_message() -> None:
    world = World()
    world.broker.create_group(Group("billing", consume_from=ConsumeFrom.FIRST))
    world.broker.create_topic(Topic("orders", queues=1))
    await world.send("orders", new_message(b"a"))
    assert len(world.receive("orders", "billing")) == 1
    mib = 1 << 20
    segments = ((START_MS - 9, 4 * mib), (START_MS - 5, 2 * mib), (START_MS + 5, mib))
    figures = StoreFigures(segments=segments)

    def ratio(**settings: str) -> Mapping[tuple[str, ...], float]:
        return collector_of(world, figures, **settings).snapshot().values[catalogue.LAG_RETENTION]

    by_size = {"store__retention_mib": "6"}
    assert ratio(store__retention_hours="0", **by_size) == {("billing", "orders"): 0.5}
    world.clocks.pass_ms(3_600_000)
    assert ratio(store__retention_hours="10", **by_size) == {("billing", "orders"): 0.5}
    assert ratio(store__retention_hours="1", **by_size) == {("billing", "orders"): 1.0}
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


async def test_calls_under_way_and_the_age_of_the_log_are_told() -> None:
    world = World()
    collector = collector_of(world, StoreFigures(segments=((START_MS - 5_000, 1),)))
    collector.under_way = lambda: {"producer": 3, "transaction": 1, "route": 0}
    values = collector.snapshot().values
    assert values[catalogue.WATERMARK] == {("send",): 3, ("ack",): 0, ("transaction",): 1}
    assert values[catalogue.RESERVE_TIME] == {("local", "disk"): 5_000}
    world.broker.abandon()


def test_every_name_of_the_reference_is_exported_or_explained() -> None:
    exported = {name for metric in catalogue.CATALOGUE for name in (metric.name, metric.alias)}
    page = (ROOT / "docs/operating.md").read_text()
    table = page.partition("| Not here |")[2].partition("\n\n")[0]
    explained = set(re.findall(r"`(rocketmq_\w+)`", table))
    names = {f"rocketmq_{name}" for name in REFERENCE.split()}
    assert sorted(names - exported - explained) == []
    assert sorted(explained & exported) == [], "it is both"


async def test_series_are_bounded_and_what_there_is_once_is_always_there() -> None:
    world = World()
    for number in range(200):
        world.broker.create_topic(Topic(f"topic-{number}", queues=1))
        await world.send(f"topic-{number}", new_message(b"x"))
    whole = collector_of(world).snapshot()
    assert len(whole.values[catalogue.MESSAGES_IN]) == 200
    assert whole.values[catalogue.DROPPED_SERIES] == {(): 0}
    collector = collector_of(world, metrics__series_max="100")
    cut = collector.snapshot()
    series = sum(len(found) for found in cut.values.values())
    assert 100 <= series <= 110
    assert sum(len(found) for found in cut.distributions.values()) == 0
    once = {metric for metric, found in whole.values.items() if () in found}
    assert once <= cut.values.keys()
    (dropped,) = cut.values[catalogue.DROPPED_SERIES].values()
    assert dropped > 0
    world.broker.abandon()


async def test_a_snapshot_of_many_groups_is_taken_in_turns() -> None:
    world = World()
    world.broker.create_topic(Topic("read", queues=1))
    await world.send("read", new_message(b"x"))
    groups = [f"group-{number:03}" for number in range(400)]
    for group in groups:
        world.broker.create_group(Group(group, consume_from=ConsumeFrom.FIRST))
        world.receive("read", group)
    await world.settle()
    collector = collector_of(world)
    whole = collector.snapshot().values
    taking = asyncio.ensure_future(collector.snapshot_in_turns())
    turns = 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3
    taken = (await taking).values
    for metric in (catalogue.LAG, catalogue.INFLIGHT, catalogue.LAG_LATENCY):
        assert taken[metric] == whole[metric]
        assert [labels[0] for labels in taken[metric]] == groups

    again = asyncio.ensure_future(collector.snapshot_in_turns())
    await asyncio.sleep(0)
    world.broker.delete_topic("read")
    left = (await again).values[catalogue.LAG]
    assert 0 < len(left) < len(groups)
    world.broker.abandon()


async def test_what_was_counted_of_a_topic_outlives_one_named_by_its_first_letter() -> None:
    world = World()
    world.broker.create_topic(Topic("l", queues=1))
    world.broker.create_topic(Topic("later", TopicType.DELAY, queues=1))
    message = new_message(b"x", message_type=MessageType.DELAY)
    message.delivery_timestamp_ms = START_MS + 3_600_000
    await world.send("later", message)
    world.broker.delete_topic("l")
    assert world.broker.statistics().delayed == {"later": 1}
    world.broker.abandon()


async def test_what_was_counted_of_a_deleted_topic_or_group_goes_with_it() -> None:
    world = World()
    for topic in ("kept", "gone"):
        world.broker.create_topic(Topic(topic, queues=1))
        world.broker.create_group(Group(topic, consume_from=ConsumeFrom.FIRST))
    for topic in ("kept", "gone"):
        await world.send(topic, new_message(b"x"))
        for group in ("kept", "gone"):
            world.receive(topic, group)
    collector = collector_of(world)
    assert len(collector.snapshot().values[catalogue.MESSAGES_OUT]) == 4
    world.broker.delete_topic("gone")
    world.broker.delete_group("gone")
    values = collector.snapshot().values
    labels = [found for series in values.values() for found in series]
    assert all("gone" not in found for found in labels)
    assert list(values[catalogue.MESSAGES_IN]) == [("kept", "normal", "false")]
    assert list(values[catalogue.MESSAGES_OUT]) == [("kept", "kept", "false", "false")]
    assert collector.snapshot().distributions[catalogue.MESSAGE_SIZE].keys() == {
        ("kept", "normal", "false")
    }
    world.broker.abandon()
