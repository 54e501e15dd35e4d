"""6.2 Message limits: what a message may be, and that it arrives as it was."""

import dataclasses
import time

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, refused, scenario, who
from tests.conformance.client import Producer, everything
from tests.conformance.driver import Outgoing

KIB = 1024
MIB = 1024 * KIB
TOO_LARGE = (
    code.MESSAGE_PROPERTIES_TOO_LARGE,
    code.ILLEGAL_MESSAGE_TAG,
    code.ILLEGAL_MESSAGE_KEY,
    code.BAD_REQUEST,
)


async def _producer(bench: Bench, kind: str = "normal") -> tuple[Producer, Outgoing]:
    topic = await bench.topic(kind)
    checker = "commit" if kind == "transaction" else None
    return await bench.connection.producer(topic, checker=checker), Outgoing(topic, b"body")


async def _refused(bench: Bench, *codes: int, **change: object) -> str:
    producer, message = await _producer(bench)
    changed = dataclasses.replace(message, **change)  # type: ignore[arg-type]  # its own fields
    return who(await refused(producer.send(changed), *codes))


async def _arrives(bench: Bench, **change: object) -> None:
    producer, message = await _producer(bench)
    message = dataclasses.replace(message, **change)  # type: ignore[arg-type]  # its own fields
    consumer = await bench.connection.simple(await bench.group(), everything(message.topic))
    receipt = await producer.send(message)
    (received,) = await consumer.take(1, within=20)
    assert received.message_id == receipt.message_id
    assert received.body == message.body
    assert received.tag == message.tag
    assert received.keys == tuple(sorted(message.keys))
    assert message.properties.items() <= received.properties.items()


@scenario("M-1/2", "an empty body is refused")
async def empty_body(bench: Bench) -> str:
    return await _refused(bench, code.MESSAGE_BODY_EMPTY, code.BAD_REQUEST, body=b"")


@scenario("M-3/4", "an empty topic is refused")
async def empty_topic(bench: Bench) -> str:
    return await _refused(bench, topic="")


@scenario("M-5/6", "an empty tag is refused")
async def empty_tag(bench: Bench) -> str:
    return await _refused(bench, code.ILLEGAL_MESSAGE_TAG, tag="")


@scenario("B-1", "a body of spaces arrives")
async def body_of_spaces(bench: Bench) -> None:
    await _arrives(bench, body=b"   ")


@scenario("B-2", "a Chinese body arrives")
async def chinese_body(bench: Bench) -> None:
    await _arrives(bench, body="消息正文".encode())


@scenario("B-3", "an emoji body arrives")
async def emoji_body(bench: Bench) -> None:
    await _arrives(bench, body="🚀🎉".encode())


@scenario("K-1", "keys over 16 KiB are refused")
async def keys_too_large(bench: Bench) -> str:
    return await _refused(bench, *TOO_LARGE, keys=("k" * (16 * KIB + 1),))


@scenario("K-2", "keys of exactly 16 KiB arrive")
async def keys_at_limit(bench: Bench) -> None:
    await _arrives(bench, keys=("k" * (16 * KIB),))


@scenario("K-3", "a key with U+0000 is refused")
async def key_with_nul(bench: Bench) -> str:
    return await _refused(bench, code.ILLEGAL_MESSAGE_KEY, keys=("a\0b",))


@scenario("K-4/5", "Chinese keys, several of them, arrive")
async def chinese_keys(bench: Bench) -> None:
    await _arrives(bench, keys=("订单", "支付", "plain"))


@scenario("T-1", "a tag over 16 KiB is refused")
async def tag_too_large(bench: Bench) -> str:
    return await _refused(bench, *TOO_LARGE, tag="t" * (16 * KIB + 1))


@scenario("T-2", "a tag of exactly 16 KiB arrives")
async def tag_at_limit(bench: Bench) -> None:
    await _arrives(bench, tag="t" * (16 * KIB))


@scenario("T-3", "a tag with U+0000 is refused")
async def tag_with_nul(bench: Bench) -> str:
    return await _refused(bench, code.ILLEGAL_MESSAGE_TAG, tag="a\0b")


@scenario("T-4", "a tag with a vertical bar is refused")
async def tag_with_bar(bench: Bench) -> str:
    return await _refused(bench, code.ILLEGAL_MESSAGE_TAG, tag="a|b")


@scenario("T-5", "a Chinese tag arrives")
async def chinese_tag(bench: Bench) -> None:
    await _arrives(bench, tag="标签")


def properties(count: int) -> dict[str, str]:
    return {f"name-{number}": "value" for number in range(count)}


@scenario("U-1", "129 properties are refused")
async def too_many_properties(bench: Bench) -> str:
    return await _refused(bench, *TOO_LARGE, properties=properties(129))


@scenario("U-2", "128 properties arrive")
async def most_properties(bench: Bench) -> None:
    await _arrives(bench, properties=properties(128))


@scenario("U-3", "properties of exactly 16 KiB arrive")
async def properties_at_limit(bench: Bench) -> None:
    await _arrives(bench, properties={"name": "v" * (16 * KIB - 4)})


@scenario("U-4", "properties of 16 KiB and 1 byte are refused")
async def properties_too_large(bench: Bench) -> str:
    return await _refused(bench, *TOO_LARGE, properties={"name": "v" * (16 * KIB - 3)})


@scenario("U-5", "a control character in a property is refused")
async def property_with_control(bench: Bench) -> str:
    return await _refused(
        bench, code.ILLEGAL_MESSAGE_PROPERTY_KEY, code.BAD_REQUEST, properties={"name": "a\1b"}
    )


@scenario("U-6", "a property with the system's name UNIQ_KEY is refused")
async def property_of_system(bench: Bench) -> str:
    return await _refused(bench, code.ILLEGAL_MESSAGE_PROPERTY_KEY, properties={"UNIQ_KEY": "mine"})


@scenario("U-7", "properties, tag and keys over 16 KiB together are refused")
async def together_too_large(bench: Bench) -> str:
    return await _refused(bench, *TOO_LARGE, **together(16 * KIB + 1))


@scenario("U-8", "properties, tag and keys of 16 KiB together arrive")
async def together_at_limit(bench: Bench) -> None:
    await _arrives(bench, **together(16 * KIB))


def together(size: int) -> dict[str, object]:
    tag, key = "t" * 1_000, "k" * 1_000
    return {"tag": tag, "keys": (key,), "properties": {"name": "v" * (size - 2_004)}}


@scenario("U-9/10", "a small mix of properties, and all visible characters, arrive", short=True)
async def visible_characters(bench: Bench) -> None:
    visible = "".join(chr(code) for code in range(0x20, 0x7F))
    await _arrives(bench, properties={"visible": visible, "small": "1", "largest-é": "ü"})


@scenario("S-1/2", "a normal body of 4 MiB is sent, one byte more is refused")
async def normal_body(bench: Bench) -> str:
    return await _body_at_limit(bench, "normal")


@scenario("S-3/4", "a delayed body of 4 MiB is sent, one byte more is refused")
async def delayed_body(bench: Bench) -> str:
    return await _body_at_limit(bench, "delay")


@scenario("S-5/6", "a transactional body of 4 MiB is sent, one byte more is refused")
async def transaction_body(bench: Bench) -> str:
    return await _body_at_limit(bench, "transaction")


@scenario("S-7/8", "a FIFO body of 4 MiB is sent, one byte more is refused")
async def fifo_body(bench: Bench) -> str:
    return await _body_at_limit(bench, "fifo")


async def _body_at_limit(bench: Bench, kind: str) -> str:
    producer, message = await _producer(bench, kind)
    if kind == "delay":
        message = dataclasses.replace(message, delivery_at_ms=int(time.time() * 1000) + 60_000)
    if kind == "fifo":
        message = dataclasses.replace(message, message_group="group")
    transaction = "rollback" if kind == "transaction" else None
    await producer.send(dataclasses.replace(message, body=bytes(4 * MIB)), transaction=transaction)
    over = dataclasses.replace(message, body=bytes(4 * MIB + 1))
    return who(
        await refused(producer.send(over, transaction=transaction), code.MESSAGE_BODY_TOO_LARGE)
    )


@scenario("S-9", "a normal body of 4 MiB with 16 KiB of properties arrives")
async def largest_normal(bench: Bench) -> None:
    body = bytes(range(256)) * (4 * MIB // 256)
    await _arrives(bench, body=body, properties={"name": "v" * (16 * KIB - 4)})


@scenario("S-10", "a FIFO body of 4 MiB with 16 KiB of properties is sent")
async def largest_fifo(bench: Bench) -> None:
    producer, message = await _producer(bench, "fifo")
    properties = {"name": "v" * (16 * KIB - 4)}
    await producer.send(
        dataclasses.replace(
            message, body=bytes(4 * MIB), message_group="group", properties=properties
        )
    )
