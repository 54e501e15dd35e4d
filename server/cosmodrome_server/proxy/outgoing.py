"""Messages on their way to a consumer: held until durable, given back if they cannot be written.

deliveries ──▶ Outgoing ──reply_when_durable──▶ StreamReplies ──loop──▶ call.reply_stream
                  └── the client went away first ──▶ broker.return_undelivered
"""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Sequence

from cosmodrome_server.broker.interface import Broker
from cosmodrome_server.errors import StoreError
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.proxy.front import Call

_log = logging.getLogger(__name__)


class Outgoing:
    """The answer of one receive: the token `StreamReplies` is given."""

    __slots__ = ("_broker", "_call", "_group", "_handles", "_messages", "_returned")

    def __init__(
        self,
        call: Call,
        messages: Sequence[bytes],
        broker: Broker,
        group: str,
        deliveries: Sequence[Delivery],
    ) -> None:
        self._call: Call | None = call
        self._messages = messages
        self._broker = broker
        self._group = group
        # Not the deliveries: their bodies, MiB perhaps, are on their way encoded, and a client may
        # take long to read them.
        self._handles = [delivery.receipt_handle for delivery in deliveries]
        self._returned = False
        call.on_cancel(self.give_back)

    def write(self) -> None:
        """Answer the call, unless the messages went back already."""
        # The call has us, to hear of its end: what it carries, MiB perhaps, goes with it only if
        # we do not have it, too.
        call, self._call = self._call, None
        messages, self._messages = self._messages, ()
        if call is not None and not self._returned:
            call.reply_stream(messages)

    def give_back(self) -> None:
        """Let others have the messages: the client went away."""
        self._call, self._messages = None, ()
        if not self._returned:
            self._returned = True
            try:
                self._broker.return_undelivered(self._group, self._handles)
            except StoreError as error:
                _log.warning(
                    "%d messages whose client of group %s went away are not given back, they come "
                    "again when their leases expire: %s",
                    len(self._handles),
                    self._group,
                    error,
                )


class StreamReplies:
    """A `ReplySink` for server streams: takes `Outgoing`s from any thread, writes on the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """Write the answers of these tokens, all `Outgoing`; the bytes are not used."""
        self._loop.call_soon_threadsafe(_write_all, replies)


def _write_all(replies: list[tuple[object, bytes]]) -> None:
    for outgoing, _ in replies:
        assert isinstance(outgoing, Outgoing)
        outgoing.write()
