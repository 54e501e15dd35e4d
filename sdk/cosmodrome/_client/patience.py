"""What goes on although a call failed: loops that receive for ever, blocks that process a message.

Of the async simple consumers and of their blocking twins.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Protocol

from cosmodrome._client.receive_loop import FAILED_S
from cosmodrome.errors import CosmodromeError, NotRunning
from cosmodrome.message import MessageView

_log = logging.getLogger("cosmodrome")


class Receiver(Protocol):
    """A simple consumer, lite or not."""

    @property
    def group(self) -> str:
        """The consumer group."""

    async def receive(self) -> list[MessageView]:
        """Receive."""

    async def change_invisible_duration(
        self, message: MessageView, invisible: timedelta | float
    ) -> None:
        """Hide a message for so long from now."""


async def received(consumer: Receiver) -> list[MessageView]:
    """One receive of many; none where it failed for now, after a second, or where it was closed.

    Raises:
        CosmodromeError: What would fail again.
    """
    try:
        return await consumer.receive()
    except NotRunning:
        return []
    except CosmodromeError as error:
        if not error.is_retryable:
            raise
        _log.info("a receive of %s fails, again in 1 s: %s", consumer.group, error)
    await asyncio.sleep(FAILED_S)
    return []


async def give_back(
    consumer: Receiver, message: MessageView, retry_after: timedelta | float
) -> None:
    """Give back a message whose block raised; what it raised is what its caller is to hear of."""
    try:
        await consumer.change_invisible_duration(message, retry_after)
    except CosmodromeError as error:
        _log.warning("%s comes again, but not when asked for: %s", message.message_id, error)
