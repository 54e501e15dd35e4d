"""Queue selectors: each message goes where the selector says, alone or with others."""

import asyncio
import gc
import random
from collections import Counter

import pytest

from cosmodrome import IllegalArgument, Message, Producer, PullConsumer, errors
from cosmodrome._core import endpoints
from cosmodrome.selection import MessageQueue, by_hash, by_machine_room, by_random
from cosmodrome.testing import TestBroker

QUEUES = [
    MessageQueue("t", number, f"broker-{number % 2}", endpoints.parse("127.0.0.1:1"))
    for number in range(8)
]


def message(key: str = "k") -> Message:
    return Message("t", b"x", keys=key)


def test_4_01_by_hash_gives_a_key_its_queue_and_keys_many() -> None:
    select = by_hash(lambda one: one.keys[0])
    chosen = [select(QUEUES, message(str(n))) for n in range(64)]
    assert chosen == [select(QUEUES, message(str(n))) for n in range(64)]
    assert len(set(chosen)) == len(QUEUES)


def test_4_01_by_random_gives_any() -> None:
    select = by_random(random.Random(1))
    assert {select(QUEUES, message()) for _ in range(200)} == set(QUEUES)


def test_4_01_by_machine_room_keeps_to_the_rooms() -> None:
    rooms = {"broker-0": "north", "broker-1": "south"}
    select = by_machine_room(rooms, frozenset({"south"}), by_hash(lambda one: one.keys[0]))
    assert {select(QUEUES, message(str(n))).broker for n in range(32)} == {"broker-1"}
    with pytest.raises(IllegalArgument, match="rooms west"):
        by_machine_room(rooms, frozenset({"west"}))(QUEUES, message())


async def test_4_01_messages_that_share_a_request_keep_the_queue_of_each(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("t", queues=4)
    async with Producer(
        own_broker.endpoint, queue_selector=lambda queues, one: queues[int(one.body) % len(queues)]
    ) as producer:
        sent = [Message("t", str(n).encode()) for n in range(40)]
        await asyncio.gather(*(producer.send(one) for one in sent))
        await producer.send([Message("t", str(n).encode()) for n in range(40, 48)])
    async with PullConsumer(own_broker.endpoint, group="g", topics=["t"]) as consumer:
        seen = Counter[tuple[int, int]]()
        while seen.total() < 48:
            seen.update((int(m.body) % 4, m.queue_id) for m in await consumer.poll())
    assert seen == {(n, n): 12 for n in range(4)}


async def test_a_selector_that_fails_fails_its_message_alone(own_broker: TestBroker) -> None:
    own_broker.create_topic("t")

    def select(queues: object, one: Message) -> MessageQueue:
        assert isinstance(queues, tuple)
        found: MessageQueue = queues[int(one.body)]
        return found

    async with Producer(own_broker.endpoint, queue_selector=select) as producer:
        fine, wrong = await asyncio.gather(
            producer.send(Message("t", b"1")),
            producer.send(Message("t", b"99")),
            return_exceptions=True,
        )
    assert not isinstance(fine, BaseException)
    assert isinstance(wrong, IllegalArgument)
    assert isinstance(wrong.__cause__, IndexError)


async def test_a_queue_that_does_not_exist_is_refused_by_the_broker(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", queues=2)

    def select(queues: object, _one: Message) -> MessageQueue:
        assert isinstance(queues, tuple)
        found: MessageQueue = queues[0]
        return MessageQueue("t", 7, found.broker, found.endpoints)

    async with Producer(own_broker.endpoint, queue_selector=select) as producer:
        with pytest.raises(errors.BadRequest, match="queues 0 to 1"):
            await producer.send(Message("t", b"1"))


async def test_a_message_that_is_not_sent_is_forgotten(own_broker: TestBroker) -> None:
    own_broker.create_topic("t", queues=2)
    lost = b"a body that no other test has"
    async with Producer(
        own_broker.endpoint, queue_selector=by_random(), max_in_flight_bytes=30
    ) as producer:
        with pytest.raises(errors.BadRequest):
            await producer.send(Message("no where", lost))
        with pytest.raises(errors.BadRequest):
            await producer.send([Message("no where", lost)])
        under_way = producer.send_nowait(Message("t", b"sent"))
        with pytest.raises(errors.BufferFull):
            producer.send_nowait(Message("t", lost))
        await under_way
        gc.collect()

        kept = [one for one in gc.get_objects() if isinstance(one, Message) and one.body == lost]
        assert kept == []
