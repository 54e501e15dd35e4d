"""Blocking twins of the async clients: the same names, the same arguments, one hidden loop.

    with cosmodrome.sync.Producer("127.0.0.1:8081", topics=["orders"]) as producer:
        producer.send(cosmodrome.Message("orders", b"hello"))

Every client of a process shares one loop on one daemon thread (`_portal`). Safe to use from many
threads. Listeners of a push consumer run in its pool, so that they may block.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar, overload

from cosmodrome import producer as _producer
from cosmodrome import push_consumer as _push
from cosmodrome import simple_consumer as _simple
from cosmodrome import transaction as _transaction
from cosmodrome._portal import Portal, portal
from cosmodrome.builders import ProducerBuilder, PushConsumerBuilder, SimpleConsumerBuilder
from cosmodrome.filters import Filter
from cosmodrome.message import Message, MessageView, SendReceipt
from cosmodrome.push_consumer import ConsumerStatistics
from cosmodrome.transaction import TransactionResolution

__all__ = ["Producer", "PushConsumer", "SimpleConsumer", "Transaction"]

Twin = TypeVar("Twin", bound="_producer.Producer | _simple.SimpleConsumer | _push.PushConsumer")
Value = TypeVar("Value")


class _Blocking(Generic[Twin]):
    """Runs an async client on the portal's loop.

    Arguments are those of the async client.
    """

    _make: Callable[..., Twin]

    def __init__(self, configuration: Any, **options: Any) -> None:  # noqa: ANN401 - the twin's
        self._portal: Portal = portal()
        self._client: Twin = self._portal.run(self._made(configuration, options))

    async def _made(self, configuration: object, options: dict[str, Any]) -> Twin:
        return type(self)._make(configuration, **options)

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._portal.run(work)

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._client.client_id

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._client.is_running

    def start(self) -> Self:
        """Connect; see the async twin."""
        self._run(self._client.start())
        return self

    def close(self) -> None:
        """Stop; again is fine."""
        self._run(self._client.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer(_Blocking[_producer.Producer]):
    """Blocking twin of `cosmodrome.Producer`."""

    _make = _producer.Producer

    @classmethod
    def builder(cls) -> ProducerBuilder[Self]:
        """Build step by step, as Java does."""
        return ProducerBuilder(cls)

    @overload
    def send(
        self, message: Message, *, transaction: "Transaction | None" = None
    ) -> SendReceipt: ...

    @overload
    def send(self, message: Sequence[Message]) -> list[SendReceipt]: ...

    def send(
        self, message: Message | Sequence[Message], *, transaction: "Transaction | None" = None
    ) -> SendReceipt | list[SendReceipt]:
        """Send one message, or several of one topic in one request."""
        if not isinstance(message, Message):
            return self._run(self._client.send(message))
        half = transaction.twin if transaction is not None else None
        return self._run(self._client.send(message, transaction=half))

    def send_nowait(self, message: Message) -> "Future[SendReceipt]":
        """Begin to send one message; the future has the receipt."""
        done: Future[SendReceipt] = Future()

        async def begin() -> None:
            self._client.send_nowait(message).add_done_callback(lambda f: _copy(f, done))

        self._run(begin())
        return done

    def flush(self) -> None:
        """Wait until nothing is under way."""
        self._run(self._client.flush())

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message before its delivery time; returns its id."""
        return self._run(self._client.recall(topic, recall_handle))

    def begin_transaction(self) -> "Transaction":
        """A transaction for one message."""
        return Transaction(self._portal, self._client.begin_transaction())

    def end_transaction(
        self,
        receipt: SendReceipt,
        resolution: TransactionResolution,
        *,
        from_check: bool = False,
    ) -> None:
        """Commit or roll back a half message."""
        self._run(self._client.end_transaction(receipt, resolution, from_check=from_check))


class Transaction:
    """Blocking twin of `cosmodrome.Transaction`."""

    def __init__(self, on: Portal, twin: _transaction.Transaction) -> None:
        self._portal = on
        self.twin = twin

    def commit(self) -> None:
        """Make the message visible."""
        self._portal.run(self.twin.commit())

    def rollback(self) -> None:
        """Drop the message."""
        self._portal.run(self.twin.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._portal.run(self.twin.__aexit__(kind, *rest))


class SimpleConsumer(_Blocking[_simple.SimpleConsumer]):
    """Blocking twin of `cosmodrome.SimpleConsumer`."""

    _make = _simple.SimpleConsumer

    @classmethod
    def builder(cls) -> SimpleConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return SimpleConsumerBuilder(cls)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """What is subscribed to now, as a copy."""
        return self._client.subscriptions

    def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic from now on."""
        self._run(self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""
        self._run(self._client.unsubscribe(topic))

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
            self.change_invisible_duration(message, retry_after)
            raise
        self.ack(message)

    def __iter__(self) -> Iterator[MessageView]:
        """Receive for ever, message by message, until the consumer is closed."""
        while self.is_running:
            yield from self.receive()


class PushConsumer(_Blocking[_push.PushConsumer]):
    """Blocking twin of `cosmodrome.PushConsumer`."""

    _make = _push.PushConsumer

    @classmethod
    def builder(cls) -> PushConsumerBuilder[Self]:
        """Build step by step, as Java does."""
        return PushConsumerBuilder(cls)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """What is subscribed to now, as a copy."""
        return self._client.subscriptions

    def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic, or something else of it, from now on."""
        self._run(self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""
        self._run(self._client.unsubscribe(topic))

    def pause(self, topic: str | None = None) -> None:
        """Fetch nothing more of a topic, or of any."""
        self._run(_calling(self._client.pause, topic))

    def resume(self, topic: str | None = None) -> None:
        """Fetch again."""
        self._run(_calling(self._client.resume, topic))

    def statistics(self) -> ConsumerStatistics:
        """What it holds and did."""
        return self._client.statistics()

    def wait_closed(self) -> None:
        """Wait until somebody closes the consumer."""
        self._run(self._client.wait_closed())


async def _calling(function: Callable[..., Value], *arguments: object) -> Value:
    return function(*arguments)


def _copy(source: Any, target: "Future[SendReceipt]") -> None:  # noqa: ANN401 - an asyncio future
    if source.cancelled():
        target.cancel()
    elif (error := source.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
