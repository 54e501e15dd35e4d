"""Builders that mirror Java's, beside the keyword constructors.

    producer = Producer.builder().client_configuration(configuration).topics("orders").build()

`build` makes a client; `async with` (or `start`) connects it. Methods are Java's setters without
`set`, in snake case; they return the builder.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

from cosmodrome.allocation import Strategy
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import IllegalArgument
from cosmodrome.filters import Filter
from cosmodrome.offsets import OffsetStore
from cosmodrome.results import MessageListener
from cosmodrome.transaction import TransactionChecker

Made = TypeVar("Made")


class Builder(Generic[Made]):
    """What all builders share.

    Args:
        make: The class of the client: async or blocking.
    """

    def __init__(self, make: type[Made]) -> None:
        self._make = make
        self._configuration: ClientConfiguration | str | None = None
        self._options: dict[str, Any] = {}

    def client_configuration(self, configuration: ClientConfiguration | str) -> Self:
        """Say where the broker is."""
        self._configuration = configuration
        return self

    def build(self) -> Made:
        """The client, not started.

        Raises:
            IllegalArgument: There is no configuration, or something the client needs.
        """
        if self._configuration is None:
            raise IllegalArgument("client_configuration is not set")
        return self._make(self._configuration, **self._options)  # type: ignore[call-arg]  # as chosen

    def _need(self, option: str, method: str) -> None:
        if option not in self._options:
            raise IllegalArgument(f"{method} is not set")


class ProducerBuilder(Builder[Made]):
    """Mirrors Java's `ProducerBuilder`."""

    def topics(self, *topics: str) -> Self:
        """Name the topics it will send to."""
        self._options["topics"] = topics
        return self

    def max_attempts(self, attempts: int) -> Self:
        """Set the tries per message."""
        self._options["max_attempts"] = attempts
        return self

    def transaction_checker(self, checker: TransactionChecker) -> Self:
        """Set who knows what became of a half message."""
        self._options["transaction_checker"] = checker
        return self


class ConsumerBuilder(Builder[Made]):
    """What the builders of consumers share."""

    def consumer_group(self, group: str) -> Self:
        """Set the group."""
        self._options["group"] = group
        return self

    def subscription_expressions(self, subscriptions: Mapping[str, Filter | str]) -> Self:
        """Set the topics and what is wanted of them."""
        self._options["subscriptions"] = subscriptions
        return self

    def build(self) -> Made:
        """See `Builder.build`."""
        self._need("group", "consumer_group")
        return super().build()


class SimpleConsumerBuilder(ConsumerBuilder[Made]):
    """Mirrors Java's `SimpleConsumerBuilder`."""

    def await_duration(self, duration: timedelta | float) -> Self:
        """Set how long a receive waits."""
        self._options["await_duration"] = duration
        return self


class PushConsumerBuilder(ConsumerBuilder[Made]):
    """Mirrors Java's `PushConsumerBuilder`."""

    def message_listener(self, listener: MessageListener) -> Self:
        """Set who takes the messages."""
        self._options["listener"] = listener
        return self

    def max_cache_message_count(self, messages: int) -> Self:
        """Set how many messages may be fetched and not settled."""
        self._options["max_cached_messages"] = messages
        return self

    def max_cache_message_size_in_bytes(self, size: int) -> Self:
        """Set how many bytes may be fetched and not settled."""
        self._options["max_cached_bytes"] = size
        return self

    def consumption_thread_count(self, threads: int) -> Self:
        """Set how many listener calls run at a time."""
        self._options["concurrency"] = threads
        return self

    def enable_fifo_consume_accelerator(self, *, enabled: bool = True) -> Self:
        """Let message groups of an ordered fetch go side by side."""
        self._options["accelerated"] = enabled
        return self

    def build(self) -> Made:
        """See `Builder.build`."""
        self._need("listener", "message_listener")
        return super().build()

    def enable_message_interceptor_filtering(self, *, enabled: bool = True) -> Self:
        """Let interceptors take messages out before the listener sees them."""
        self._options["interceptor_filtering"] = enabled
        return self


class BoundBuilder(Builder[Made]):
    """What the builders of lite consumers share."""

    def bind_topic(self, topic: str) -> Self:
        """Set the LITE topic that the lite topics are under."""
        self._options["bind_topic"] = topic
        return self

    def consumer_group(self, group: str) -> Self:
        """Set the group."""
        self._options["group"] = group
        return self

    def build(self) -> Made:
        """See `Builder.build`."""
        self._need("bind_topic", "bind_topic")
        self._need("group", "consumer_group")
        return super().build()


class LitePushConsumerBuilder(BoundBuilder[Made]):
    """Mirrors Java's `LitePushConsumerBuilder`."""

    def message_listener(self, listener: MessageListener) -> Self:
        """Set who takes the messages."""
        self._options["listener"] = listener
        return self

    def max_cache_message_count(self, messages: int) -> Self:
        """Set how many messages may be fetched and not settled."""
        self._options["max_cached_messages"] = messages
        return self

    def max_cache_message_size_in_bytes(self, size: int) -> Self:
        """Set how many bytes may be fetched and not settled."""
        self._options["max_cached_bytes"] = size
        return self

    def consumption_thread_count(self, threads: int) -> Self:
        """Set how many listener calls run at a time."""
        self._options["concurrency"] = threads
        return self

    def enable_fifo_consume_accelerator(self, *, enabled: bool = True) -> Self:
        """Let lite topics of one fetch go side by side."""
        self._options["accelerated"] = enabled
        return self

    def build(self) -> Made:
        """See `Builder.build`."""
        self._need("listener", "message_listener")
        return super().build()


class LiteSimpleConsumerBuilder(BoundBuilder[Made]):
    """Mirrors Java's `LiteSimpleConsumerBuilder`."""

    def await_duration(self, duration: timedelta | float) -> Self:
        """Set how long a receive waits."""
        self._options["await_duration"] = duration
        return self


class PullConsumerBuilder(Builder[Made]):
    """For the pull consumer, which Java's client lacks, in the manner of the others."""

    def consumer_group(self, group: str) -> Self:
        """Set under which name offsets are kept."""
        self._options["group"] = group
        return self

    def subscription_expressions(self, subscriptions: Mapping[str, Filter | str]) -> Self:
        """Set the topics and what is wanted of them."""
        self._options["topics"] = tuple(subscriptions)
        self._options["filters"] = subscriptions
        return self

    def offset_store(self, store: OffsetStore) -> Self:
        """Set who keeps offsets."""
        self._options["offset_store"] = store
        return self

    def auto_commit(self, *, enabled: bool = True) -> Self:
        """Commit what was polled every 5 s and on closing, or do not."""
        self._options["auto_commit"] = enabled
        return self

    def members(self, members: Sequence[str], member: str) -> Self:
        """Set who shares the queues, and which of them this one is."""
        self._options["members"], self._options["member"] = members, member
        return self

    def strategy(self, strategy: Strategy) -> Self:
        """Set how they share."""
        self._options["strategy"] = strategy
        return self

    def build(self) -> Made:
        """See `Builder.build`."""
        self._need("group", "consumer_group")
        return super().build()
