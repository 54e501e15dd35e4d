"""Retry policies, isolation, round robin, status codes, filters, configuration, messages."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cosmodrome import (
    ClientConfiguration,
    Credentials,
    DelayLevel,
    Filter,
    IllegalArgument,
    Interceptor,
    Message,
    MessageType,
    OffsetReset,
    Producer,
    PullConsumer,
    PushConsumer,
    StartFrom,
    credentials,
    errors,
)
from cosmodrome._core import convert, endpoints, retry, status
from cosmodrome._core.isolation import Isolation
from cosmodrome._core.retry import RetryPolicy
from cosmodrome._core.route import MessageQueue, RoundRobin, queue_for_group
from cosmodrome.errors import ConfigurationError, NotFound
from cosmodrome.filters import filters_of, topics_of
from cosmodrome.pulling import reset_of, start_of
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb

A, B = endpoints.parse("127.0.0.1:1"), endpoints.parse("127.0.0.1:2")


def test_customised_rests_repeat_the_last() -> None:
    policy = RetryPolicy(17, (1000, 5000))
    assert [policy.delay_ms(n) for n in (0, 1, 2, 3, 99)] == [1000, 1000, 5000, 5000, 5000]


def test_exponential_rests_grow_to_their_maximum() -> None:
    policy = RetryPolicy(3, (), 10, 1000, 2.0)
    assert [policy.delay_ms(n) for n in (1, 2, 3, 8, 10_000)] == [10, 20, 40, 1000, 1000]


def test_policies_of_the_wire_are_read_and_gaps_filled() -> None:
    custom = pb.RetryPolicy(max_attempts=5)
    custom.customized_backoff.next.append(Duration(seconds=2))
    assert retry.from_wire(custom, retry.CONSUMER_DEFAULT) == RetryPolicy(5, (2000,))
    bare = retry.from_wire(pb.RetryPolicy(), retry.CONSUMER_DEFAULT)
    assert bare == retry.CONSUMER_DEFAULT


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "stored"),
    [
        (pb.INVALID_RECEIPT_HANDLE, errors.InvalidReceiptHandle, False, False),
        (pb.UNRECOGNIZED_CLIENT_TYPE, errors.UnrecognizedClientType, True, False),
        (pb.ILLEGAL_OFFSET, errors.BadRequest, False, False),
        (pb.UNAUTHORIZED, errors.Unauthorized, False, False),
        (pb.TOPIC_NOT_FOUND, errors.TopicNotFound, False, False),
        (pb.OFFSET_NOT_FOUND, errors.OffsetNotFound, False, False),
        (pb.REQUEST_TIMEOUT, errors.RequestTimeout, True, True),
        (pb.MESSAGE_BODY_TOO_LARGE, errors.PayloadTooLarge, False, False),
        (pb.MESSAGE_BODY_EMPTY, errors.PayloadEmpty, False, False),
        (pb.TOO_MANY_REQUESTS, errors.TooManyRequests, True, False),
        (pb.LITE_TOPIC_QUOTA_EXCEEDED, errors.LiteTopicQuotaExceeded, False, False),
        (pb.MESSAGE_PROPERTIES_TOO_LARGE, errors.HeaderFieldsTooLarge, False, False),
        (pb.HA_NOT_AVAILABLE, errors.InternalError, True, True),
        (pb.NOT_IMPLEMENTED, errors.NotImplementedByServer, False, False),
        (pb.MASTER_PERSISTENCE_TIMEOUT, errors.ProxyTimeout, True, True),
        (pb.VERSION_UNSUPPORTED, errors.Unsupported, False, False),
        (12345, errors.Unsupported, False, False),
    ],
)
def test_each_code_has_its_error(
    code: int, kind: type[errors.StatusError], retryable: bool, stored: bool
) -> None:
    error = status.error_of(pb.Status(code=code, message="no"), endpoint="e", request_id="r")  # type: ignore[arg-type]  # also numbers without a name
    assert type(error) is kind
    assert (error.code, error.is_retryable, error.maybe_stored) == (code, retryable, stored)
    assert str(error) == f"no [code {code} from e, request r]"


@pytest.mark.parametrize("name", [n for n, _ in pb.Code.items() if n != "CODE_UNSPECIFIED"])
def test_no_code_is_without_a_meaning(name: str) -> None:
    error = status.error_of(pb.Status(code=pb.Code.Value(name)))
    assert (error is None) == (name in {"OK", "MULTIPLE_RESULTS"})


def test_a_failed_endpoint_is_passed_over_until_its_heartbeat() -> None:
    isolation = Isolation()
    isolation.failed(A)
    assert isolation.isolated(0) == {A}
    isolation.alive(A)
    assert isolation.isolated(0) == frozenset()


def test_a_slow_endpoint_is_passed_over_for_the_time_of_the_table() -> None:
    isolation = Isolation(by_latency=True)
    isolation.answered(A, 60, 0)
    isolation.answered(B, 600, 0)
    assert isolation.isolated(1_999) == {B}
    assert isolation.isolated(2_000) == frozenset()


def queues(*places: tuple[str, endpoints.Endpoints]) -> list[MessageQueue]:
    return [MessageQueue("t", n, broker, where) for n, (broker, where) in enumerate(places)]


def test_candidates_are_distinct_brokers_in_turn_without_isolated_ones() -> None:
    choice = RoundRobin(0)
    found = queues(("a", A), ("a", A), ("b", B))
    assert [q.queue_id for q in choice.candidates(found, 3, frozenset())] == [0, 2]
    assert [q.queue_id for q in choice.candidates(found, 3, frozenset())] == [1, 2]
    assert [q.broker for q in choice.candidates(found, 3, frozenset([A]))] == ["b"]
    assert len(choice.candidates(found, 3, frozenset([A, B]))) == 2
    with pytest.raises(NotFound):
        choice.candidates([], 3, frozenset())


def test_a_message_group_has_one_queue() -> None:
    assert queue_for_group(queues(("a", A), ("a", A), ("b", B)), "order-1").queue_id == 0


@pytest.mark.parametrize(
    ("expression", "tag", "expected"),
    [("*", "a", True), ("a || b", "b", True), ("a||b", "c", False), ("", "x", True)],
)
def test_tags_are_checked_by_text(expression: str, tag: str, expected: bool) -> None:
    assert Filter(expression).takes_tag(tag) is expected
    assert Filter.sql("a > 1").takes_tag(tag)


def test_a_url_says_everything() -> None:
    found = ClientConfiguration.from_url("rocketmq://k:s%21@broker:9/ns?tls=true&timeout=5&ca=/c")
    assert found.endpoints == "broker:9"
    assert found.credentials == Credentials("k", "s!")
    assert found.namespace == "ns"
    assert found.request_timeout == timedelta(seconds=5)
    assert found.tls is not None
    assert found.tls.ca == Path("/c")


@pytest.mark.parametrize(
    "url", ["ftp://x", "rocketmq://x?tsl=1", "rocketmq://x?tls=maybe", "rocketmq://x?timeout=soon"]
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        ClientConfiguration.from_url(url)


def test_the_environment_says_it_too() -> None:
    found = ClientConfiguration.from_environment(
        {"COSMODROME_ENDPOINT": "h:1", "COSMODROME_TLS": "insecure", "COSMODROME_NAMESPACE": "n"}
    )
    assert (found.endpoints, found.namespace) == ("h:1", "n")
    assert found.tls is not None
    assert found.tls.is_insecure
    with pytest.raises(ConfigurationError, match="COSMODROME_ENDPOINT is not set"):
        ClientConfiguration.from_environment({})


def test_secrets_do_not_show() -> None:
    assert "hunter2" not in repr(Credentials("a", "hunter2", "hunter2"))


@pytest.mark.parametrize("key", ["", "1a", "a b", "rocketmq.x", "a" * 65])
def test_client_properties_keep_their_rules(key: str) -> None:
    with pytest.raises(ConfigurationError):
        ClientConfiguration("h:1", properties={key: "v"})


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("t", b"x"), MessageType.NORMAL),
        (Message("t", b"x", message_group="g"), MessageType.FIFO),
        (Message("t", b"x", delay=DelayLevel.LEVEL_1), MessageType.DELAY),
        (Message("t", b"x", priority=0), MessageType.PRIORITY),
        (Message("t", b"x", lite_topic="l"), MessageType.LITE),
    ],
)
def test_a_message_knows_its_type(message: Message, kind: MessageType) -> None:
    assert message.message_type is kind


@pytest.mark.parametrize(
    "options",
    [
        {"tag": "a|b"},
        {"tag": " "},
        {"keys": ["a", " "]},
        {"properties": {"a": ""}},
        {"properties": {"a": 1}},
        {"delay": 5},
        {"message_group": "g", "priority": 0},
        {"delay": timedelta(1), "deliver_at": datetime.now(UTC)},
        {"deliver_at": 1_767_323_045_000},
        {"deliver_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - the naive one is the point
        {"priority": -1},
    ],
)
def test_a_message_that_no_broker_takes_is_refused_here(options: dict[str, object]) -> None:
    with pytest.raises(IllegalArgument):
        Message("t", b"x", **options)  # type: ignore[arg-type]  # rows


def test_credentials_of_a_file_are_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    ask = credentials.from_file(file)
    with pytest.raises(ConfigurationError, match="no credentials in"):
        ask()
    file.write_text("access_key = a\nsecret_key = s\n")
    configuration = (
        ClientConfiguration.builder()
        .endpoints("h:1")
        .credential_provider(ask)
        .client_property("team", "shop")
        .build()
    )
    assert configuration.provider() == Credentials("a", "s")
    assert dict(configuration.properties) == {"team": "shop"}
    file.write_text("access_key = b\nsession_token = t\n")
    os.utime(file, (1, 1))
    assert configuration.provider() == Credentials("b", "", "t")


@pytest.mark.parametrize("given", [["orders"], "orders", {"orders": None}])
def test_subscriptions_map_topics_to_filters(given: object) -> None:
    with pytest.raises(IllegalArgument, match="orders"):
        filters_of(given)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("given", ["orders", [["orders"]], [None]])
def test_topics_are_a_list_of_names(given: object) -> None:
    with pytest.raises(IllegalArgument, match="names of topics"):
        topics_of(given)  # type: ignore[arg-type]  # wrong on purpose
    assert list(topics_of(("b", "a", "b"))) == ["b", "a"]


@pytest.mark.parametrize("given", [None, 8081, ["127.0.0.1:8081"]])
def test_where_the_broker_is_must_be_said(given: object) -> None:
    with pytest.raises(ConfigurationError, match="an address, a URL or a ClientConfiguration"):
        ClientConfiguration.of(given)  # type: ignore[arg-type]  # wrong on purpose


def test_the_name_of_a_filters_type_is_none() -> None:
    with pytest.raises(IllegalArgument, match=r"Filter\.sql"):
        Filter("a > 1", "SQL92")  # type: ignore[arg-type]  # wrong on purpose


def test_text_is_no_body() -> None:
    with pytest.raises(IllegalArgument, match="encode text first"):
        Message("t", "text")  # type: ignore[arg-type]  # wrong on purpose


def test_delays_count_from_the_send() -> None:
    assert convert.delivery_ms(Message("t", b"x", delay=timedelta(seconds=2)), 1000) == 3000
    at = Message("t", b"x", deliver_at=datetime.fromtimestamp(5, UTC))
    assert convert.delivery_ms(at, 1000) == 5000
    assert convert.delivery_ms(Message("t", b"x"), 1000) is None


def test_a_message_survives_the_wire() -> None:
    sent = Message("t", b"body", tag="a", keys=["1", "2"], properties={"p": "q"})
    wire = convert.Encoder("me", "").wire(sent, "ID", 1_700_000_000_123)
    convert.compress(wire)
    convert.add_digest(wire)
    view = convert.view(wire, "127.0.0.1:1")
    assert (view.body, view.tag, view.keys, dict(view.properties)) == (
        b"body",
        "a",
        ("1", "2"),
        {"p": "q"},
    )
    assert view.message_type is MessageType.NORMAL
    assert view.born_timestamp is not None
    assert view.born_timestamp.microsecond == 123_000
    wire.body += b"!"
    assert convert.view(wire, "e:1").is_corrupted


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 1 << 62, -(1 << 63)])
def test_a_message_born_at_no_time_is_a_message(seconds: int) -> None:
    wire = pb.Message(body=b"body")
    wire.system_properties.born_timestamp.seconds = seconds
    view = convert.view(wire, "e:1")
    assert (view.body, view.born_timestamp) == (b"body", None)


def test_messages_of_one_producer_share_nothing_but_what_is_theirs_together() -> None:
    encoder = convert.Encoder("me", "space")
    first = encoder.wire(Message("t", b"1", tag="a", message_group="g"), "ID1", 1_000)
    second = encoder.wire(Message("t", b"2"), "ID2", 2_500, is_transaction=True)
    third = encoder.wire(Message("u", b"3"), "ID3", 2_500)
    told = [(w.topic.name, w.body, w.system_properties.tag) for w in (first, second, third)]
    assert told == [("t", b"1", "a"), ("t", b"2", ""), ("u", b"3", "")]
    assert {wire.topic.resource_namespace for wire in (first, second, third)} == {"space"}
    kinds = [MessageType(w.system_properties.message_type) for w in (first, second, third)]
    assert kinds == [MessageType.FIFO, MessageType.TRANSACTION, MessageType.NORMAL]
    assert not second.system_properties.HasField("message_group")
    born = [wire.system_properties.born_timestamp.ToMilliseconds() for wire in (first, second)]
    assert born == [1_000, 2_500]


def test_a_producer_of_very_many_topics_forgets_what_its_messages_share() -> None:
    encoder = convert.Encoder("me", "")
    for number in range(3_000):
        assert encoder.wire(Message(f"t{number}", b"x"), "ID", 1).topic.name == f"t{number}"
    assert len(encoder._templates) < 3_000


def test_an_error_says_which_broker_sent_which_code_where_one_did() -> None:
    refused = errors.BadRequest("no", code=40000, endpoint="h:1", request_id="r")
    assert str(refused) == "no [code 40000 from h:1, request r]"
    assert str(errors.PayloadTooLarge("too large")) == "too large"


async def test_where_a_pull_consumer_begins_may_be_said_by_name() -> None:
    def made(**options: object) -> PullConsumer:
        return PullConsumer("h:1", group="g", **options)  # type: ignore[arg-type]  # any of them

    assert start_of("first") is StartFrom.FIRST
    assert start_of("last") is start_of(StartFrom.LAST)
    assert start_of(moment := datetime.now(UTC)) is moment
    assert reset_of("error") is OffsetReset.ERROR
    with pytest.raises(IllegalArgument, match=r"StartFrom\.FIRST.*not 'earliest'"):
        made(start_from="earliest")
    with pytest.raises(IllegalArgument, match=r"OffsetReset\.NEAREST.*not 'latest'"):
        made(offset_reset="latest")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listener": "bill"}, "a message listener is a function, not 'bill'"),
        ({"interceptors": [Interceptor]}, "an instance of Interceptor, not <class"),
        ({"interceptors": [print]}, "an instance of Interceptor"),
    ],
)
async def test_what_cannot_be_called_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(IllegalArgument, match=words):
        PushConsumer("h:1", group="g", **options)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"credentials": ("key", "s3cret")}, "Credentials or a callable, not tuple"),
        ({"tls": True}, "a Tls or None, not True"),
        ({"request_timeout": 5}, "a timedelta, not 5"),
        ({"request_timeout": timedelta(0)}, "not positive"),
    ],
)
def test_a_setting_of_another_kind_is_refused_where_it_is_written(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        ClientConfiguration("h:1", **options)  # type: ignore[arg-type]  # wrong on purpose
    assert "s3cret" not in str(refused.value)


async def test_a_send_may_take_seconds_as_a_number() -> None:
    Producer("h:1", send_timeout=1.5)
    Producer("h:1", send_timeout=timedelta(seconds=1))
    for nothing in (0, timedelta(-1)):
        with pytest.raises(IllegalArgument, match="send_timeout is more than 0"):
            Producer("h:1", send_timeout=nothing)
