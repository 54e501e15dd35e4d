"""Answering what became of half messages: the user's checker is asked, and the broker told.

    RecoverOrphanedTransaction ──▶ checker ─ COMMIT, ROLLBACK ─▶ EndTransaction
                                           └ UNKNOWN, an error ─▶ nothing: the broker asks again

A plain checker runs in a thread, as plain listeners do: what it looks up may take its time, and the
loop may be that of all blocking clients.
"""

import logging

from cosmodrome._client.tasks import is_its_own
from cosmodrome._client.threads import called, threads_for
from cosmodrome._core import convert
from cosmodrome.errors import BadRequest, CosmodromeError
from cosmodrome.receipt import SendReceipt
from cosmodrome.transaction import EndTransaction, TransactionChecker, TransactionResolution
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
# Plain checkers at a time; those of other clients run one by one.
THREADS_MAX = 4


class Checks:
    """The checks of one producer.

    Args:
        checker: The user's; None for a producer that has none.
        end: Ends a transaction by the checker's word.
    """

    def __init__(self, checker: TransactionChecker | None, end: EndTransaction) -> None:
        self._checker = checker
        self._end = end
        self._threads = threads_for(checker, THREADS_MAX, "check") if checker else None

    def close(self) -> None:
        """End the threads; those that are stuck in a checker are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, asked: rpc.RecoverOrphanedTransactionCommand, endpoint: str) -> None:
        """Answer one question of a broker."""
        name = asked.transaction_id
        if self._checker is None:
            _log.warning("asked about transaction %s without a checker", name)
            return
        view = convert.view(asked.message, endpoint)
        try:
            resolution = await called(self._threads, self._checker, view)
        except BaseException as error:
            if not is_its_own(error):
                raise
            _log.exception("the transaction checker failed on %s", name)
            return
        if resolution not in (TransactionResolution.COMMIT, TransactionResolution.ROLLBACK):
            return
        receipt = SendReceipt(view.message_id, view.topic, 0, name, "", endpoint)
        try:
            await self._end(receipt, TransactionResolution(resolution))
        except BadRequest as error:
            _log.info("transaction %s was resolved meanwhile: %s", name, error)
        except CosmodromeError as error:
            _log.info("transaction %s is open still, the broker asks again: %s", name, error)
