"""Hand-packed bytes are what protobuf would have written."""

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.message import Delivery, StoredMessage
from cosmodrome_server.proxy import encoding


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_integer_field_is_what_protobuf_reads(value: int) -> None:
    encoded = encoding.varint_field(2, value)
    assert rpc.GetOffsetResponse.FromString(encoded).offset == value


@given(st.text(max_size=300))
def test_a_text_field_is_what_protobuf_reads(value: str) -> None:
    encoded = encoding.bytes_field(2, value.encode("utf-8", "ignore"))
    expected = value.encode("utf-8", "ignore").decode()
    assert rpc.ChangeInvisibleDurationResponse.FromString(encoded).receipt_handle == expected


@given(
    st.integers(0, 1023),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 42),
    st.integers(1, 5000),
    st.integers(0, 43_200_000),
    st.binary(min_size=1, max_size=500),
)
def test_a_delivery_is_what_protobuf_reads(
    queue_id: int, offset: int, stored_ms: int, attempt: int, invisible_ms: int, body: bytes
) -> None:
    system = pb.SystemProperties(tag="t", keys=["a", "b"], message_id="id", message_group="g")
    user = pb.Message(user_properties={"k": "v", "x": ""}).SerializeToString()
    stored = MessageRecord(
        MessageState.VISIBLE,
        topic_id=1,
        queue_id=queue_id,
        queue_offset=offset,
        tag_hash=0,
        store_timestamp_ms=stored_ms,
        due_ms=0,
        system=system.SerializeToString(),
        user=user,
        body=body,
    )
    delivery = Delivery("orders", stored, "handle" * 20, attempt, invisible_ms)
    store_host = encoding.bytes_field(10, b"1.2.3.4:5")

    (encoded,) = encoding.delivered([delivery], store_host)
    read = rpc.ReceiveMessageResponse.FromString(encoded).message

    known = read.system_properties
    assert read.topic.name == "orders"
    assert read.body == body
    assert dict(read.user_properties) == {"k": "v", "x": ""}
    assert (known.tag, list(known.keys), known.message_group) == ("t", ["a", "b"], "g")
    assert (known.queue_id, known.queue_offset) == (queue_id, offset)
    assert known.store_timestamp.ToMilliseconds() == stored_ms
    assert known.invisible_duration.ToMilliseconds() == invisible_ms
    assert (known.delivery_attempt, known.receipt_handle) == (attempt, "handle" * 20)
    assert known.store_host == "1.2.3.4:5"
    assert known.body_digest.type == pb.MD5


def test_the_digest_is_upper_case_md5_and_wins_over_the_producers() -> None:
    sent = pb.SystemProperties(body_digest=pb.Digest(type=pb.CRC32, checksum="3610A686"))
    stored = StoredMessage("t", 0, 0, 0, sent.SerializeToString(), b"", b"hello")
    read = rpc.PullMessageResponse.FromString(encoding.pulled(stored, b"")).message
    digest = read.system_properties.body_digest
    assert (digest.type, digest.checksum) == (pb.MD5, "5D41402ABC4B2A76B9719D911017C592")


def test_system_properties_are_one_submessage_because_javascript_does_not_merge() -> None:
    stored = StoredMessage(
        "t", 3, 9, 5, pb.SystemProperties(tag="t").SerializeToString(), b"", b"x"
    )
    encoded = encoding.message_fields(stored, encoding.system_fields(stored, b""))
    from cosmodrome_server.model.wire import fields

    assert [number for number, _ in fields(encoded)] == [1, 3, 4]
