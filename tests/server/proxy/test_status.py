"""Every error has a code, and a Status is what protobuf reads."""

import inspect

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server import errors
from cosmodrome_server.proxy import status

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.BrokerError)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_has_a_code_of_its_own_or_of_a_near_ancestor(
    kind: type[errors.BrokerError],
) -> None:
    assert status.code_of(kind("why")) in pb.Code.values()
    if issubclass(kind, errors.RequestError):
        assert 40000 <= status.code_of(kind("why")) < 51000
        assert kind in status.CODES, "a request error is a rule of the protocol: name its code"


def test_a_bug_is_an_internal_server_error_that_tells_nothing() -> None:
    field = status.error_field(KeyError("secret"))
    answer = rpc.HeartbeatResponse.FromString(field)
    assert answer.status.code == pb.INTERNAL_SERVER_ERROR
    assert "secret" not in answer.status.message


def test_an_error_without_words_says_its_code() -> None:
    assert status.message_of(errors.TopicNotFound()) == "TOPIC_NOT_FOUND"


def test_a_long_text_of_a_client_is_neither_told_nor_remembered() -> None:
    before = status.status_field.cache_info()
    told = status.message_of(errors.BadRequest("the key is " + "ü" * 1_000_000))
    assert told.startswith("the key is ü")
    assert told.endswith("…")
    assert len(told) == status.MESSAGE_CHARS
    assert status.message_of(errors.BadRequest("x" * status.MESSAGE_CHARS)).endswith("x")
    assert len(status.error_field(errors.BadRequest("x" * 1_000_000))) < 600
    assert status.status_field.cache_info().maxsize == before.maxsize


def test_entries_that_agree_stand_for_the_whole_and_others_are_multiple_results() -> None:
    refused = status.status_field(pb.INVALID_RECEIPT_HANDLE, "gone")
    assert status.overall({status.OK}) == status.OK
    assert status.overall({refused}) == refused
    assert status.overall({status.OK, refused}) == status.MULTIPLE_RESULTS
