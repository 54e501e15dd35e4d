"""Transactions: half messages that a commit makes visible."""

import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Self

from cosmodrome.errors import CosmodromeError, IllegalArgument
from cosmodrome.message import MessageView
from cosmodrome.receipt import SendReceipt

_log = logging.getLogger("cosmodrome")


class TransactionResolution(IntEnum):
    """What became of a half message; the numbers of the wire."""

    UNKNOWN = 0
    COMMIT = 1
    ROLLBACK = 2


TransactionChecker = Callable[
    [MessageView], TransactionResolution | Awaitable[TransactionResolution]
]
EndTransaction = Callable[[SendReceipt, TransactionResolution], Awaitable[None]]


class Transaction:
    """One half message, until commit or rollback. Leaving `async with` by an error rolls back.

    Not after a `commit` that failed: the local part is done then, and the broker may have heard. It
    asks the checker, unless another `commit` gets through before.

    Example:
        async with producer.begin_transaction() as transaction:
            await producer.send(message, transaction=transaction)
            ...                         # the local part
            await transaction.commit()
    """

    def __init__(self, owner: object, end: EndTransaction) -> None:
        self._owner = owner
        self._end_transaction = end
        self._receipt: SendReceipt | None = None
        self._is_reserved = False
        self._is_over = False
        self._is_to_commit = False

    async def commit(self) -> None:
        """Make the message visible.

        Raises:
            IllegalArgument: Nothing was sent in it, or it is over.
            StatusError, TransportError: As said; may be tried again.
        """
        self._is_to_commit = self._receipt is not None
        await self._end(TransactionResolution.COMMIT)

    async def rollback(self) -> None:
        """Drop the message; raises as `commit`."""
        await self._end(TransactionResolution.ROLLBACK)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or self._receipt is None or self._is_over or self._is_to_commit:
            return
        try:
            await self.rollback()
        except CosmodromeError as error:  # what the block raised is what its caller is to hear of
            _log.warning("%s is left to the checker: %s", self._receipt.message_id, error)

    def reserve(self, owner: object) -> None:
        """A producer is about to send its message."""
        if owner is not self._owner:
            raise IllegalArgument("the transaction is of another producer")
        if self._is_reserved or self._is_over:
            raise IllegalArgument("a transaction takes one message")
        self._is_reserved = True

    def release(self) -> None:
        """The send failed; another may be tried."""
        self._is_reserved = False

    def hold(self, receipt: SendReceipt) -> None:
        """The half message is stored."""
        self._receipt = receipt

    async def _end(self, resolution: TransactionResolution) -> None:
        if self._receipt is None:
            raise IllegalArgument("nothing was sent in this transaction")
        if self._is_over:
            raise IllegalArgument("the transaction is over")
        await self._end_transaction(self._receipt, resolution)
        self._is_over = True
