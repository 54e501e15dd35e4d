"""SendMessage: one row per rule of protocol.md 1.3 and 4."""

import hashlib
import zlib
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from cosmodrome_proto import Duration, Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.model.queries import QueueBounds
from cosmodrome_server.proxy.convert import to_timestamp
from cosmodrome_server.proxy.status import MESSAGE_CHARS
from tests.support.broker_world import START_MS
from tests.support.proxy_world import ProxyWorld, message, run

DAY_MS = 86_400_000
BODY_MAX = 4_194_304
STORED_MAX = 65_536
Digest = pb.Digest


def _half(recovery_s: int) -> list[pb.Message]:
    recovery = Duration(seconds=recovery_s)
    return [
        message(
            topic="transaction",
            message_type=pb.TRANSACTION,
            orphaned_transaction_recovery_duration=recovery,
        )
    ]


def _due(seconds: int, nanos: int) -> list[pb.Message]:
    due = Timestamp(seconds=seconds, nanos=nanos)
    return [message(topic="delay", delivery_timestamp=due)]


SENDS: list[tuple[str, Callable[[], Sequence[pb.Message]], int]] = [
    ("nothing", list, pb.MESSAGE_CORRUPTED),
    ("a plain message", lambda: [message()], pb.OK),
    ("a missing topic", lambda: [message(topic="nope")], pb.TOPIC_NOT_FOUND),
    ("a blank topic", lambda: [message(topic="")], pb.ILLEGAL_TOPIC),
    ("a system topic", lambda: [message(topic="TBW102")], pb.ILLEGAL_TOPIC),
    ("two topics", lambda: [message(), message(topic="fifo")], pb.MESSAGE_CORRUPTED),
    ("no body", lambda: [message(b"")], pb.MESSAGE_BODY_EMPTY),
    ("the largest body", lambda: [message(b"x" * BODY_MAX)], pb.OK),
    ("a byte more", lambda: [message(b"x" * (BODY_MAX + 1))], pb.MESSAGE_BODY_TOO_LARGE),
    ("128 properties", lambda: [message(properties={f"k{n}": "v" for n in range(128)})], pb.OK),
    (
        "129 properties",
        lambda: [message(properties={f"k{n}": "v" for n in range(129)})],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "16384 bytes of properties, tag and keys",
        lambda: [message(properties={"k": "v" * 16_379}, tag="t", keys=["a", "bc"])],
        pb.OK,
    ),
    (
        "a byte more of them",
        lambda: [message(properties={"k": "v" * 16_379}, tag="t", keys=["ab", "bc"])],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "bytes are counted, not characters",
        lambda: [message(properties={"k": "ü" * 8_192})],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "a reserved property",
        lambda: [message(properties={"UNIQ_KEY": "1"})],
        pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    (
        "a control character in a key",
        lambda: [message(properties={"a\x01": "1"})],
        pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    (
        "a control character in a value",
        lambda: [message(properties={"a": "\x85"})],
        pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    ("an empty value", lambda: [message(properties={"a": ""})], pb.OK),
    ("a line separator, which is none", lambda: [message(properties={"a": "\u2028"})], pb.OK),
    ("a tag with a bar", lambda: [message(tag="a|b")], pb.ILLEGAL_MESSAGE_TAG),
    ("a blank tag", lambda: [message(tag="  ")], pb.ILLEGAL_MESSAGE_TAG),
    ("a control character in the tag", lambda: [message(tag="a\t")], pb.ILLEGAL_MESSAGE_TAG),
    ("a tag with a space inside", lambda: [message(tag="a b")], pb.OK),
    ("a blank key", lambda: [message(keys=["a", " "])], pb.ILLEGAL_MESSAGE_KEY),
    (
        "a control character in a message key",
        lambda: [message(keys=["\x7f"])],
        pb.ILLEGAL_MESSAGE_KEY,
    ),
    (
        "a long key with a control character, of which the answer shows the beginning",
        lambda: [message(keys=["k" * 5_000 + "\x01"])],
        pb.ILLEGAL_MESSAGE_KEY,
    ),
    (
        "64 KiB of properties as they are stored",
        lambda: [message(trace_context="x" * (STORED_MAX - 10))],
        pb.OK,
    ),
    (
        "a byte more of those",
        lambda: [message(trace_context="x" * (STORED_MAX - 9))],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "as many, some of them the user's",
        lambda: [message(trace_context="x" * (STORED_MAX - 100), properties={"k": "v" * 90})],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "an id of a MiB",
        lambda: [message(message_id="x" * 1_048_576)],
        pb.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    ("a blank id", lambda: [message(message_id=" ")], pb.ILLEGAL_MESSAGE_ID),
    (
        "a group of 63 bytes",
        lambda: [message(topic="fifo", message_group="ü" * 31 + "x")],
        pb.OK,
    ),
    (
        "a group of 64",
        lambda: [message(topic="fifo", message_group="ü" * 32)],
        pb.ILLEGAL_MESSAGE_GROUP,
    ),
    ("a blank group", lambda: [message(topic="fifo", message_group=" ")], pb.ILLEGAL_MESSAGE_GROUP),
    (
        "a group with a control character",
        lambda: [message(topic="fifo", message_group="a\n")],
        pb.ILLEGAL_MESSAGE_GROUP,
    ),
    (
        "a delivery time past the limit",
        lambda: [message(topic="delay", due_ms=START_MS + 40 * DAY_MS + 1)],
        pb.ILLEGAL_DELIVERY_TIME,
    ),
    ("a past delivery time", lambda: [message(topic="delay", due_ms=START_MS - 1)], pb.OK),
    ("a negative priority", lambda: [message(topic="priority", priority=-1)], pb.BAD_REQUEST),
    ("a priority", lambda: [message(topic="priority", priority=0)], pb.OK),
    (
        "an illegal lite topic",
        lambda: [message(topic="lite", lite_topic="a b")],
        pb.ILLEGAL_LITE_TOPIC,
    ),
    *(
        (
            f"a delivery time that is none: {seconds} s, {nanos} ns",
            partial(_due, seconds, nanos),
            code,
        )
        for seconds, nanos, code in (
            (-62_135_596_800, 0, pb.OK),
            (-62_135_596_801, 0, pb.ILLEGAL_DELIVERY_TIME),
            (0, -1, pb.ILLEGAL_DELIVERY_TIME),
            (0, 1_000_000_000, pb.ILLEGAL_DELIVERY_TIME),
            (1 << 62, 0, pb.ILLEGAL_DELIVERY_TIME),
        )
    ),
    (
        "a half message left unchecked for too long",
        partial(_half, 3601),
        pb.BAD_REQUEST,
    ),
    (
        "a half message with a delivery time",
        lambda: [message(topic="transaction", message_type=pb.TRANSACTION, due_ms=START_MS + 1)],
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (
        "a message group to a NORMAL topic",
        lambda: [message(message_group="g")],
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (
        "a second message of another type",
        lambda: [message(), message(message_group="g")],
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (
        "the right CRC32, lower case and unpadded",
        lambda: [message(body_digest=Digest(type=pb.CRC32, checksum=f"{zlib.crc32(b'hello'):x}"))],
        pb.OK,
    ),
    (
        "a wrong CRC32",
        lambda: [message(body_digest=Digest(type=pb.CRC32, checksum="1"))],
        pb.MESSAGE_CORRUPTED,
    ),
    (
        "a CRC32 that is no number",
        lambda: [message(body_digest=Digest(type=pb.CRC32, checksum="xyz"))],
        pb.MESSAGE_CORRUPTED,
    ),
    (
        "the right MD5",
        lambda: [
            message(body_digest=Digest(type=pb.MD5, checksum=hashlib.md5(b"hello").hexdigest()))
        ],
        pb.OK,
    ),
    (
        "a wrong SHA1",
        lambda: [message(body_digest=Digest(type=pb.SHA1, checksum="00"))],
        pb.MESSAGE_CORRUPTED,
    ),
    ("a digest without checksum", lambda: [message(body_digest=Digest(type=pb.MD5))], pb.OK),
]


@pytest.mark.parametrize(
    ("messages", "code"), [row[1:] for row in SENDS], ids=[r[0] for r in SENDS]
)
def test_a_send_is_answered(messages: Callable[[], Sequence[pb.Message]], code: int) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(*messages())
        assert answer.status.code == code
        assert 0 < len(answer.status.message) <= MESSAGE_CHARS
        stored = [bounds.max_offset for bounds in _bounds(world)]
        if code != pb.OK:
            assert list(answer.entries) == []
            assert sum(stored) == 0

    run(scenario)


def _bounds(world: ProxyWorld) -> list[QueueBounds]:
    broker = world.world.broker
    return [broker.bounds(one.name, 0) for one in broker.topics()]


def test_under_strict_the_delay_limit_is_the_references() -> None:
    async def scenario(world: ProxyWorld) -> None:
        fits = await world.send(message(topic="delay", due_ms=START_MS + DAY_MS))
        too_far = await world.send(message(topic="delay", due_ms=START_MS + DAY_MS + 1000))
        assert fits.status.code == pb.OK
        assert too_far.status.code == pb.ILLEGAL_DELIVERY_TIME

    run(scenario, server__strict="true")


def test_a_batch_has_an_entry_per_message_with_its_own_id_and_offset() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(*[message(message_id=f"id{n}") for n in range(3)])
        entries = answer.entries
        assert [entry.message_id for entry in entries] == ["id0", "id1", "id2"]
        assert [entry.transaction_id for entry in entries] == ["id0", "id1", "id2"]
        assert [entry.offset for entry in entries] == [0, 1, 2]
        assert {entry.status.code for entry in entries} == {pb.OK}
        assert answer.status.code == pb.OK

    run(scenario)


def test_one_bad_message_refuses_the_whole_batch() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(message(), message(tag="|"))
        assert answer.status.code == pb.ILLEGAL_MESSAGE_TAG
        assert sum(one.max_offset for one in _bounds(world)) == 0

    run(scenario)


def test_a_batch_has_a_bound() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(message(), message(), message())
        assert answer.status.code == pb.MESSAGE_CORRUPTED

    run(scenario, limits__batch_messages="2")


def test_what_only_the_server_may_say_is_dropped_and_unknown_fields_survive() -> None:
    async def scenario(world: ProxyWorld) -> None:
        sent = message(
            queue_id=7,
            receipt_handle="forged",
            store_host="evil",
            delivery_attempt=9,
            dead_letter_queue=pb.DeadLetterQueue(topic="x", message_id="y"),
            trace_context="trace",
        )
        sent.system_properties.MergeFromString(b"\xc2\x3e\x03new")  # field 1000, of a newer client
        await world.send(sent)
        (received,) = await world.receive()
        known = received.system_properties
        assert known.receipt_handle != "forged"
        assert known.store_host == "203.0.113.1:8081"
        assert known.delivery_attempt == 1
        assert not known.HasField("dead_letter_queue")
        assert known.trace_context == "trace"
        assert b"\xc2\x3e\x03new" in known.SerializeToString()

    run(scenario)


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_kept"),
    [
        (0, 0, True),
        (-62_135_596_800, 0, True),
        (-62_135_596_801, 0, False),
        (253_402_300_799, 999_999_999, True),
        (253_402_300_800, 0, False),
        (5, -1, False),
        (5, 1_000_000_000, False),
        (1 << 62, 0, False),
    ],
)
@pytest.mark.parametrize("forged", [None, 9], ids=["usual", "read again"])
def test_a_message_born_at_no_time_was_born_when_it_came(
    seconds: int, nanos: int, is_kept: bool, forged: int | None
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        born = Timestamp(seconds=seconds, nanos=nanos)
        sent = message(born_timestamp=born, trace_context="trace", tag="t", delivery_attempt=forged)
        await world.send(sent)
        (received,) = await world.receive()
        known = received.system_properties
        expected = born if is_kept else to_timestamp(world.clocks.now_ms())
        assert known.born_timestamp == expected
        assert (known.trace_context, known.tag, known.message_id) == ("trace", "t", "id1")

    run(scenario)


def test_the_type_consumers_see_is_derived_and_the_host_is_the_peers_if_none_is_named() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(topic="fifo", message_group="g", message_type=pb.NORMAL))
        (received,) = await world.receive(topic="fifo")
        assert received.system_properties.message_type == pb.FIFO
        assert received.system_properties.born_host == "192.0.2.7:4711"
        assert received.system_properties.body_encoding == pb.IDENTITY

    run(scenario)
