"""Builders: Java's setters in snake case make what the keyword constructors make."""

from collections.abc import Callable
from typing import Any

import pytest

import cosmodrome
from cosmodrome import (
    ConsumeResult,
    IllegalArgument,
    LitePushConsumer,
    LiteSimpleConsumer,
    MemoryOffsetStore,
    Message,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    allocation,
    sync,
)
from cosmodrome.testing import TestBroker
from tests.sdk.test_push_consumer import Seen, send

NOWHERE = "127.0.0.1:1"

Builds = Callable[[Any], Any]
COMPLETE: list[tuple[str, Builds]] = [
    ("Producer", lambda b: b.topics("t").max_attempts(2).transaction_checker(lambda _: None)),
    (
        "SimpleConsumer",
        lambda b: b.consumer_group("g").subscription_expressions({"t": "*"}).await_duration(5),
    ),
    (
        "PushConsumer",
        lambda b: (
            b.consumer_group("g")
            .subscription_expressions({"t": "*"})
            .message_listener(Seen())
            .max_cache_message_count(10)
            .max_cache_message_size_in_bytes(1000)
            .consumption_thread_count(3)
            .enable_fifo_consume_accelerator()
            .enable_message_interceptor_filtering()
        ),
    ),
    (
        "LitePushConsumer",
        lambda b: (
            b.bind_topic("lite")
            .consumer_group("g")
            .message_listener(Seen())
            .max_cache_message_count(10)
            .max_cache_message_size_in_bytes(1000)
            .consumption_thread_count(3)
            .enable_fifo_consume_accelerator()
        ),
    ),
    ("LiteSimpleConsumer", lambda b: b.bind_topic("lite").consumer_group("g").await_duration(5)),
    (
        "PullConsumer",
        lambda b: (
            b.consumer_group("g")
            .subscription_expressions({"t": "*"})
            .offset_store(MemoryOffsetStore())
            .auto_commit(enabled=False)
            .members(["a", "b"], "a")
            .strategy(allocation.averagely_by_circle)
        ),
    ),
]


@pytest.mark.parametrize("module", [cosmodrome, sync])
@pytest.mark.parametrize(("name", "fill"), COMPLETE, ids=[name for name, _ in COMPLETE])
def test_a_builder_with_everything_makes_its_client(module: Any, name: str, fill: Builds) -> None:
    kind = getattr(module, name)
    made = fill(kind.builder().client_configuration(NOWHERE)).build()
    assert type(made) is kind
    assert not made.is_running


@pytest.mark.parametrize(
    ("builder", "missing"),
    [
        (PushConsumer.builder().consumer_group("g"), "message_listener"),  # PC-10
        (PushConsumer.builder().message_listener(Seen()), "consumer_group"),  # PC-6
        (SimpleConsumer.builder(), "consumer_group"),  # SC-3
        (PullConsumer.builder(), "consumer_group"),
        (LitePushConsumer.builder().consumer_group("g").message_listener(Seen()), "bind_topic"),
        (LitePushConsumer.builder().bind_topic("t").consumer_group("g"), "message_listener"),
        (LiteSimpleConsumer.builder().bind_topic("t"), "consumer_group"),
    ],
)
def test_what_a_client_needs_is_asked_for(builder: Any, missing: str) -> None:
    with pytest.raises(IllegalArgument, match=missing):
        builder.client_configuration(NOWHERE).build()


@pytest.mark.parametrize(
    "builder",
    [
        cosmodrome.Producer.builder(),  # PR-13
        PushConsumer.builder().consumer_group("g").message_listener(Seen()),  # PC-9
        SimpleConsumer.builder().consumer_group("g"),  # SC-2
    ],
)
def test_a_configuration_is_needed(builder: Any) -> None:
    with pytest.raises(IllegalArgument, match="client_configuration"):
        builder.build()


async def test_what_was_built_works(own_broker: TestBroker) -> None:
    await send(own_broker, "t", b"x")
    seen = Seen(lambda _: ConsumeResult.SUCCESS)
    consumer = (
        PushConsumer.builder()
        .client_configuration(own_broker.endpoint)
        .consumer_group("g")
        .subscription_expressions({"t": "*"})
        .message_listener(seen)
        .build()
    )
    pull = (
        PullConsumer.builder()
        .client_configuration(own_broker.endpoint)
        .consumer_group("p")
        .subscription_expressions({"t": "*"})
        .build()
    )
    async with consumer, pull:
        await seen.count(1)
        assert [m.body for m in await pull.poll()] == [b"x"]


async def test_lite_consumers_that_were_built_read_their_lite_topics(
    own_broker: TestBroker,
) -> None:
    own_broker.create_topic("lite", "LITE")
    own_broker.create_group("g", lite_bind_topic="lite")
    own_broker.create_group("h", lite_bind_topic="lite")
    seen = Seen()
    push = (
        LitePushConsumer.builder()
        .client_configuration(own_broker.endpoint)
        .bind_topic("lite")
        .consumer_group("g")
        .message_listener(seen)
        .build()
    )
    simple = (
        LiteSimpleConsumer.builder()
        .client_configuration(own_broker.endpoint)
        .bind_topic("lite")
        .consumer_group("h")
        .await_duration(5)
        .build()
    )
    async with push, simple, cosmodrome.Producer(own_broker.endpoint) as producer:
        await push.subscribe_lite("one")
        await simple.subscribe_lite("one")
        await producer.send(Message("lite", b"x", lite_topic="one"))
        await seen.count(1)
        assert [m.body for m in await simple.receive()] == [b"x"]
