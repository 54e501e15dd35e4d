"""6.4 Filters: tags and SQL92, on the server's side of the wire."""

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, refused, scenario, who
from tests.conformance.client import Producer
from tests.conformance.driver import Filter, Incoming, Outgoing

QUIET_SECONDS = 6.0


async def filtered(
    bench: Bench, messages: list[Outgoing], chosen: Filter, expected: int, kind: str = "normal"
) -> list[Incoming]:
    """Send `messages` to a fresh topic; exactly `expected` of them pass the filter."""
    topic = await bench.topic(kind)
    group = await bench.group(is_fifo=kind == "fifo")
    consumer = await bench.connection.simple(group, {topic: chosen})
    producer: Producer = await bench.connection.producer(topic)
    for message in messages:
        await producer.send(
            Outgoing(
                topic,
                message.body,
                tag=message.tag,
                properties=message.properties,
                message_group=message.message_group,
            )
        )
    received = await consumer.take(expected, within=30) if expected else []
    received += await consumer.take(1, within=QUIET_SECONDS)
    assert len(received) == expected, [m.tag for m in received]
    return received


def tagged(tag: str, count: int = 10) -> list[Outgoing]:
    return [Outgoing("", f"{tag[:10]} {n}".encode(), tag=tag) for n in range(count)]


@scenario("F-1", "tag A through `A||B`: 10")
async def one_of_two(bench: Bench) -> None:
    await filtered(bench, tagged("A"), Filter("A||B"), 10)


@scenario("F-2", "tags A and B through `A||B`: 20")
async def two_of_two(bench: Bench) -> None:
    await filtered(bench, tagged("A") + tagged("B"), Filter("A||B"), 20)


@scenario("F-3", "tags A and B through `*`: 20")
async def star(bench: Bench) -> None:
    await filtered(bench, tagged("A") + tagged("B"), Filter("*"), 20)


@scenario("F-4", "tag A through `B`: 0")
async def other_tag(bench: Bench) -> None:
    await filtered(bench, tagged("A"), Filter("B"), 0)


@scenario("F-5", "tags A and B through `A`: the 10 of A", short=True)
async def same_tag(bench: Bench) -> None:
    received = await filtered(bench, tagged("A") + tagged("B"), Filter("A"), 10)
    assert {m.tag for m in received} == {"A"}


@scenario("F-6", "a very long tag through itself: 10")
async def long_tag(bench: Bench) -> None:
    long = "long-tag-" * 100
    await filtered(bench, tagged(long), Filter(long), 10)


@scenario("F-7", "tags A and B through `A || B`, with spaces: 20")
async def spaces(bench: Bench) -> None:
    await filtered(bench, tagged("A") + tagged("B"), Filter("A || B"), 20)


@scenario("F-8", "a tag that contains bars is refused")
async def tag_of_bars(bench: Bench) -> str:
    topic = await bench.topic()
    producer = await bench.connection.producer(topic)
    return who(
        await refused(producer.send(Outgoing(topic, b"x", tag="A||B")), code.ILLEGAL_MESSAGE_TAG)
    )


@scenario("F-9", "a tag that is literally `*` through `*`")
async def tag_star(bench: Bench) -> None:
    await filtered(bench, tagged("*", 1), Filter("*"), 1)


@scenario("F-11", "a blank tag is refused")
async def blank_tag(bench: Bench) -> str:
    topic = await bench.topic()
    producer = await bench.connection.producer(topic)
    return who(
        await refused(producer.send(Outgoing(topic, b"x", tag="  ")), code.ILLEGAL_MESSAGE_TAG)
    )


@scenario("F-12", "tags Aa and BB, of one Java hash, through `BB`: only BB", short=True)
async def equal_hashes(bench: Bench) -> None:
    received = await filtered(bench, tagged("Aa", 5) + tagged("BB", 5), Filter("BB"), 5)
    assert {m.tag for m in received} == {"BB"}


@scenario("F-13", "tags BB and bb through `BB`: case matters")
async def case(bench: Bench) -> None:
    received = await filtered(bench, tagged("BB", 5) + tagged("bb", 5), Filter("BB"), 5)
    assert {m.tag for m in received} == {"BB"}


def priced(count: int, price: int, *, group: str | None = None) -> list[Outgoing]:
    return [
        Outgoing("", f"{price} {n}".encode(), properties={"price": str(price)}, message_group=group)
        for n in range(count)
    ]


def sql(expression: str) -> Filter:
    return Filter(expression, "sql")


@scenario("Q-1", "SQL `TRUE`: 10")
async def sql_true(bench: Bench) -> None:
    await filtered(bench, priced(10, 1), sql("TRUE"), 10)


@scenario("Q-2", "SQL `price > 20` on 10 of price 30 and 10 of price 10: the 10", short=True)
async def sql_greater(bench: Bench) -> None:
    received = await filtered(bench, priced(10, 10) + priced(10, 30), sql("price > 20"), 10)
    assert {m.properties["price"] for m in received} == {"30"}


@scenario("Q-3", "SQL `price BETWEEN 10 AND 20`")
async def sql_between(bench: Bench) -> None:
    messages = priced(5, 5) + priced(10, 15) + priced(5, 30)
    await filtered(bench, messages, sql("price IS NOT NULL AND price BETWEEN 10 AND 20"), 10)


@scenario("Q-4", "SQL on a property that no message has: 0")
async def sql_unknown(bench: Bench) -> None:
    await filtered(bench, priced(10, 1), sql("unknown = 1"), 0)


@scenario("Q-5", "SQL `TRUE` over FIFO: all, in order")
async def sql_true_in_order(bench: Bench) -> None:
    messages = priced(10, 1, group="g")
    received = await filtered(bench, messages, sql("TRUE"), 10, "fifo")
    assert [m.body for m in received] == [m.body for m in messages]


@scenario("Q-6", "SQL BETWEEN over FIFO: the chosen, in order")
async def sql_between_in_order(bench: Bench) -> None:
    messages = [
        message
        for n in range(5)
        for message in priced(1, 5 + n, group="g") + priced(1, 15 + n, group="g")
    ]
    chosen = [m.body for m in messages if int(m.properties["price"]) >= 10]
    received = await filtered(bench, messages, sql("price BETWEEN 10 AND 20"), 5, "fifo")
    assert [m.body for m in received] == chosen


@scenario("Q-7", "SQL on an unknown property over FIFO: 0")
async def sql_unknown_in_order(bench: Bench) -> None:
    await filtered(bench, priced(5, 1, group="g"), sql("unknown = 1"), 0, "fifo")
