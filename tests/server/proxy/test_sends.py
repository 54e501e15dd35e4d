"""Sends that hold more than any may are refused before they are read."""

import time

import pytest
from google.protobuf.message import DecodeError

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.config import Limits
from cosmodrome_server.errors import MessageCorrupted, MessagePropertiesTooLarge
from cosmodrome_server.proxy.sends import COUNTED_BYTES, Sends

SENDS = Sends(Limits())
EMPTY_MESSAGE = b"\x0a\x00"


def request(*messages: pb.Message) -> bytes:
    return rpc.SendMessageRequest(messages=messages).SerializeToString()


def with_properties(count: int, body: bytes) -> pb.Message:
    return pb.Message(user_properties={f"k{n}": "v" for n in range(count)}, body=body)


@pytest.mark.parametrize("body", [b"x", bytes(2_000)])
def test_as_many_messages_as_there_may_be_are_read_and_no_more(body: bytes) -> None:
    most = Limits().batch_messages
    assert len(SENDS.read(request(*[pb.Message(body=body)] * most)).messages) == most
    with pytest.raises(MessageCorrupted, match=r"1024 messages.*limits\.batch_messages"):
        SENDS.read(request(*[pb.Message(body=body)] * (most + 1)))
    with pytest.raises(MessageCorrupted):
        SENDS.read(request(*[pb.Message(body=body)] * (most + 100)))


def test_a_large_message_has_all_its_properties() -> None:
    sent = SENDS.read(request(with_properties(128, bytes(COUNTED_BYTES)), with_properties(1, b"x")))
    assert [len(one.user_properties) for one in sent.messages] == [128, 1]


def test_a_message_of_countless_properties_is_refused() -> None:
    with pytest.raises(MessagePropertiesTooLarge, match=r"128 .*limits\.user_properties"):
        SENDS.read(request(with_properties(200, bytes(COUNTED_BYTES))))


def test_what_would_take_gigabytes_is_refused_without_being_read() -> None:
    began_s = time.process_time()
    with pytest.raises(MessageCorrupted):
        SENDS.read(EMPTY_MESSAGE * 40_000_000)
    # Read, it is 3 GB and 4 s.
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x0a\xff\xff",
        b"\x0a\x05abc",
        b"\x07",
        b"\xff" * 11,
        b"\x0b\x0a",
        b"\x0a\x04\x0a\xff\xff\x7f",
    ],
)
def test_bytes_that_are_no_request_are_said_to_be_none(wrong: bytes) -> None:
    large = request(pb.Message(body=bytes(COUNTED_BYTES)))
    for payload in (wrong, large + wrong):
        with pytest.raises(DecodeError):
            SENDS.read(payload)
