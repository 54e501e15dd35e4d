"""Blocking twins of the lite consumers."""

from typing import Self

from cosmodrome import lite_consumer as _lite
from cosmodrome.builders import LitePushConsumerBuilder, LiteSimpleConsumerBuilder
from cosmodrome.lite_consumer import OffsetOption
from cosmodrome.sync._blocking import made_by
from cosmodrome.sync.push_consumer import Listening
from cosmodrome.sync.simple_consumer import Receiving


class LitePushConsumer(Listening[_lite.LitePushConsumer]):
    """Blocking twin of `cosmodrome.LitePushConsumer`."""

    @made_by(_lite.LitePushConsumer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.LitePushConsumer`."""

    @classmethod
    def builder(cls) -> LitePushConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return LitePushConsumerBuilder(cls)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics it reads now."""
        return self._client.lite_topics

    def subscribe_lite(self, lite_topic: str, offset: OffsetOption | None = None) -> None:
        """Read a lite topic; it need not exist yet."""
        self._run(self._client.subscribe_lite(lite_topic, offset))

    def unsubscribe_lite(self, lite_topic: str) -> None:
        """Read a lite topic no longer."""
        self._run(self._client.unsubscribe_lite(lite_topic))


class LiteSimpleConsumer(Receiving[_lite.LiteSimpleConsumer]):
    """Blocking twin of `cosmodrome.LiteSimpleConsumer`."""

    @made_by(_lite.LiteSimpleConsumer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.LiteSimpleConsumer`."""

    @classmethod
    def builder(cls) -> LiteSimpleConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return LiteSimpleConsumerBuilder(cls)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics it reads now."""
        return self._client.lite_topics

    def subscribe_lite(self, lite_topic: str, offset: OffsetOption | None = None) -> None:
        """Read a lite topic; it need not exist yet."""
        self._run(self._client.subscribe_lite(lite_topic, offset))

    def unsubscribe_lite(self, lite_topic: str) -> None:
        """Read a lite topic no longer."""
        self._run(self._client.unsubscribe_lite(lite_topic))
