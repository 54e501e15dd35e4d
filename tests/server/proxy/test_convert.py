"""Reading sends by a description of our own gives what the protocol's description says."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import Duration, Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import sent_pb2 as sent
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.config import load
from cosmodrome_server.errors import IllegalTopic, MessageCorrupted
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.proxy import convert
from cosmodrome_server.proxy.names import Names
from cosmodrome_server.proxy.validate import MessageRules

CONFIG = load(None, environment={}, overrides={})
RULES, NAMES = MessageRules.of(CONFIG), Names(CONFIG.limits)
NOW_MS = 1_767_323_045_000
PEER = "192.0.2.1:4711"
NORMAL = MessageType.NORMAL

SERVERS_OWN = (
    "store_timestamp",
    "store_host",
    "receipt_handle",
    "queue_id",
    "queue_offset",
    "invisible_duration",
    "delivery_attempt",
    "dead_letter_queue",
)
words = st.text("abc", max_size=3)
times = st.builds(Timestamp, seconds=st.integers(0, NOW_MS // 1000))


def field(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """A field that is mostly not there."""
    return st.one_of(st.none(), st.none(), values)


systems = st.fixed_dictionaries(
    {
        "message_id": st.just("01"),
        "tag": field(words),
        "keys": st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
        "body_encoding": field(st.sampled_from([pb.IDENTITY, pb.GZIP])),
        "message_type": field(st.sampled_from([pb.NORMAL, pb.FIFO])),
        "born_timestamp": field(times),
        "born_host": field(words),
        "store_timestamp": field(times),
        "store_host": field(words),
        "receipt_handle": field(words),
        "queue_id": field(st.integers(-1, 9)),
        "queue_offset": field(st.integers(0, 9)),
        "invisible_duration": field(st.just(Duration(seconds=9))),
        "delivery_attempt": field(st.integers(0, 9)),
        "message_group": field(words),
        "trace_context": field(words),
        "dead_letter_queue": field(st.just(pb.DeadLetterQueue(topic="t", message_id="m"))),
        "priority": field(st.integers(0, 9)),
        "lite_topic": field(st.text("abc", min_size=1, max_size=3)),
    }
)


def converted(message: pb.Message) -> NewMessage:
    encoded = rpc.SendMessageRequest(messages=[message]).SerializeToString()
    request = sent.SentMessages.FromString(encoded)
    (new,) = convert.new_messages(request.messages, RULES, NAMES, NOW_MS, PEER)
    return new


@given(systems, st.dictionaries(words, words, max_size=2), st.binary(max_size=4))
def test_what_is_stored_is_what_was_sent_but_for_the_fields_of_the_server(
    system: dict[str, object], user: dict[str, str], unknown: bytes
) -> None:
    message = pb.Message(topic=pb.Resource(name="orders"), body=b"x", user_properties=user)
    given = {name: value for name, value in system.items() if value is not None}
    message.system_properties.MergeFrom(pb.SystemProperties(**given))  # type: ignore[arg-type]  # rows
    if unknown:  # field 1000, of a later protocol
        later = b"\xc2\x3e" + bytes((len(unknown),)) + unknown
        message.system_properties.MergeFromString(later)
    expected = pb.SystemProperties()
    expected.CopyFrom(message.system_properties)
    for name in SERVERS_OWN:
        expected.ClearField(name)  # type: ignore[arg-type]  # a row's
    expected.body_encoding = expected.body_encoding or pb.IDENTITY
    expected.born_host = expected.born_host or PEER

    new = converted(message)

    expected.message_type = pb.MessageType.ValueType(new.message_type)
    assert pb.SystemProperties.FromString(new.system) == expected
    assert pb.Message.FromString(new.user).user_properties == user
    assert (new.message_id, new.tag, new.body) == ("01", expected.tag, b"x")
    assert new.message_group == expected.message_group
    assert new.priority == (expected.priority if expected.HasField("priority") else -1)
    assert new.lite_topic == expected.lite_topic
    plain = not (new.message_group or new.lite_topic or new.priority >= 0)
    assert (new.message_type is NORMAL) == plain


def test_a_usual_message_is_stored_as_it_came() -> None:
    system = pb.SystemProperties(
        tag="a",
        keys=["k"],
        message_id="01",
        message_type=pb.NORMAL,
        body_encoding=pb.IDENTITY,
        born_timestamp=convert.to_timestamp(NOW_MS),
        born_host="host",
    )
    new = converted(pb.Message(body=b"x", system_properties=system))
    assert new.system == system.SerializeToString()


@pytest.mark.parametrize("seconds", [-1, -(1 << 62)])
def test_a_half_message_to_be_asked_for_before_it_was_sent_does_not_say_when(seconds: int) -> None:
    half = pb.Message(body=b"x")
    half.system_properties.message_id = "01"
    half.system_properties.message_type = pb.TRANSACTION
    half.system_properties.orphaned_transaction_recovery_duration.seconds = seconds
    assert converted(half).transaction_check_ms == 0


def test_every_field_of_the_protocol_is_described_for_sends_too() -> None:
    for ours, theirs in (
        (sent.SentMessages, rpc.SendMessageRequest),
        (sent.SentMessage, pb.Message),
        (sent.SentProperties, pb.SystemProperties),
    ):
        described = {field.number: field.name for field in ours.DESCRIPTOR.fields}
        assert described == {field.number: field.name for field in theirs.DESCRIPTOR.fields}


def test_a_topic_encoded_in_two_ways_is_one_topic() -> None:
    name, namespace = b"\x12\x01t", b"\x0a\x01n"
    messages = [sent.SentMessage(topic=name + namespace), sent.SentMessage(topic=namespace + name)]
    assert convert.topic_of(messages, NAMES) == "t"
    with pytest.raises(MessageCorrupted, match="several topics"):
        convert.topic_of([*messages, sent.SentMessage(topic=name)], NAMES)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(b"\x1a\x0201\x3a\x01\xff", id="a born_timestamp that is none"),
        pytest.param(b"\x1a\x0201\x5a\x01\xff", id="a delivery_timestamp that is none"),
        pytest.param(b"\x1a\x0201\x22\x01\xff", id="a body_digest that is none"),
        pytest.param(b"\x1a\x01\xff", id="a message_id that is no text"),
        pytest.param(b"\x1a\x0201\x8a\x01\x01\xff", id="a message_group that is no text"),
        pytest.param(b"\xff", id="no fields at all"),
    ],
)
def test_properties_that_cannot_be_read_are_refused(system: bytes) -> None:
    message = sent.SentMessage(body=b"x", system_properties=system)
    with pytest.raises(DecodeError):
        convert.new_messages([message], RULES, NAMES, NOW_MS, PEER)


def test_a_topic_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(DecodeError):
        convert.topic_of([sent.SentMessage(topic=b"\xff")], NAMES)


def test_topics_too_long_to_be_any_are_not_remembered() -> None:
    short, long = (pb.Resource(name="t" * n).SerializeToString() for n in (9, 100_000))
    assert convert.resource(short) is convert.resource(short)
    assert convert.resource(long) is not convert.resource(long)


NAME, OTHER, NO_NAME, NAMESPACE = b"\x12\x01t", b"\x12\x01u", b"\x12\x00", b"\x0a\x01n"


@given(st.lists(st.sampled_from([b"", NAME, OTHER, NO_NAME, NAMESPACE]), min_size=1, max_size=4))
def test_access_is_asked_for_the_topic_that_is_written_to_or_nothing_is_written(
    topics: list[bytes],
) -> None:
    """However often a topic is given, in whatever parts: protobuf merges them."""
    message = b"".join(b"\x0a" + bytes((len(topic),)) + topic for topic in topics)
    request = b"\x0a" + bytes((len(message),)) + message
    asked = rpc.SendMessageRequest.FromString(request).messages[0].topic.name
    try:
        topic = convert.topic_of(sent.SentMessages.FromString(request).messages, NAMES)
    except IllegalTopic:
        return
    assert topic == asked
