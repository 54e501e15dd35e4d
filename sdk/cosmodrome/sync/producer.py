"""Blocking twins of the producer and its transaction."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self, overload

from cosmodrome import producer as _producer
from cosmodrome import transaction as _transaction
from cosmodrome._portal import Portal
from cosmodrome.builders import ProducerBuilder
from cosmodrome.message import Message
from cosmodrome.receipt import SendReceipt
from cosmodrome.sync._blocking import BlockingClient, made_by
from cosmodrome.transaction import TransactionResolution


class Producer(BlockingClient[_producer.Producer]):
    """Blocking twin of `cosmodrome.Producer`."""

    @made_by(_producer.Producer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.Producer`."""

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


def _copy(source: Any, target: "Future[SendReceipt]") -> None:  # noqa: ANN401 - an asyncio future
    if source.cancelled():
        target.cancel()
        return
    error = source.exception()  # asked in any case: asyncio logs those that nobody asks
    if not target.set_running_or_notify_cancel():
        return  # its caller gave it up; the message was sent all the same
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(source.result())
