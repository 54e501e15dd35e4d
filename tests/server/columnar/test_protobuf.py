import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.columnar.protobuf import Buffer, MalformedMessage, varints, walk

TEXT = st.text(max_size=300)
MESSAGES = st.lists(
    st.builds(
        pb.SystemProperties,
        tag=st.none() | TEXT,
        keys=st.lists(TEXT, max_size=4),
        message_id=TEXT,
        message_group=st.none() | TEXT,
        message_type=st.sampled_from([0, 1, 2, 6]),
        priority=st.none() | st.integers(0, 2**31 - 1),
        queue_offset=st.none() | st.integers(0, 2**48),
    ),
    min_size=1,
    max_size=20,
)


def columns(messages: list[bytes]) -> tuple[Buffer, np.ndarray, np.ndarray]:
    ends = np.cumsum([len(each) for each in messages]).astype(np.int64)
    return Buffer(b"".join(messages)), np.concatenate([[0], ends[:-1]]).astype(np.int64), ends


@given(st.lists(st.integers(0, 2**49 - 1), min_size=1))
def test_varints_decode_to_what_was_encoded(values: list[int]) -> None:
    encoded = [pb.SystemProperties(queue_offset=value).SerializeToString()[1:] for value in values]
    buffer, starts, _ = columns([each or b"\0" for each in encoded])

    found, lengths = varints(buffer.words_at(starts))

    assert found.tolist() == values
    assert lengths.tolist() == [len(each) for each in encoded]


@given(MESSAGES)
def test_walking_finds_what_the_library_finds(messages: list[pb.SystemProperties]) -> None:
    buffer, starts, ends = columns([each.SerializeToString() for each in messages])
    texts: dict[tuple[int, int], list[bytes]] = {}
    numbers: dict[tuple[int, int], int] = {}

    for field in walk(buffer, starts, ends):
        for row, start, end, value in zip(
            *(each.tolist() for each in (field.rows, field.starts, field.ends, field.values)),
            strict=True,
        ):
            if field.wire_type == 2:
                texts.setdefault((row, field.number), []).append(buffer.bytes[start:end].tobytes())
            else:
                numbers[row, field.number] = value

    for row, message in enumerate(messages):
        assert [each.decode() for each in texts.get((row, 2), [])] == list(message.keys)
        assert texts.get((row, 3), [b""])[-1].decode() == message.message_id
        assert texts.get((row, 17), [b""])[-1].decode() == message.message_group
        assert ((row, 17) in texts) == message.HasField("message_group")
        assert numbers.get((row, 6), 0) == message.message_type
        assert numbers.get((row, 14), 0) == message.queue_offset
        assert numbers.get((row, 22), 0) == message.priority


@given(MESSAGES, st.data())
def test_a_message_cut_anywhere_is_malformed_or_shorter_but_never_read_past_its_end(
    messages: list[pb.SystemProperties], data: st.DataObject
) -> None:
    encoded = messages[0].SerializeToString()
    cut = data.draw(st.integers(0, len(encoded)))
    buffer, starts, ends = columns([encoded[:cut], b"\xff" * 40])

    with contextlib.suppress(MalformedMessage):
        fields = list(walk(buffer, starts[:1], ends[:1]))
        assert all((field.ends <= cut).all() for field in fields)


def test_groups_are_no_wire_type_of_this_protocol() -> None:
    buffer, starts, ends = columns([b"\x0b\x0c"])

    with pytest.raises(MalformedMessage):
        list(walk(buffer, starts, ends))
