from array import array
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.errors import CorruptFrame
from cosmodrome_server.model.log import (
    DELIVERY_HEAD,
    MessageRecord,
    MessageState,
    RecordKind,
    ReplayedDeliveries,
    ReplayedItem,
    ReplayedRow,
    ReplayedRun,
)
from cosmodrome_server.store import record

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)
messages = st.builds(
    MessageRecord,
    st.sampled_from(MessageState),
    U32,
    U32,
    U64,
    U32,
    U64,
    U64,
    st.binary(max_size=50),
    st.binary(max_size=50),
    st.binary(max_size=50),
)
STATE_KINDS = [kind for kind in RecordKind if kind is not RecordKind.MESSAGE]


@given(messages)
def test_a_message_comes_back_as_it_was(message: MessageRecord) -> None:
    data = b"".join(record.encode_message(message))

    assert record.length_of(data) == len(data)
    assert record.decode_message(data) == message


@given(st.lists(messages))
def test_many_are_encoded_as_each_alone(written: list[MessageRecord]) -> None:
    parts, lengths = record.encode_messages(written)

    each = [b"".join(record.encode_message(message)) for message in written]
    assert b"".join(parts) == b"".join(each)
    assert lengths == [len(encoded) for encoded in each]


@given(st.lists(st.one_of(messages, st.tuples(st.sampled_from(STATE_KINDS), st.binary()))))
def test_records_come_back_in_order_with_their_positions(
    written: list[MessageRecord | tuple[RecordKind, bytes]],
) -> None:
    payload, positions = b"", []
    for item in written:
        positions.append(1_000 + len(payload))
        if isinstance(item, MessageRecord):
            payload += b"".join(record.encode_message(item))
        else:
            payload += record.encode_state(*item) + item[1]

    found = list(record.decode_records(payload, 1_000, 17))

    assert [item.position for item in found] == positions
    assert {item.timestamp_ms for item in found} <= {17}
    assert [
        item.message if item.message is not None else (item.kind, item.payload) for item in found
    ] == written


# Of few queues and offsets, so that some follow each other.
near = st.builds(
    MessageRecord,
    st.sampled_from([MessageState.VISIBLE, MessageState.VISIBLE, MessageState.HALF]),
    st.just(7),
    st.integers(0, 1),
    st.integers(0, 3),
    U32,
    U64,
    U64,
    st.binary(max_size=5),
    st.binary(max_size=5),
    st.binary(max_size=5),
)


def delivery(kind: RecordKind, numbers: tuple[int, ...], tail: bytes) -> tuple[RecordKind, bytes]:
    return kind, DELIVERY_HEAD.pack(0, 0, *numbers)[record.STATE_HEAD_BYTES :] + tail


deliveries = st.builds(
    delivery,
    st.sampled_from([RecordKind.POP, RecordKind.ACK]),
    st.tuples(U64, U32, U32, U32, U64, U64),
    st.sampled_from([b"", b"", b"tail"]),
)
others = st.sampled_from(
    [(RecordKind.ACK, b"an ack"), (RecordKind.POP, b""), (RecordKind.KEEP, b"")]
)
Queues = dict[tuple[int, int], list[tuple[int, tuple[int, int, int]]]]


def told(parts: Iterable[ReplayedItem]) -> list[object]:
    """Stretches without other records: messages by queue, the last of all, deliveries in order."""
    found: list[object] = []
    queues: Queues = {}
    last: object = None
    pairs: list[tuple[RecordKind, bytes]] = []
    for part in parts:
        if isinstance(part, ReplayedDeliveries):
            tails = iter(part.tails)
            for head in part.heads:
                kind = RecordKind(head[1])
                tail = next(tails) if kind is RecordKind.POP else b""
                assert head[0] == DELIVERY_HEAD.size + len(tail)
                pairs.append(delivery(kind, head[2:], tail))
            assert (list(tails), part.timestamp_ms) == ([], 17)
        elif isinstance(part, ReplayedRun):
            assert part.timestamp_ms == 17
            last = part.queue_id
            of_queue = queues.setdefault(part[:2], [])
            of_queue += enumerate(part.entries, part.queue_offset)
        elif isinstance(part, ReplayedRow):
            found += [queues, last, pairs, tuple(part)]
            queues, last, pairs = {}, None, []
        elif (message := part.message) is not None and message.state is MessageState.VISIBLE:
            last = message.queue_id
            entry = (part.position, message.tag_hash, message.store_timestamp_ms)
            place = (message.topic_id, message.queue_id)
            queues.setdefault(place, []).append((message.queue_offset, entry))
        elif part.kind in (RecordKind.POP, RecordKind.ACK):
            pairs.append((part.kind, part.payload))
        else:
            found += [queues, last, pairs, tuple(part)]
            queues, last, pairs = {}, None, []
    return [*found, queues, last, pairs]


@given(st.lists(st.one_of(near, deliveries, others)))
def test_runs_are_the_records_they_are_made_of(
    written: list[MessageRecord | tuple[RecordKind, bytes]],
) -> None:
    payload = b""
    for item in written:
        if isinstance(item, MessageRecord):
            payload += b"".join(record.encode_message(item))
        else:
            payload += record.encode_state(*item) + item[1]

    runs = list(record.decode_runs(payload, 1_000, 17))

    assert told(runs) == told(record.decode_records(payload, 1_000, 17))


def test_messages_of_some_queues_and_what_lies_between_are_a_run_each() -> None:
    payload = b""
    for queue_offset in range(3):
        for queue_id in (1, 0):
            message = MessageRecord(
                MessageState.VISIBLE, 7, queue_id, queue_offset, 0, 5, 0, b"", b"", b""
            )
            payload += b"".join(record.encode_message(message))
        for kind, content in (
            delivery(RecordKind.POP, (9,) * 6, b"tail"),
            delivery(RecordKind.ACK, (9,) * 6, b""),
        ):
            payload += record.encode_state(kind, content) + content

    first, second, third = record.decode_runs(payload, 1_000, 17)

    assert isinstance(first, ReplayedRun)
    assert isinstance(second, ReplayedRun)
    assert (first[:3], second[:3]) == ((7, 1, 0), (7, 0, 0))
    assert len(first.entries) == len(second.entries) == 3
    assert isinstance(third, ReplayedDeliveries)
    assert (len(third.heads), third.tails) == (6, [b"tail"] * 3)


def test_every_flipped_bit_of_a_message_is_noticed() -> None:
    message = MessageRecord(MessageState.HALF, 1, 2, 3, 4, 5, 6, b"system", b"user", b"body")
    good = b"".join(record.encode_message(message))
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        # The reader takes as many bytes as the length says; zeros follow.
        length = min(record.length_of(bytes(data)), 4_096)
        with pytest.raises(CorruptFrame):
            record.decode_message(bytes(data).ljust(length, b"\0")[:length])


@given(st.binary(max_size=300))
def test_rubbish_is_refused_and_never_a_crash(payload: bytes) -> None:
    try:
        found = list(record.decode_records(payload, 0, 0))
        list(record.decode_runs(payload, 0, 0))
    except CorruptFrame:
        return
    assert sum(1 for _ in found) <= len(payload)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x05\0\0", "record head"),
        (b"\x04\0\0\0\x02", "out of bounds"),
        (b"\x06\0\0\0\x02", "out of bounds"),
        (b"\x06\0\0\0\x01x", "message record of 6 bytes"),
        (b"\x06\0\0\0\x01".ljust(80, b"\0"), "message record of 6 bytes"),
        (b"\xff\0\0\0\x01".ljust(80, b"\0"), "out of bounds"),
        (b"\x05\0\0\0\xfa", "newer version"),
    ],
)
def test_a_record_that_cannot_be_is_refused_with_its_reason(payload: bytes, reason: str) -> None:
    with pytest.raises(CorruptFrame, match=reason):
        list(record.decode_records(payload, 0, 0))
    with pytest.raises(CorruptFrame, match=reason):
        list(record.decode_runs(payload, 0, 0))


def test_a_state_no_version_knows_is_refused() -> None:
    message = MessageRecord(MessageState.VISIBLE, 1, 2, 3, 4, 5, 6, b"", b"", b"body")
    data = bytearray(b"".join(record.encode_message(message)))
    data[9] = 200

    with pytest.raises(CorruptFrame, match="out of its bounds"):
        list(record.decode_records(bytes(data), 0, 0))


@given(st.lists(st.tuples(st.binary(), st.binary())))
def test_rows_come_back_as_they_were(rows: list[tuple[bytes, bytes]]) -> None:
    encoded, count = record.encode_snapshot(bytes(16), rows)

    ends, *found, end = record.decode_records(encoded, 0, 0)
    assert len(found) + 2 == count
    assert (ends.kind, ends.payload) == (RecordKind.QUEUE_ENDS, bytes(16))
    assert {each.kind for each in found} <= {RecordKind.SNAPSHOT_ROW}
    assert [record.decode_row(each.payload) for each in found] == rows
    assert (end.kind, end.payload) == (RecordKind.SNAPSHOT_END, b"")
    assert list(record.decode_runs(encoded, 0, 17))[1:-1] == [ReplayedRow(*row, 17) for row in rows]


@pytest.mark.parametrize("payload", [b"", b"\1\0\0", b"\5\0\0\0key"])
def test_half_a_row_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptFrame):
        record.decode_row(payload)


@given(st.dictionaries(U64, U64))
def test_queue_ends_come_back_as_they_were(ends: dict[int, int]) -> None:
    columns = array("Q", ends), array("Q", ends.values())

    assert record.decode_queue_ends(record.encode_queue_ends([columns])) == ends


def test_half_a_queue_end_is_refused() -> None:
    with pytest.raises(CorruptFrame, match="pairs"):
        record.decode_queue_ends(bytes(17))


def test_kinds_and_states_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in MessageState} == {
        "VISIBLE": 0,
        "HALF": 1,
        "DELAYED": 2,
    }
    assert (RecordKind["MESSAGE"].value, RecordKind["QUEUE_ENDS"].value) == (1, 22)
    assert len({int(kind) for kind in RecordKind}) == len(RecordKind)


def test_a_decoded_message_is_independent_of_its_bytes() -> None:
    message = MessageRecord(MessageState.VISIBLE, 1, 2, 3, 4, 5, 6, b"s", b"u", b"b")
    data = b"".join(record.encode_message(message))
    assert isinstance(record.decode_message(data).body, bytes)
    assert msgspec.structs.replace(record.decode_message(data), body=b"b") == message
