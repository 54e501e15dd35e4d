"""The pull consumer against a real broker (clients.md 4-20 to 4-40)."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from cosmodrome import (
    FileOffsetStore,
    FlowControl,
    IllegalArgument,
    MemoryOffsetStore,
    Message,
    MessageView,
    NotRunning,
    Producer,
    PullConsumer,
    StartFrom,
    pull_consumer,
)
from cosmodrome.errors import TopicNotFound
from cosmodrome.testing import TestBroker

Names = Callable[[str], str]


async def send(broker: TestBroker, topic: str, *bodies: bytes, tag: str = "") -> None:
    async with Producer(broker.endpoint, topics=[topic]) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tag=tag))


async def polled(consumer: PullConsumer, count: int) -> list[MessageView]:
    found: list[MessageView] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found += await consumer.poll()
    return found


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


async def test_every_queue_is_read_from_its_first_message(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=4)
    await send(broker, topic, *numbered(50))
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        assert c.assignment == [(topic, queue) for queue in range(4)]
        assert sorted(m.body for m in await polled(c, 50)) == sorted(numbered(50))


async def test_messages_of_a_queue_come_in_their_order(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(100))
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        assert [m.body for m in await polled(c, 100)] == numbered(100)
        assert c.position(topic, 0) == 100


async def test_what_was_committed_is_not_read_again(broker: TestBroker, name: Names) -> None:
    topic, group = name("t"), name("g")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, b"1", b"2")
    async with PullConsumer(broker.endpoint, group=group, topics=[topic], auto_commit=False) as c:
        (message,) = await c.poll(1)
        assert message.body == b"1"
        await c.commit()
    async with PullConsumer(broker.endpoint, group=group, topics=[topic]) as c:
        assert [m.body for m in await polled(c, 1)] == [b"2"]


async def test_closing_commits_what_was_polled_and_no_more(broker: TestBroker, name: Names) -> None:
    topic, group = name("t"), name("g")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(10))
    async with PullConsumer(broker.endpoint, group=group, topics=[topic]) as c:
        await c.poll(3)
    async with PullConsumer(broker.endpoint, group=group, topics=[topic]) as c:
        assert [m.body for m in await polled(c, 7)] == numbered(10)[3:]


async def test_seeking_takes_effect_at_once_though_a_read_waits_at_the_end(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(5))
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        await polled(c, 5)
        await asyncio.sleep(0.05)  # the next read waits for messages, for 20 s
        async with asyncio.timeout(5):
            await c.seek(topic, 0, 3)
            assert [m.body for m in await polled(c, 2)] == [b"3", b"4"]
            await c.seek_to_beginning()
            assert len(await polled(c, 5)) == 5
            await c.seek_to_end()
            await send(broker, topic, b"new")
            assert [m.body for m in await polled(c, 1)] == [b"new"]


async def test_seeking_a_queue_that_was_read_ahead_to_its_bound_goes_on(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(40))
    flow = FlowControl(messages=1)
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic], flow=flow) as c:
        await asyncio.sleep(0.1)  # full by now
        await c.seek(topic, 0, 39)
        assert [m.body for m in await polled(c, 1)] == [b"39"]


async def test_seeking_to_a_moment_reads_what_was_stored_since(timeless: TestBroker) -> None:
    timeless.create_topic("t", queues=1)
    await send(timeless, "t", b"before")
    await asyncio.to_thread(timeless.advance, timedelta(hours=1))
    await send(timeless, "t", b"after")
    async with PullConsumer(timeless.endpoint, group="g", topics=["t"]) as c:
        before, after = await polled(c, 2)
        assert before.store_timestamp is not None
        assert after.store_timestamp is not None
        await c.seek_to_time(before.store_timestamp + timedelta(seconds=1))
        assert [m.body for m in await polled(c, 1)] == [b"after"]


async def test_without_a_stored_offset_reading_may_start_at_the_end(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, b"old")
    async with PullConsumer(
        broker.endpoint, group=name("g"), topics=[topic], start_from=StartFrom.LAST
    ) as c:
        await send(broker, topic, b"new")
        assert [m.body for m in await polled(c, 1)] == [b"new"]


async def test_an_offset_that_does_not_exist_is_mended(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, b"1")
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        await c.seek(topic, 0, 1_000_000)
        await asyncio.sleep(0.1)  # its read has been refused by now, or will be
        await send(broker, topic, b"2")
        assert (await polled(c, 1))[-1].body in (b"1", b"2")


async def test_a_paused_queue_is_not_read_until_it_is_resumed(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        c.pause((topic, 0))
        await send(broker, topic, b"x")
        assert await c.poll(timeout=0.2) == []
        c.resume()
        assert len(await polled(c, 1)) == 1


async def test_only_what_the_filter_wants_comes_and_the_rest_is_passed(
    broker: TestBroker, name: Names
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(50), tag="no")
    await send(broker, topic, b"yes", tag="yes")
    async with PullConsumer(
        broker.endpoint, group=name("g"), topics=[topic], filters={topic: "yes"}
    ) as c:
        assert [m.body for m in await polled(c, 1)] == [b"yes"]
        assert c.position(topic, 0) == 51


async def test_assigned_queues_and_no_others_are_read(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=4)
    await send(broker, topic, *numbered(40))
    async with PullConsumer(broker.endpoint, group=name("g")) as c:
        await c.assign([(topic, 1)])
        assert {m.queue_id for m in await polled(c, 1)} == {1}
        with pytest.raises(IllegalArgument, match="exclude"):
            await c.subscribe(topic)
        with pytest.raises(IllegalArgument, match="no readable queue 9"):
            await c.assign([(topic, 9)])
        await c.assign([(topic, 2)])
        assert c.assignment == [(topic, 2)]
        with pytest.raises(IllegalArgument, match="not read here"):
            await c.seek(topic, 1, 0)


async def test_what_cannot_be_read_changes_nothing(name: Names) -> None:
    topic = name("t")
    with TestBroker(auto_create=False) as broker:
        broker.create_topic(topic, queues=2)
        broker.create_group("g")
        async with PullConsumer(broker.endpoint, group="g") as c:
            with pytest.raises(TopicNotFound):
                await c.subscribe("missing")
            with pytest.raises(IllegalArgument, match="no readable queue 9"):
                await c.assign([(topic, 0), (topic, 9)])
            assert c.assignment == []
            await c.subscribe(topic)
            assert c.assignment == [(topic, 0), (topic, 1)]


async def test_a_store_that_fails_once_is_asked_again(
    broker: TestBroker, name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "COMMIT_S", 0.01)

    class Store(MemoryOffsetStore):
        def __init__(self) -> None:
            super().__init__()
            self.saves = 0
            self.again = asyncio.Event()

        async def save(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
            self.saves += 1
            if self.saves == 1:
                raise ConnectionError("the store is away")
            self.again.set()
            await super().save(group, offsets)

    store = Store()
    broker.create_topic(name("t"))
    async with PullConsumer(
        broker.endpoint, group=name("g"), topics=[name("t")], offset_store=store
    ):
        async with asyncio.timeout(20):
            await store.again.wait()


async def test_members_share_the_queues(broker: TestBroker, name: Names) -> None:
    topic, members = name("t"), ["a", "b"]
    broker.create_topic(topic, queues=5)
    shares = []
    for member in members:
        async with PullConsumer(
            broker.endpoint, group=name("g"), topics=[topic], members=members, member=member
        ) as c:
            shares.append(c.assignment)
    assert [len(share) for share in shares] == [3, 2]
    assert sorted(shares[0] + shares[1]) == [(topic, queue) for queue in range(5)]


async def test_every_broadcast_reader_reads_everything_and_goes_on_where_it_was(
    broker: TestBroker, name: Names, tmp_path: Path
) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=2)
    await send(broker, topic, *numbered(10))
    for reader in ("one", "two"):
        offsets = tmp_path / f"{reader}.json"
        async with PullConsumer.broadcast(
            broker.endpoint, group=name("g"), topics=[topic], offsets=offsets
        ) as c:
            assert len(await polled(c, 10)) == 10
        async with PullConsumer.broadcast(
            broker.endpoint, group=name("g"), topics=[topic], offsets=offsets
        ) as c:
            assert await c.poll(timeout=0.2) == []


async def test_reading_ahead_stops_at_the_bound(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic, queues=1)
    await send(broker, topic, *numbered(200))
    flow = FlowControl(messages=32)
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic], flow=flow) as c:
        await asyncio.sleep(0.2)  # enough to read all of them, if nothing held it back
        assert 1 <= len(await c.poll(1000)) <= 64
        assert len(await polled(c, 100)) >= 100


async def test_iterating_ends_when_the_consumer_is_closed(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    await send(broker, topic, b"x")
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        async with asyncio.timeout(20):
            async for message in c:
                assert message.body == b"x"
                await c.close()
    with pytest.raises(NotRunning):
        await c.poll()


async def test_closing_ends_a_poll(broker: TestBroker, name: Names) -> None:
    topic = name("t")
    broker.create_topic(topic)
    async with PullConsumer(broker.endpoint, group=name("g"), topics=[topic]) as c:
        waiting = asyncio.create_task(c.poll(timeout=60))
        await asyncio.sleep(0.05)  # it waits by now, mostly
        await c.close()
        async with asyncio.timeout(5):
            with pytest.raises(NotRunning):
                await waiting


async def test_readers_outlive_a_restart(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", queues=1)
    async with PullConsumer(own_broker.endpoint, group="g", topics=["t"]) as c:
        await send(own_broker, "t", b"1")
        await polled(c, 1)
        await asyncio.to_thread(own_broker.restart)
        await send(own_broker, "t", b"2")
        assert [m.body for m in await polled(c, 1)] == [b"2"]


async def test_a_group_and_a_member_of_the_members_are_needed() -> None:
    with pytest.raises(IllegalArgument, match="group"):
        PullConsumer("127.0.0.1:1", group="")
    with pytest.raises(IllegalArgument, match="none of a, b"):
        PullConsumer("127.0.0.1:1", group="g", members=["a", "b"], member="c")


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_store_keeps_offsets_by_group_topic_and_queue(kind: str, offsets: Path) -> None:
    store = MemoryOffsetStore() if kind == "memory" else FileOffsetStore(offsets)
    assert await store.load("g", "t", 0) is None
    await store.save("g", {("t", 0): 5, ("t", 1): 6})
    await store.save("g", {("t", 1): 7})
    assert [await store.load("g", "t", queue) for queue in (0, 1, 2)] == [5, 7, None]
    assert await store.load("other", "t", 0) is None


async def test_a_damaged_offset_file_is_replaced_by_the_one_before(offsets: Path) -> None:
    store = FileOffsetStore(offsets)
    await store.save("g", {("t", 0): 1})
    await store.save("g", {("t", 0): 2})
    await asyncio.to_thread(offsets.write_text, "{")
    assert await FileOffsetStore(offsets).load("g", "t", 0) == 1
