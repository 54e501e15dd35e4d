"""What clients are told; protocol.md 3.2."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.config import Config, Metrics
from cosmodrome_server.errors import InvalidClientProperties
from cosmodrome_server.model.group import DEFAULT_BACKOFF_MS, ExponentialBackoff, Group
from cosmodrome_server.proxy.settings import check_client_properties, merged, scheme_of
from tests.support.proxy_world import consumer_settings, producer_settings

CONFIG = Config()
ACCESS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.1", port=1)])


def test_a_producer_is_told_everything() -> None:
    told = merged(producer_settings("orders"), None, CONFIG)
    assert told.publishing.max_body_size == 4_194_304
    assert told.publishing.validate_message_type
    assert [one.name for one in told.publishing.topics] == ["orders"]
    policy = told.backoff_policy
    assert policy.max_attempts == 3
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert policy.exponential_backoff.max.ToMilliseconds() == 1_000
    assert policy.exponential_backoff.multiplier == 2.0
    assert told.HasField("metric")
    assert not told.metric.on


def test_a_consumer_is_told_what_its_group_says_whatever_it_sent() -> None:
    sent = consumer_settings()
    sent.subscription.fifo = True
    sent.subscription.receive_batch_size = 1
    sent.subscription.long_polling_timeout.FromSeconds(1)
    sent.backoff_policy.max_attempts = 1
    told = merged(sent, Group("billing"), CONFIG)
    subscription = told.subscription
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.ToMilliseconds() == 20_000
    assert subscription.lite_subscription_quota == 2_000
    assert subscription.max_lite_topic_size == 64
    assert told.backoff_policy.max_attempts == 17
    steps = told.backoff_policy.customized_backoff.next
    assert [one.ToMilliseconds() for one in steps] == list(DEFAULT_BACKOFF_MS)
    assert told.request_timeout == sent.request_timeout
    assert sent.backoff_policy.max_attempts == 1, "what was sent is not changed"


def test_an_exponential_group_policy_is_told_as_such() -> None:
    group = Group("g", is_fifo=True, backoff=ExponentialBackoff(5_000, 7_200_000, 2.0))
    told = merged(consumer_settings(), group, CONFIG)
    assert told.subscription.fifo
    assert told.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 5_000


@pytest.mark.parametrize(("attribute", "quota"), [("-1", -1), ("7", 7), ("many", 2_000)])
def test_a_group_may_set_its_lite_quota(attribute: str, quota: int) -> None:
    group = Group("g", attributes={"lite.sub.client.quota": attribute})
    told = merged(consumer_settings(), group, CONFIG)
    assert told.subscription.lite_subscription_quota == quota


def test_clients_send_their_metrics_where_the_settings_say() -> None:
    sent = producer_settings("orders")
    sent.access_point.CopyFrom(ACCESS)
    back = merged(sent, None, Config(metrics=Metrics(collector="proxy")))
    assert (back.metric.on, back.metric.endpoints) == (True, ACCESS)
    away = Config(metrics=Metrics(collector="on", collector_endpoint="otel:4317"))
    endpoints = merged(sent, None, away).metric.endpoints
    assert (endpoints.scheme, endpoints.addresses[0].port) == (pb.DOMAIN_NAME, 4317)


@pytest.mark.parametrize(
    ("host", "scheme"),
    [("10.1.2.3", pb.IPv4), ("::1", pb.IPv6), ("mq.example", pb.DOMAIN_NAME)],
)
def test_a_host_is_written_as_what_it_is(host: str, scheme: int) -> None:
    assert scheme_of(host) == scheme


@pytest.mark.parametrize(
    "properties",
    [
        {f"k{n}": "" for n in range(33)},
        {"": "v"},
        {"1a": "v"},
        {"a b": "v"},
        {"k" * 65: "v"},
        {"k": "v" * 257},
        {"rocketmq.zone": "a"},
        {f"k{n}": "v" * 256 for n in range(16)},
    ],
)
def test_client_properties_that_break_a_rule_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidClientProperties):
        check_client_properties(properties)


def test_client_properties_within_the_rules_pass() -> None:
    check_client_properties({"k" * 64: "v" * 256, "zone.a-1_b": ""})
