"""What a client learns in answer to its settings (protocol.md 3).

The client's message is echoed; the server fills in what it decides, always all of it:
old SDKs fail where `metric` or `backoff_policy` is absent. A group's own configuration
wins over anything the client sent.
"""

import re
from collections.abc import Mapping

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.config import Config
from cosmodrome_server.errors import InvalidClientProperties
from cosmodrome_server.model.group import CustomizedBackoff, ExponentialBackoff, Group
from cosmodrome_server.proxy.convert import to_duration

# What the reference tells producers (protocol.md 3.2).
PRODUCER_MAX_ATTEMPTS = 3
PRODUCER_BACKOFF = ExponentialBackoff(initial_ms=10, max_ms=1_000, multiplier=2.0)

PROPERTIES_MAX = 32
PROPERTY_VALUE_CHARS_MAX = 256
PROPERTIES_BYTES_MAX = 4096
_PROPERTY_KEY = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")
_RESERVED_PREFIX = "rocketmq."


def merged(sent: pb.Settings, group: Group | None, config: Config) -> pb.Settings:
    """The settings the client is to work with: what it sent, completed and overruled.

    Args:
        sent: The client's own; not changed.
        group: Its consumer group; None for a producer.
        config: The server's.
    """
    settings = pb.Settings()
    settings.CopyFrom(sent)
    if settings.HasField("publishing"):
        settings.publishing.validate_message_type = True
        settings.publishing.max_body_size = config.limits.body_bytes
        settings.backoff_policy.CopyFrom(_policy(PRODUCER_MAX_ATTEMPTS, PRODUCER_BACKOFF))
    elif group is not None:
        _fill_subscription(settings.subscription, group, config)
        settings.backoff_policy.CopyFrom(_policy(group.max_attempts, group.backoff))
    settings.metric.CopyFrom(_metric(sent, config))
    return settings


def _fill_subscription(subscription: pb.Subscription, group: Group, config: Config) -> None:
    quota = group.attributes.get("lite.sub.client.quota", "")
    subscription.fifo = group.is_fifo
    subscription.receive_batch_size = config.delivery.batch_max
    subscription.long_polling_timeout.CopyFrom(to_duration(config.delivery.polling_max_ms))
    subscription.lite_subscription_quota = (
        int(quota) if re.fullmatch(r"-?\d{1,9}", quota) else config.lite.subscriptions_per_client
    )
    subscription.max_lite_topic_size = config.limits.lite_topic_bytes


def _policy(max_attempts: int, backoff: CustomizedBackoff | ExponentialBackoff) -> pb.RetryPolicy:
    policy = pb.RetryPolicy(max_attempts=max_attempts)
    if isinstance(backoff, ExponentialBackoff):
        exponential = policy.exponential_backoff
        exponential.initial.CopyFrom(to_duration(backoff.initial_ms))
        exponential.max.CopyFrom(to_duration(backoff.max_ms))
        exponential.multiplier = backoff.multiplier
    else:
        policy.customized_backoff.next.extend(to_duration(ms) for ms in backoff.next_ms)
    return policy


def _metric(sent: pb.Settings, config: Config) -> pb.Metric:
    """Where the client sends its own metrics; `proxy` means back to us."""
    mode = config.metrics.collector
    if mode == "proxy":
        return pb.Metric(on=True, endpoints=sent.access_point)
    host, _, port = config.metrics.collector_endpoint.rpartition(":")
    if mode == "on" and host and port.isdigit():
        address = pb.Address(host=host, port=int(port))
        return pb.Metric(
            on=True, endpoints=pb.Endpoints(scheme=scheme_of(host), addresses=[address])
        )
    return pb.Metric(on=False)


def scheme_of(host: str) -> pb.AddressScheme.ValueType:
    """How an address is written."""
    if re.fullmatch(r"\d{1,3}(\.\d{1,3}){3}", host):
        return pb.IPv4
    return pb.IPv6 if ":" in host else pb.DOMAIN_NAME


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Check what a client says about itself.

    Raises:
        InvalidClientProperties: Too many, too large, a reserved or malformed key.

    Source: definition.proto, Settings.client_properties.
    """
    if len(properties) > PROPERTIES_MAX:
        raise InvalidClientProperties(
            f"there are {len(properties)} client properties, {PROPERTIES_MAX} are allowed"
        )
    size = 0
    for key, value in properties.items():
        if not _PROPERTY_KEY.fullmatch(key):
            raise InvalidClientProperties(
                f"the client property key {key[:80]!r} is not 1 to 64 characters of "
                "a-z A-Z 0-9 _ . - beginning with a letter"
            )
        if key.startswith(_RESERVED_PREFIX):
            raise InvalidClientProperties(
                f"client property keys cannot begin with {_RESERVED_PREFIX}"
            )
        if len(value) > PROPERTY_VALUE_CHARS_MAX:
            raise InvalidClientProperties(
                f"the client property {key} has {len(value)} characters, "
                f"{PROPERTY_VALUE_CHARS_MAX} are allowed"
            )
        size += len(key.encode()) + len(value.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidClientProperties(
            f"the client properties have {size} bytes, {PROPERTIES_BYTES_MAX} are allowed"
        )
