"""6.1 Client start-up: what a client needs to start, and what it is refused for."""

import asyncio

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, refused, scenario, who
from tests.conformance.client import everything
from tests.conformance.languages import MAX_ATTEMPTS, MILLISECONDS, PUSH, SDK

NOBODY_LISTENS = "127.0.0.1:1"  # a reserved port
RESERVED_GROUP = "DEFAULT_CONSUMER"


@scenario("G-1", "the reserved group DEFAULT_CONSUMER is refused")
async def reserved_group(bench: Bench) -> str:
    async with bench.without_auto_create() as strictly:
        topic = await strictly.topic()

        async def use() -> None:
            consumer = await strictly.connection.simple(RESERVED_GROUP, everything(topic))
            await consumer.receive(1)

        return who(await refused(use()))


@scenario("PC-1", "a push consumer starts", PUSH, short=True)
async def push_starts(bench: Bench) -> None:
    await bench.connection.push(await bench.group(), everything(await bench.topic()))


@scenario("PC-4", "a push consumer with a wrong endpoint does not start", PUSH)
async def push_wrong_endpoint(bench: Bench) -> str:
    elsewhere = bench.connect(endpoint=NOBODY_LISTENS)
    return who(await refused(elsewhere.push(await bench.group(), everything("any"))))


@scenario("PC-5", "a push consumer of a topic that does not exist gets an error", PUSH)
async def push_missing_topic(bench: Bench) -> str:
    async with bench.without_auto_create() as strictly:
        group = await strictly.group()
        started = strictly.connection.push(group, everything("no-such-topic"))
        return who(await refused(started, code.TOPIC_NOT_FOUND))


@scenario("PC-6", "a push consumer without a group does not start", PUSH)
async def push_without_group(bench: Bench) -> str:
    return who(await refused(bench.connection.push("", everything(await bench.topic()))))


@scenario("PC-7/8", "a push consumer without subscriptions does not start", PUSH)
async def push_without_subscriptions(bench: Bench) -> str:
    return who(await refused(bench.connection.push(await bench.group(), {})))


@scenario("SC-1", "a simple consumer starts", short=True)
async def simple_starts(bench: Bench) -> None:
    await bench.connection.simple(await bench.group(), everything(await bench.topic()))


@scenario("SC-3", "a simple consumer without a group does not start")
async def simple_without_group(bench: Bench) -> str:
    return who(await refused(bench.connection.simple("", everything(await bench.topic()))))


@scenario("SC-6", "a simple consumer without subscriptions has nothing to receive")
async def simple_without_subscriptions(bench: Bench) -> str:
    async def use() -> None:
        consumer = await bench.connection.simple(await bench.group(), {})
        await consumer.receive(1)

    return who(await refused(use()))


@scenario("SC-7", "await duration 0 starts; a receive says that its deadline is too short")
async def await_nothing(bench: Bench) -> str:
    group, topic = await bench.group(), await bench.topic()
    consumer = await bench.connection.simple(group, everything(topic), await_ms=0)
    # The reference's own suite wants no error here, and its server answers one: what the client
    # asks for ends before the shortest long poll. Ours asks for the shortest instead.
    if bench.language is SDK:
        assert await consumer.receive(1) == []
        return "waits for the server's shortest poll"
    refusal = await refused(consumer.receive(1), code.ILLEGAL_POLLING_TIME, code.BAD_REQUEST)
    return who(refusal)


@scenario("SC-8", "receiving 0 messages is refused")
async def receive_zero(bench: Bench) -> str:
    consumer = await bench.connection.simple(await bench.group(), everything(await bench.topic()))
    return who(await refused(consumer.receive(0)))


@scenario("SC-9", "receiving up to 100,000 messages is accepted")
async def receive_very_many(bench: Bench) -> None:
    consumer = await bench.connection.simple(await bench.group(), everything(await bench.topic()))
    assert await consumer.receive(100_000) == []


@scenario("SC-10", "an invisible duration of 9,999 ms is too small")
async def invisible_too_small(bench: Bench) -> str:
    consumer = await bench.connection.simple(await bench.group(), everything(await bench.topic()))
    milliseconds = 9_999 if bench.language.has(MILLISECONDS) else 9_000
    return who(await refused(consumer.receive(1, milliseconds), code.ILLEGAL_INVISIBLE_TIME))


@scenario("SC-11", "an invisible duration of 12 h and 1 ms is too large")
async def invisible_too_large(bench: Bench) -> str:
    consumer = await bench.connection.simple(await bench.group(), everything(await bench.topic()))
    over = 1 if bench.language.has(MILLISECONDS) else 1_000
    return who(await refused(consumer.receive(1, 43_200_000 + over), code.ILLEGAL_INVISIBLE_TIME))


@scenario("SC-12", "waiting 10 s on an empty topic returns after 10 to 20 s with nothing")
async def waits_on_empty(bench: Bench) -> str:
    group, topic = await bench.group(), await bench.topic()
    consumer = await bench.connection.simple(group, everything(topic), await_ms=10_000)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await consumer.receive(1) == []
    waited = loop.time() - started
    assert 9.5 <= waited <= 20, waited
    return f"{waited:.1f} s"


@scenario("PR-1", "a producer starts", short=True)
async def producer_starts(bench: Bench) -> None:
    await bench.connection.producer(await bench.topic())


@scenario("PR-4", "a producer with a wrong endpoint does not start")
async def producer_wrong_endpoint(bench: Bench) -> str:
    return who(await refused(bench.connect(endpoint=NOBODY_LISTENS).producer("any")))


@scenario("PR-8/9", "a producer with 0 or fewer send attempts does not start", MAX_ATTEMPTS)
async def producer_without_attempts(bench: Bench) -> str:
    return who(await refused(bench.connection.producer(await bench.topic(), max_attempts=-1)))


@scenario("PR-10", "a producer of a topic that does not exist does not start")
async def producer_missing_topic(bench: Bench) -> str:
    async with bench.without_auto_create() as strictly:
        return who(
            await refused(strictly.connection.producer("no-such-topic"), code.TOPIC_NOT_FOUND)
        )


@scenario("PR-11", "a producer with the same topic twice starts")
async def producer_topic_twice(bench: Bench) -> None:
    topic = await bench.topic()
    await bench.connection.producer(topic, topic)


@scenario("PR-12", "a producer with one missing topic of several does not start")
async def producer_one_topic_missing(bench: Bench) -> str:
    async with bench.without_auto_create() as strictly:
        topic = await strictly.topic()
        started = strictly.connection.producer(topic, "no-such-topic")
        return who(await refused(started, code.TOPIC_NOT_FOUND))


@scenario("PR-14", "a producer without topics starts")
async def producer_without_topics(bench: Bench) -> None:
    await bench.connection.producer()
