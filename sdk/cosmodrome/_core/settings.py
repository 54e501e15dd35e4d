"""The settings of a client: what it says of itself, and what the broker makes of it."""

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core import retry
from cosmodrome._core.retry import RetryPolicy
from cosmodrome._core.signature import VERSION
from cosmodrome.config import ClientConfiguration
from cosmodrome.filters import Filter
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """What the broker told a producer."""

    policy: RetryPolicy = retry.PRODUCER_DEFAULT
    body_bytes_max: int = 4 << 20
    validates_type: bool = True


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What the broker told a consumer.

    Attributes:
        is_fifo: Whether the group is ordered.
        policy: Rests after failures, and how many deliveries there are.
        receive_batch: Messages per receive at most.
        long_polling_ms: How long a receive waits.
        lite_quota: Lite subscriptions a client may have; 0 for unknown.
        lite_topic_bytes: How long a lite topic may be.
    """

    is_fifo: bool = False
    policy: RetryPolicy = retry.CONSUMER_DEFAULT
    receive_batch: int = 32
    long_polling_ms: int = 30_000
    lite_quota: int = 0
    lite_topic_bytes: int = 64


@lru_cache(maxsize=1)
def _agent() -> pb.UA:
    return pb.UA(
        language=pb.PYTHON,
        version=VERSION,
        platform=f"{platform.system()} {platform.release()}",
        hostname=socket.gethostname(),
    )


def base(configuration: ClientConfiguration, client_type: int) -> pb.Settings:
    """What every client says."""
    settings = pb.Settings(
        client_type=pb.ClientType.ValueType(client_type),
        access_point=endpoint_text.parse(configuration.endpoints).to_wire(),
        request_timeout=Duration(),
        user_agent=_agent(),
        client_properties=configuration.properties,
    )
    settings.request_timeout.FromTimedelta(configuration.request_timeout)
    return settings


def producer_settings(
    configuration: ClientConfiguration, topics: list[str], max_attempts: int
) -> pb.Settings:
    """What a producer says; the topics are those it may be asked about (check-back)."""
    settings = base(configuration, pb.PRODUCER)
    settings.publishing.SetInParent()
    settings.publishing.validate_message_type = True
    settings.publishing.topics.extend(
        pb.Resource(resource_namespace=configuration.namespace, name=topic) for topic in topics
    )
    settings.backoff_policy.max_attempts = max_attempts
    return settings


def consumer_settings(
    configuration: ClientConfiguration,
    client_type: int,
    group: str,
    subscriptions: Mapping[str, Filter],
    long_polling_ms: int,
) -> pb.Settings:
    """What a consumer says."""
    settings = base(configuration, client_type)
    subscription = settings.subscription
    subscription.group.name = group
    subscription.group.resource_namespace = configuration.namespace
    subscription.long_polling_timeout.FromMilliseconds(long_polling_ms)
    for topic, wanted in subscriptions.items():
        entry = subscription.subscriptions.add(expression=wanted.to_wire())
        entry.topic.name = topic
        entry.topic.resource_namespace = configuration.namespace
    return settings


def read_producer(settings: pb.Settings) -> ProducerSettings:
    """What the broker's answer means to a producer."""
    publishing = settings.publishing
    return ProducerSettings(
        policy=retry.from_wire(settings.backoff_policy, retry.PRODUCER_DEFAULT),
        body_bytes_max=publishing.max_body_size or ProducerSettings().body_bytes_max,
        validates_type=publishing.validate_message_type,
    )


def read_consumer(settings: pb.Settings) -> ConsumerSettings:
    """What the broker's answer means to a consumer; what it leaves out is our default."""
    subscription, default = settings.subscription, ConsumerSettings()
    polling_ms = (
        subscription.long_polling_timeout.ToMilliseconds()
        if subscription.HasField("long_polling_timeout")
        else default.long_polling_ms
    )
    return ConsumerSettings(
        is_fifo=subscription.fifo,
        policy=retry.from_wire(settings.backoff_policy, retry.CONSUMER_DEFAULT),
        receive_batch=subscription.receive_batch_size or default.receive_batch,
        long_polling_ms=polling_ms or default.long_polling_ms,
        lite_quota=subscription.lite_subscription_quota,
        lite_topic_bytes=subscription.max_lite_topic_size or default.lite_topic_bytes,
    )
