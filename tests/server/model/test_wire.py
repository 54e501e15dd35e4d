import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import MessageCorrupted
from cosmodrome_server.model import wire

TEXT = st.text(max_size=20)


@given(
    tag=TEXT,
    keys=st.lists(TEXT, max_size=3),
    message_id=TEXT,
    group=TEXT,
    priority=st.integers(0, 2**31 - 1),
    millis=st.integers(-(10**12), 10**13),
)
def test_what_protobuf_writes_is_read(
    tag: str, keys: list[str], message_id: str, group: str, priority: int, millis: int
) -> None:
    system = pb.SystemProperties(
        tag=tag, keys=keys, message_id=message_id, message_group=group, priority=priority
    )
    system.born_timestamp.FromMilliseconds(millis)
    encoded = system.SerializeToString()

    assert wire.tag(encoded) == tag
    assert wire.keys(encoded) == keys
    assert wire.message_id(encoded) == message_id
    assert wire.message_group(encoded) == group
    assert wire.number_field(encoded, wire.PRIORITY) == priority
    assert wire.timestamp_field(encoded, wire.BORN_TIMESTAMP) == millis


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_user_properties_are_read(properties: dict[str, str]) -> None:
    assert wire.user_properties(pb.Message(user_properties=properties).SerializeToString()) == (
        properties
    )


def test_what_is_not_there_is_empty() -> None:
    assert wire.tag(b"") == ""
    assert wire.keys(b"") == []
    assert wire.number_field(b"", 1) is None
    assert wire.timestamp_field(b"", 1) is None
    assert wire.dead_letter_origin(b"") is None


def test_a_field_is_replaced_by_appending_a_newer_one() -> None:
    system = pb.SystemProperties(tag="old").SerializeToString()
    system += wire.encode_bytes(wire.TAG, b"new")
    assert wire.tag(system) == pb.SystemProperties.FromString(system).tag == "new"


def test_a_dead_letter_says_where_it_came_from() -> None:
    system = wire.dead_letter_queue("orders", "id-1")
    assert wire.dead_letter_origin(system) == ("orders", "id-1")
    origin = pb.SystemProperties.FromString(system).dead_letter_queue
    assert (origin.topic, origin.message_id) == ("orders", "id-1")


def test_a_field_is_taken_out_and_the_others_stay() -> None:
    system = pb.SystemProperties(tag="t", keys=["k"], priority=3, message_id="m")
    system.born_timestamp.FromMilliseconds(5)
    encoded = system.SerializeToString() + b"\xfd\x01abcd" + b"\xf9\x01abcdefgh"
    rest = wire.without_field(encoded, wire.TAG)
    expected = pb.SystemProperties.FromString(encoded)
    expected.ClearField("tag")
    assert pb.SystemProperties.FromString(rest) == expected
    assert rest.endswith(b"\xfd\x01abcd" + b"\xf9\x01abcdefgh")


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"\x0a", b"\x0a\x05ab", b"\x08\x80", b"\x09abc", b"\x0dab", b"\x80" * 11),
        *(b"\x0b", b"\x0b\x14", b"\x0b\x13\x0c", b"\x0c", b"\x0b\x0a\x05\x0c", b"\x0e", b"\x0f"),
    ],
)
def test_damaged_fields_are_refused_not_read_past_their_end(damaged: bytes) -> None:
    with pytest.raises(MessageCorrupted):
        list(wire.fields(damaged))
    with pytest.raises(MessageCorrupted):
        wire.without_field(damaged, 5)


# What protobuf keeps as unknown: numbers nobody has, ours with a wire type that is not theirs,
# and groups with all of it, whole and nested.
STRANGE = st.recursive(
    st.sampled_from([b"\xa0\x06\x07", b"\x1dabcd", b"\x19abcdefgh", b"\x18\x01", b"\xa2\x06\x02ab"])
    | st.sampled_from([b"\x0dabcd", b"\x3dabcd", b"\x89\x01abcdefgh", b"\xa5\x06abcd"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda some: b"\x1b" + b"".join(some) + b"\x1c"),
    max_leaves=5,
)


@given(st.lists(STRANGE, max_size=3), st.lists(STRANGE, max_size=3))
def test_what_protobuf_passes_over_is_passed_over(before: list[bytes], after: list[bytes]) -> None:
    known = pb.SystemProperties(tag="t", keys=["k"], message_id="m", message_group="g")
    known.born_timestamp.FromMilliseconds(5)
    encoded = b"".join([*before, known.SerializeToString(), *after])
    read = pb.SystemProperties.FromString(encoded)
    assert (read.tag, read.message_id, list(read.keys)) == ("t", "m", ["k"])

    assert wire.tag(encoded) == "t"
    assert wire.keys(encoded) == ["k"]
    assert wire.message_id(encoded) == "m"
    assert wire.message_group(encoded) == "g"
    assert wire.timestamp_field(encoded, wire.BORN_TIMESTAMP) == 5
    rest = pb.SystemProperties.FromString(wire.without_field(encoded, wire.TAG))
    assert (rest.tag, rest.message_id, list(rest.keys)) == ("", "m", ["k"])


@given(st.lists(STRANGE, max_size=3))
def test_what_is_no_user_property_is_none(strange: list[bytes]) -> None:
    entries = pb.Message(user_properties={"k": "v"}).SerializeToString()
    assert wire.user_properties(b"".join([*strange, entries, *strange])) == {"k": "v"}


def test_groups_in_groups_need_no_stack() -> None:
    deep = b"\x1b" * 100_000 + b"\x1c" * 100_000
    assert list(wire.fields(deep + b"\x08\x01")) == [(1, 1)]


@given(st.binary(max_size=30))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    try:
        list(wire.fields(data))
    except MessageCorrupted:
        return
