"""The HTTP of the metrics port: requests in threads, answers of `MetricsEndpoint`."""

import logging
import socket
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Answer = Callable[[str], tuple[int, bytes]]


class HttpServer(ThreadingHTTPServer):
    """Serves GET on a socket that listens already."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, answer: Answer) -> None:
        handler = type("_BoundHandler", (_Handler,), {"answer": staticmethod(answer)})
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening


class _Handler(BaseHTTPRequestHandler):
    answer: Answer
    protocol_version = "HTTP/1.1"
    timeout = 30  # a silent connection must not hold a thread

    def do_GET(self) -> None:
        try:
            status, body = self.answer(self.path.partition("?")[0])
        except (FutureTimeout, RuntimeError):
            status, body = 503, b"the broker is busy or stopping\n"
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - its signature
        _log.debug(format, *args)
