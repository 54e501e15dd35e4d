"""The HTTP port for people and probes: /metrics, /healthz, /readyz.

A thread of its own, so that a scrape of many series never holds the loop: the loop only
copies numbers (`snapshot`), the thread renders them.
"""

import asyncio
import http.server
import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from cosmodrome_server.proxy.metrics.meters import Snapshot

_log = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SNAPSHOT_TIMEOUT_S = 5.0


class MetricsEndpoint:
    """Serves until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        snapshot: Callable[[], Snapshot],
        is_ready: Callable[[], bool],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._snapshot = snapshot
        self._is_ready = is_ready
        handler = type("_BoundHandler", (_Handler,), {"endpoint": self})
        self._server = http.server.ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; the port is real also when 0 was asked for."""
        host, port = self._server.server_address[:2]
        return str(host), port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[int, bytes]:
        """What a GET of `path` gets: status and body. Called in a thread of the server."""
        if path == "/metrics":
            # prometheus_client takes 20 ms to import: the first scrape pays, not the start.
            from cosmodrome_server.proxy.metrics.exposition import render  # noqa: PLC0415

            return 200, render(self._on_loop())
        if path == "/healthz":
            return 200, b"ok\n"
        if path == "/readyz":
            return (200, b"ready\n") if self._is_ready() else (503, b"not ready\n")
        return 404, b"there are /metrics, /healthz and /readyz\n"

    def _on_loop(self) -> Snapshot:
        async def take() -> Snapshot:
            return self._snapshot()

        return asyncio.run_coroutine_threadsafe(take(), self._loop).result(SNAPSHOT_TIMEOUT_S)


class _Handler(http.server.BaseHTTPRequestHandler):
    endpoint: MetricsEndpoint
    protocol_version = "HTTP/1.1"
    timeout = 30  # a silent connection must not hold a thread

    def do_GET(self) -> None:
        try:
            status, body = self.endpoint.answer(self.path.partition("?")[0])
        except (FutureTimeout, RuntimeError):
            status, body = 503, b"the broker is busy or stopping\n"
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - its signature
        _log.debug(format, *args)
