"""Blocking twin of the push consumer."""

from typing import Self, TypeVar

from cosmodrome import push_consumer as _push
from cosmodrome.builders import PushConsumerBuilder
from cosmodrome.push_consumer import ConsumerStatistics
from cosmodrome.sync._blocking import BlockingConsumer

Twin = TypeVar("Twin", bound=_push.PushConsumer)


class Listening(BlockingConsumer[Twin]):
    """What the push consumer and its lite sibling share."""

    def pause(self, topic: str | None = None) -> None:
        """Fetch nothing more of a topic, or of any."""
        self._call(self._client.pause, topic)

    def resume(self, topic: str | None = None) -> None:
        """Fetch again."""
        self._call(self._client.resume, topic)

    def statistics(self) -> ConsumerStatistics:
        """What it holds and did."""
        return self._call(self._client.statistics)

    def wait_closed(self) -> None:
        """Wait until somebody closes the consumer."""
        self._run(self._client.wait_closed())


class PushConsumer(Listening[_push.PushConsumer]):
    """Blocking twin of `cosmodrome.PushConsumer`."""

    _make = _push.PushConsumer

    @classmethod
    def builder(cls) -> PushConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return PushConsumerBuilder(cls)
