"""The HTTP port for people and probes: /metrics, /healthz, /readyz.

A thread of its own, begun by who connects first, so that a scrape of many series never holds
the loop: the loop only copies numbers (`snapshot`), the thread renders them.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from cosmodrome_server.proxy.metrics.meters import Snapshot

if TYPE_CHECKING:
    from cosmodrome_server.proxy.metrics.http import HttpServer

SNAPSHOT_TIMEOUT_S = 5.0


class MetricsEndpoint:
    """Serves until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        snapshot: Callable[[], Coroutine[None, None, Snapshot]],
        is_ready: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._snapshot = snapshot
        self._is_ready = is_ready
        self._is_serving = threading.Event()
        self._thread: threading.Thread | None = None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family)
        self._server: HttpServer | None = None
        self._loop.add_reader(self._socket, self._begin)

    def _begin(self) -> None:
        """Who connects first waits in the socket's backlog until a thread is there."""
        self._loop.remove_reader(self._socket)
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # http.server takes 15 ms to import: the first scrape pays, not the start.
        from cosmodrome_server.proxy.metrics.http import HttpServer  # noqa: PLC0415 - see above

        self._server = HttpServer(self._socket, self.answer)
        self._is_serving.set()
        self._server.serve_forever()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is real also when 0 was asked for."""
        host, port = self._socket.getsockname()[:2]
        return str(host), port

    async def close(self) -> None:
        """Stop serving; once more does nothing."""
        if self._thread is not None:
            await asyncio.to_thread(self._end, self._thread)
        elif self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _end(self, thread: threading.Thread) -> None:
        self._is_serving.wait()
        assert self._server is not None, "it serves"
        self._server.shutdown()
        self._server.server_close()
        thread.join()

    def answer(self, path: str) -> tuple[int, bytes]:
        """What a GET of `path` gets: status and body. Called in a thread of the server."""
        if path == "/metrics":
            # prometheus_client takes 20 ms to import: the first scrape pays, not the start.
            from cosmodrome_server.proxy.metrics.exposition import render  # noqa: PLC0415 - see above

            return 200, render(self._on_loop())
        if path == "/healthz":
            return 200, b"ok\n"
        if path == "/readyz":
            return (200, b"ready\n") if self._is_ready() else (503, b"not ready\n")
        return 404, b"there are /metrics, /healthz and /readyz\n"

    def _on_loop(self) -> Snapshot:
        taken = asyncio.run_coroutine_threadsafe(self._snapshot(), self._loop)
        return taken.result(SNAPSHOT_TIMEOUT_S)
