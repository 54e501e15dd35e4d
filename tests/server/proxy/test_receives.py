"""Receives read by heart are what protobuf reads, whatever was read before."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.filter import EVERYTHING, Filter, FilterType
from cosmodrome_server.proxy.receives import KNOWN_MAX, Asked, Receives

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NAMES = st.sampled_from(["", "short", UUID, UUID.upper(), "ü" * 18, "x" * 37])
TEXTS = st.sampled_from(["*", "", "a || b", "B$" + UUID, "price > 3", "x" * 600])
REQUESTS = st.builds(
    rpc.ReceiveMessageRequest,
    group=st.builds(pb.Resource, name=st.sampled_from(["billing", "B$" + UUID])),
    message_queue=st.builds(
        pb.MessageQueue, topic=st.builds(pb.Resource, name=st.just("orders")), id=st.integers(-1, 9)
    ),
    filter_expression=st.builds(
        pb.FilterExpression, expression=TEXTS, type=st.sampled_from([0, 1, 2, 9])
    ),
    batch_size=st.integers(-1, 33),
    auto_renew=st.booleans(),
    attempt_id=NAMES,
)


def plainly(payload: bytes) -> Asked | None:
    """As somebody reads who remembers nothing; None for bytes that are no request."""
    try:
        request = rpc.ReceiveMessageRequest.FromString(payload)
    except DecodeError:
        return None
    known = {0: FilterType.TAG, 1: FilterType.TAG, 2: FilterType.SQL}
    kind = known.get(request.filter_expression.type)
    text = request.filter_expression.expression
    is_everything = kind is FilterType.TAG and text in {"", "*"}
    wanted = None if kind is None else EVERYTHING if is_everything else Filter(kind, text)
    return Asked(
        request.group.name,
        request.message_queue.topic.name,
        request.message_queue.id,
        request.batch_size,
        request.invisible_duration.ToMilliseconds(),
        request.auto_renew,
        request.filter_expression.type,
        wanted,
        request.long_polling_timeout.ToMilliseconds()
        if request.HasField("long_polling_timeout")
        else None,
        request.attempt_id,
    )


def read(receives: Receives, payload: bytes) -> Asked | None:
    try:
        return receives.read(payload)
    except DecodeError:
        return None


@given(st.lists(REQUESTS, min_size=1, max_size=8))
def test_each_is_read_as_if_none_had_been_before(requests: list[rpc.ReceiveMessageRequest]) -> None:
    receives = Receives()
    for _ in range(2):
        for request in requests:
            payload = request.SerializeToString()
            assert receives.read(payload) == plainly(payload)


@given(
    st.lists(
        st.binary(max_size=4)
        | REQUESTS.map(lambda request: request.SerializeToString())
        | st.sampled_from([b"\x42\x24", UUID.encode(), b"\xff" * 36, b"\x42\x24" + UUID.encode()]),
        max_size=4,
    )
)
def test_any_bytes_are_read_as_protobuf_reads_them(parts: list[bytes]) -> None:
    receives = Receives()
    for end in (*range(1, len(parts) + 1), len(parts)):
        payload = b"".join(parts[:end])
        assert read(receives, payload) == plainly(payload)


def test_durations_are_read_in_milliseconds_and_no_polling_time_is_none() -> None:
    request = rpc.ReceiveMessageRequest()
    request.invisible_duration.FromMilliseconds(10_001)
    assert Receives().read(request.SerializeToString()).polling_ms is None
    request.long_polling_timeout.FromMilliseconds(0)
    asked = Receives().read(request.SerializeToString())
    assert (asked.invisible_ms, asked.polling_ms) == (10_001, 0)


def test_receives_that_differ_in_their_name_only_are_known_once() -> None:
    receives = Receives()
    for number in range(100):
        request = rpc.ReceiveMessageRequest(attempt_id=f"{number:036}", batch_size=5)
        asked = receives.read(request.SerializeToString())
        assert (asked.batch_size, asked.attempt_id) == (5, f"{number:036}")
    assert len(receives) == 1


def test_what_is_known_has_bounds() -> None:
    receives = Receives()
    for number in range(KNOWN_MAX + 10):
        receives.read(rpc.ReceiveMessageRequest(batch_size=number).SerializeToString())
    assert 0 < len(receives) <= KNOWN_MAX
    before = len(receives)
    long = rpc.ReceiveMessageRequest(filter_expression=pb.FilterExpression(expression="x" * 600))
    for name in ("", UUID):
        long.attempt_id = name
        receives.read(long.SerializeToString())
    assert len(receives) == before


def test_bytes_that_are_no_request_are_refused() -> None:
    with pytest.raises(DecodeError):
        Receives().read(b"\xff\xff\xff")
