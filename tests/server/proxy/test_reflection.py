"""What grpcurl and its like are told."""

from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2 as wire

from cosmodrome_server.proxy.front import GrpcStatus
from cosmodrome_server.proxy.open_streams import OpenStreams
from cosmodrome_server.proxy.reflection import Reflection
from tests.support.proxy_world import FakeCall

MESSAGING = "apache.rocketmq.v2.MessagingService"


def ask(**question: str) -> wire.ServerReflectionResponse:
    call = FakeCall()
    Reflection([MESSAGING, "a.B"], OpenStreams()).inform(call)
    call.say(wire.ServerReflectionRequest(**question))
    return wire.ServerReflectionResponse.FromString(call.messages[0])


def test_services_are_listed() -> None:
    listed = ask(list_services="").list_services_response.service
    assert [one.name for one in listed] == ["a.B", MESSAGING]


def test_a_symbol_is_described_with_all_its_file_needs() -> None:
    described = ask(file_containing_symbol=MESSAGING).file_descriptor_response
    names = {
        descriptor_pb2.FileDescriptorProto.FromString(one).name
        for one in described.file_descriptor_proto
    }
    assert names == {
        "apache/rocketmq/v2/service.proto",
        "apache/rocketmq/v2/definition.proto",
        "google/protobuf/duration.proto",
        "google/protobuf/timestamp.proto",
    }


def test_a_file_is_found_by_its_name() -> None:
    described = ask(file_by_filename="google/protobuf/duration.proto").file_descriptor_response
    assert len(described.file_descriptor_proto) == 1


def test_what_is_not_known_is_an_error_of_the_answer_and_the_stream_goes_on() -> None:
    for question in (
        {"file_containing_symbol": "no.Such"},
        {"file_by_filename": "no.proto"},
        {"all_extension_numbers_of_type": "no.Such"},
    ):
        assert ask(**question).error_response.error_code == int(GrpcStatus.NOT_FOUND)
    known = ask(all_extension_numbers_of_type="apache.rocketmq.v2.Message")
    assert known.all_extension_numbers_response.base_type_name == "apache.rocketmq.v2.Message"


def test_rubbish_ends_the_stream_and_half_closing_too() -> None:
    call = FakeCall()
    streams = OpenStreams()
    Reflection([], streams).inform(call)
    assert call._on_message is not None
    call._on_message(b"\x0a\xff")
    assert call.ended is not None
    assert call.ended[0] is GrpcStatus.INVALID_ARGUMENT
    closed = FakeCall()
    Reflection([], streams).inform(closed)
    closed.say(None)
    assert closed.ended is not None
    assert closed.ended[0] is GrpcStatus.OK
    streams.close()  # ends nothing twice


def test_at_the_end_streams_that_clients_keep_open_end() -> None:
    streams = OpenStreams()
    reflection = Reflection([], streams)
    silent, asked, gone, late = (FakeCall() for _ in range(4))
    for call in (silent, asked, gone):
        reflection.inform(call)
    asked.say(wire.ServerReflectionRequest(list_services=""))
    gone.cancel()
    assert asked.ended is None
    streams.close()
    reflection.inform(late)
    for call in (silent, asked, late):
        assert call.ended == (GrpcStatus.OK, "")
    assert gone.ended is None
