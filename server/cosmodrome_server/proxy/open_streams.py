"""Streams that are open as long as their clients: a stop ends them, its drain would wait for them.

opened ──▶ kept ─┬─ forgotten, when the client or an answer ended it
                 └─ close: ended, as is each that is opened from now on
"""

from cosmodrome_server.proxy.front import Call


class OpenStreams:
    """The open streams of one kind."""

    def __init__(self) -> None:
        self._open: set[Call] = set()
        self._is_closed = False

    def begin(self, call: Call) -> bool:
        """Keep a stream that began; False where it is ended already, for the server stops."""
        if self._is_closed:
            call.finish()
            return False
        self._open.add(call)
        call.on_cancel(lambda: self.forget(call))
        return True

    def forget(self, call: Call) -> None:
        """A stream ended, or is about to."""
        self._open.discard(call)

    def close(self) -> None:
        """End all, and those that are opened from now on."""
        self._is_closed = True
        for call in list(self._open):
            call.finish()
        self._open.clear()
