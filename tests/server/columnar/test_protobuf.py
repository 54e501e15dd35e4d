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


STRANGE = st.sampled_from(
    [
        b"\xa3\x06\x08\x01\xa4\x06",
        b"\xa3\x06\xa3\x06\xa4\x06\xa4\x06",
        b"\x80\x80\x01\x07",
        b"\x9a\x80\x01\x01x",  # number 2,051: 3 is the message id
        b"\xa0\x06" + b"\xff" * 9 + b"\x01",
        b"\xa5\x06abcd",
        b"\xa1\x06abcdefgh",
    ]
)


@given(MESSAGES, st.lists(STRANGE, min_size=1, max_size=3), st.booleans())
def test_fields_that_nobody_knows_are_passed_over(
    messages: list[pb.SystemProperties], strange: list[bytes], first: bool
) -> None:
    odd = b"".join(strange)
    parts = [each.SerializeToString() for each in messages]
    parts[0] = odd + parts[0] if first else parts[0] + odd
    buffer, starts, ends = columns(parts)

    ids = [b""] * len(messages)
    for field in walk(buffer, starts, ends):
        if field.number == 3:
            spans = zip(field.rows, field.starts, field.ends, strict=True)
            for row, start, end in spans:
                ids[row] = buffer.bytes[start:end].tobytes()

    assert [each.decode() for each in ids] == [message.message_id for message in messages]


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_number_of_64_bits_is_read(value: int) -> None:
    encoded = pb.SystemProperties(queue_offset=value).SerializeToString()
    (field,) = walk(*columns([encoded]))
    assert field.values.tolist() == [value]


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"\x0b", b"\x0b\x14", b"\x0c", b"\x0e\x01", b"\x08" + b"\xff" * 10),
        *(b"\x0a" + b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x08", b"\x0a\x05a"),
    ],
)
def test_what_protobuf_refuses_is_malformed(damaged: bytes) -> None:
    whole = pb.SystemProperties(message_id="m").SerializeToString()
    with pytest.raises(MalformedMessage) as refused:
        list(walk(*columns([whole, damaged])))
    assert refused.value.row == 1
