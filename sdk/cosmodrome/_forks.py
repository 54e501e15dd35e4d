"""Processes that fork: gRPC without fork handlers, and the word to a child that it cannot connect.

gRPC's threads stay in the parent. A child of a process that has channels open could make new
ones, and every call on them would hang; so it is told at its first client. Where every client was
closed before the fork, or none was open, the child's work: gRPC begins anew there. It ends beside
its callers, though: of children forked within that moment one in five hung, so the fork waits.

gRPC's own handlers, on by default, are no help to asyncio channels, and crash one child in four
that does nothing but exit. gRPC decides when it is imported, so it is imported here first, without
them, unless somebody imported it before or GRPC_ENABLE_FORK_SUPPORT says what is wanted.
"""

import gc
import os
import sys
import time

from cosmodrome._core.clock import system_ms
from cosmodrome.errors import ClientError

_HANDLERS = "GRPC_ENABLE_FORK_SUPPORT"
# How long gRPC takes to end after its last channel was closed: 0.7 s was enough on a machine with
# seven times more to do than it could.
ENDING_MS = 1_000


def _import_grpc() -> None:
    if "grpc" in sys.modules or _HANDLERS in os.environ:
        return
    os.environ[_HANDLERS] = "0"
    try:
        import grpc.aio  # noqa: F401, PLC0415 - now, while the variable says so
    finally:
        del os.environ[_HANDLERS]  # no other process's business


_import_grpc()


class Forks:
    """Which channels this process has open, and whether it is the child of one that had some."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._closed_ms = 0
        self._is_watching = False
        self._is_spoilt = False

    def check(self) -> None:
        """See that channels may be opened here.

        Raises:
            ClientError: They would hang.
        """
        if self._is_spoilt:
            raise ClientError(
                "the parent process had connections open when it forked, and gRPC's threads stayed "
                "there: close clients before the fork, or start workers by spawn"
            )
        if not self._is_watching:
            self._is_watching = True
            os.register_at_fork(before=self._rest, after_in_child=self._forked)

    def opened(self, channel: object) -> None:
        """A channel was made; `check` said it may be."""
        self._open.add(id(channel))

    def closed(self, channel: object) -> None:
        """It was closed."""
        self._open.discard(id(channel))
        self._closed_ms = system_ms()

    def _rest(self) -> None:
        """Before a fork: let gRPC end, if it does."""
        if not self._open:
            # Wall clocks jump: never for longer than a whole ending.
            left_ms = min(self._closed_ms + ENDING_MS - system_ms(), ENDING_MS)
            time.sleep(max(0, left_ms) / 1000)

    def _forked(self) -> None:
        self._is_spoilt = self._is_spoilt or bool(self._open)
        if self._is_spoilt:
            # To free a channel or a call here would call into what is gone.
            gc.freeze()
