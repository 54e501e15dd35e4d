"""Consumers of lite topics: many small queues under one LITE topic, subscribed to one by one.

    async with LitePushConsumer(
        "127.0.0.1:8081", bind_topic="sessions", group="chat", listener=show
    ) as consumer:
        await consumer.subscribe_lite("session-42")

Each lite topic is consumed in order. Redelivery happens in place; `ConsumeResult.suspend` holds
one lite topic back without counting an attempt.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Self

from cosmodrome._client.consumer import Consumer
from cosmodrome._client.lite import LiteTopics, OffsetOption
from cosmodrome._client.session import Command, Session
from cosmodrome.builders import LitePushConsumerBuilder, LiteSimpleConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import CosmodromeError, IllegalArgument
from cosmodrome.interceptors import Interceptor
from cosmodrome.push_consumer import PushConsumer
from cosmodrome.results import MessageListener
from cosmodrome.simple_consumer import SimpleConsumer
from cosmodrome_proto import definition_pb2 as pb

__all__ = ["LitePushConsumer", "LiteSimpleConsumer", "OffsetOption"]


class _Lite(Consumer):
    """What both kinds do beside consuming."""

    _bind_topic: str
    _lite: LiteTopics

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics it reads now."""
        return self._lite.names

    async def subscribe_lite(self, lite_topic: str, offset: OffsetOption | None = None) -> None:
        """Read a lite topic; it need not exist yet.

        Args:
            lite_topic: Its name: a-z A-Z 0-9 _ -.
            offset: Where to begin.

        Raises:
            IllegalArgument: A name no broker takes.
            LiteSubscriptionQuotaExceeded: One too many.
            StatusError: The group is not bound to the topic, or the broker refused.
        """
        self._check_running()
        await self._lite.subscribe(lite_topic, offset)

    async def unsubscribe_lite(self, lite_topic: str) -> None:
        """Read a lite topic no longer."""
        self._check_running()
        await self._lite.unsubscribe(lite_topic)

    async def _on_started(self) -> None:
        await super()._on_started()
        self._lite = LiteTopics(
            self._rpc,
            self._resource(self._group),
            self._resource(self._bind_topic),
            lambda: self._routes[self._bind_topic].endpoints,
            lambda: (self._told.lite_quota, self._told.lite_topic_bytes),
        )
        await self._lite.sync()
        self._tasks.spawn(self._lite.keep(), "sync lite topics")

    async def _on_closing(self) -> None:
        try:
            await self._lite.leave()
        except CosmodromeError:
            pass  # the broker forgets it by itself after three silent minutes
        finally:
            await super()._on_closing()  # type: ignore[safe-super]  # of the kind beside it

    def _take_settings(self, told: pb.Settings) -> None:
        super()._take_settings(told)
        if self.is_running:
            self._lite.settings_came()

    async def _on_command(self, command: Command, session: Session) -> None:
        if command.WhichOneof("command") == "notify_unsubscribe_lite_command":
            self._lite.taken_over(command.notify_unsubscribe_lite_command.lite_topic)
        else:
            await super()._on_command(command, session)


class LitePushConsumer(_Lite, PushConsumer):
    """Calls a listener for every message of its lite topics.

    Args:
        configuration: Where the broker is.
        bind_topic: The LITE topic they are under.
        group: The consumer group, bound to that topic.
        listener: Takes a `MessageView`, returns a `ConsumeResult`; sync or async.
        concurrency: Listener calls at a time.
        max_cached_messages, max_cached_bytes: Fetched and not settled.
        consume_timeout: A call that takes longer is a failure; None for no bound.
        accelerated: Lite topics of one fetch go side by side.
        close_timeout: How long `close` waits for listener calls under way.
        interceptors: Hooks.
    """

    client_type: int = pb.LITE_PUSH_CONSUMER

    def __init__(  # noqa: PLR0913 - options of a client
        self,
        configuration: ClientConfiguration | str,
        *,
        bind_topic: str,
        group: str,
        listener: MessageListener,
        concurrency: int = 20,
        max_cached_messages: int = 1024,
        max_cached_bytes: int = 64 << 20,
        consume_timeout: timedelta | float | None = None,
        accelerated: bool = False,
        close_timeout: timedelta | float = 30,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        if not bind_topic:
            raise IllegalArgument("a lite consumer needs a bind_topic")
        self._bind_topic = bind_topic
        super().__init__(
            configuration,
            group=group,
            subscriptions={bind_topic: "*"},
            listener=listener,
            concurrency=concurrency,
            max_cached_messages=max_cached_messages,
            max_cached_bytes=max_cached_bytes,
            consume_timeout=consume_timeout,
            accelerated=accelerated,
            close_timeout=close_timeout,
            interceptors=interceptors,
        )

    @classmethod
    def builder(cls) -> "LitePushConsumerBuilder[Self]":  # type: ignore[override]  # other options
        """Build step by step, as Java does."""
        return LitePushConsumerBuilder(cls)


class LiteSimpleConsumer(_Lite, SimpleConsumer):
    """Receives messages of its lite topics on demand.

    Args:
        configuration: Where the broker is.
        bind_topic: The LITE topic they are under.
        group: The consumer group, bound to that topic.
        await_duration: How long a receive waits when there is nothing.
        interceptors: Hooks.
    """

    client_type: int = pb.LITE_SIMPLE_CONSUMER

    def __init__(
        self,
        configuration: ClientConfiguration | str,
        *,
        bind_topic: str,
        group: str,
        await_duration: timedelta | float = 20,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        if not bind_topic:
            raise IllegalArgument("a lite consumer needs a bind_topic")
        self._bind_topic = bind_topic
        super().__init__(
            configuration,
            group=group,
            subscriptions={bind_topic: "*"},
            await_duration=await_duration,
            interceptors=interceptors,
        )

    @classmethod
    def builder(cls) -> "LiteSimpleConsumerBuilder[Self]":  # type: ignore[override]  # as above
        """Build step by step, as Java does."""
        return LiteSimpleConsumerBuilder(cls)
