"""Blocking twin of the push consumer."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self, TypeVar

from cosmodrome import push_consumer as _push
from cosmodrome.builders import PushConsumerBuilder
from cosmodrome.filters import Filter
from cosmodrome.results import TopicLimits
from cosmodrome.statistics import ConsumerStatistics, RunningInfo
from cosmodrome.sync._blocking import BlockingConsumer, made_by

Twin = TypeVar("Twin", bound=_push.PushConsumer)
Function = TypeVar("Function", bound=Callable[..., Any])


class Listening(BlockingConsumer[Twin]):
    """What the push consumer and its lite sibling share."""

    def pause(self, topic: str | None = None) -> None:
        """Fetch nothing more of a topic, or of any."""
        self._call(self._client.pause, topic)

    def resume(self, topic: str | None = None) -> None:
        """Fetch again."""
        self._call(self._client.resume, topic)

    def listener(
        self,
        topic: str,
        expression: Filter | str = "*",
        *,
        kind: str = "message",
        batch: int | None = None,
        limits: TopicLimits | None = None,
    ) -> Callable[[Function], Function]:
        """Decorate the listener of one topic, and subscribe to it; before the start."""
        return self._client.listener(topic, expression, kind=kind, batch=batch, limits=limits)

    def set_limits(self, topic: str, limits: TopicLimits | None) -> None:
        """Bound how fast a topic is consumed, from now on; None lifts its bounds."""
        self._call(self._client.set_limits, topic, limits)

    def statistics(self, window: timedelta | float = 60) -> ConsumerStatistics:
        """What it holds, did, and does; rates are over the last `window`, up to an hour."""
        return self._call(self._client.statistics, window)

    def running_info(self) -> RunningInfo:
        """Everything about it now; for operators."""
        return self._call(self._client.running_info)

    def wait_closed(self) -> None:
        """Wait until somebody closes the consumer."""
        self._run(self._client.wait_closed())


class PushConsumer(Listening[_push.PushConsumer]):
    """Blocking twin of `cosmodrome.PushConsumer`."""

    @made_by(_push.PushConsumer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.PushConsumer`."""

    @classmethod
    def builder(cls) -> PushConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return PushConsumerBuilder(cls)
