"""Blocking twin of the simple consumer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Self, TypeVar

from cosmodrome import simple_consumer as _simple
from cosmodrome._client.patience import give_back, received
from cosmodrome.builders import SimpleConsumerBuilder
from cosmodrome.message import MessageView
from cosmodrome.sync._blocking import BlockingConsumer, made_by

Twin = TypeVar("Twin", bound=_simple.SimpleConsumer)


class Receiving(BlockingConsumer[Twin]):
    """What the simple consumer and its lite sibling share."""

    def receive(
        self,
        max_messages: int = 32,
        invisible: timedelta | float = _simple.INVISIBLE_DEFAULT,
    ) -> list[MessageView]:
        """Receive up to `max_messages` of one topic, waiting for the first."""
        return self._run(self._client.receive(max_messages, invisible))

    def ack(self, message: MessageView | Sequence[MessageView]) -> None:
        """Acknowledge."""
        self._run(self._client.ack(message))

    def change_invisible_duration(self, message: MessageView, invisible: timedelta | float) -> None:
        """Hide a message for so long from now; 0 gives it back at once."""
        self._run(self._client.change_invisible_duration(message, invisible))

    @contextmanager
    def processing(
        self, message: MessageView, *, retry_after: timedelta | float = 0
    ) -> Iterator[MessageView]:
        """Ack when the block ends well; give back after `retry_after` when it raises."""
        try:
            yield message
        except BaseException:
            self._run(give_back(self._client, message, retry_after))
            raise
        self.ack(message)

    def __iter__(self) -> Iterator[MessageView]:
        """Receive for ever, message by message, until the consumer is closed."""
        while self.is_running:
            yield from self._run(received(self._client))


class SimpleConsumer(Receiving[_simple.SimpleConsumer]):
    """Blocking twin of `cosmodrome.SimpleConsumer`."""

    @made_by(_simple.SimpleConsumer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.SimpleConsumer`."""

    @classmethod
    def builder(cls) -> SimpleConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return SimpleConsumerBuilder(cls)
