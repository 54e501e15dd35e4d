"""The hand-written field reader against the protobuf library."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.errors import MessageCorrupted
from cosmodrome_server.model import wire

NAME = st.text(max_size=20)


@given(NAME, st.lists(NAME, max_size=3), NAME, NAME, st.integers(-(2**31), 2**31 - 1))
def test_fields_are_read_as_protobuf_reads_them(
    tag: str, keys: list[str], message_id: str, group: str, attempt: int
) -> None:
    system = pb.SystemProperties(
        tag=tag, keys=keys, message_id=message_id, message_group=group, delivery_attempt=attempt
    ).SerializeToString()
    assert wire.tag(system) == tag
    assert wire.keys(system) == keys
    assert wire.message_id(system) == message_id
    assert wire.message_group(system) == group


@given(st.dictionaries(NAME, NAME, max_size=4))
def test_user_properties_are_read_as_protobuf_reads_them(properties: dict[str, str]) -> None:
    user = pb.Message(user_properties=properties).SerializeToString()
    assert wire.user_properties(user) == properties


@given(NAME, NAME)
def test_the_origin_of_a_dead_letter_is_one_protobuf_understands(topic: str, name: str) -> None:
    system = pb.SystemProperties(message_id="x").SerializeToString()
    system += wire.dead_letter_queue(topic, name)
    read = pb.SystemProperties.FromString(system)
    assert (read.dead_letter_queue.topic, read.dead_letter_queue.message_id) == (topic, name)
    assert wire.dead_letter_origin(system) == (topic, name)
    without = pb.SystemProperties.FromString(wire.without_field(system, wire.DEAD_LETTER_QUEUE))
    assert without == pb.SystemProperties(message_id="x")


def test_a_message_that_is_no_dead_letter_has_no_origin() -> None:
    assert wire.dead_letter_origin(b"") is None


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x08", b"\x0b", b"\x08" + b"\xff" * 11, b"\x09a"]
)
def test_bytes_that_are_no_fields_are_refused(data: bytes) -> None:
    with pytest.raises(MessageCorrupted):
        list(wire.fields(data))
    with pytest.raises(MessageCorrupted):
        wire.without_field(data, 1)
