"""Processes that fork: gRPC without fork handlers, and the word to a child that it cannot connect.

gRPC's threads stay in the parent. A child of a process that has channels open could make new
ones, and every call on them would hang; so it is told at its first client. Where every client was
closed before the fork, or none was open, the child's work: gRPC begins anew there.

gRPC's own handlers, on by default, are no help to asyncio channels, and crash one child in four
that does nothing but exit. gRPC decides when it is imported, so it is imported here first, without
them, unless somebody imported it before or GRPC_ENABLE_FORK_SUPPORT says what is wanted.
"""

import gc
import os
import sys
from collections.abc import Callable

from cosmodrome.errors import ClientError

_HANDLERS = "GRPC_ENABLE_FORK_SUPPORT"


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
    """Whether this process is the child of one that had channels open.

    Args:
        has_channels: Whether this process has some now.
    """

    def __init__(self, has_channels: Callable[[], bool]) -> None:
        self._has_channels = has_channels
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
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._is_spoilt = self._is_spoilt or self._has_channels()
        if self._is_spoilt:
            # To free a channel or a call here would call into what is gone.
            gc.freeze()
