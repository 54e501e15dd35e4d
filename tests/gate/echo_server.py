"""A gate with small handlers, in a process of its own, told what to do by lines of JSON.

Run by `tests.gate.world`: `python echo_server.py '{"tls": "auto", …}'` prints one line with its
port, then answers each line on stdin with one on stdout. A process of its own, so that its
memory can be measured and a crash be seen.
"""

import asyncio
import base64
import json
import resource
import sys
from collections import Counter
from typing import Any

import cosmodrome_gate as gate

from cosmodrome_server.proxy.fronts.event_loop import EventLoop

METHODS = [
    ("/test.Echo/Unary", gate.UNARY),
    ("/test.Echo/Stream", gate.SERVER_STREAM),
    ("/test.Echo/Bidi", gate.BIDI),
    ("/test.Echo/Hold", gate.UNARY),
    ("/test.Echo/Feed", gate.SERVER_STREAM),
    ("/test.Echo/Facts", gate.UNARY),
    ("/test.Echo/Deliver", gate.SERVER_STREAM),
    ("/test.Echo/Fail", gate.UNARY),
    ("/test.Wild/*", gate.UNARY),
    ("/test.Echo/HoldBidi", gate.BIDI),
]
CERTIFICATES = ("certificate", "key", "client_ca")
UNARY, STREAM, BIDI, HOLD, FEED, FACTS, DELIVER, FAIL, WILD, HOLD_BIDI = range(len(METHODS))


class EchoServer:
    """Answers by method; counts what happened."""

    def __init__(self, server: gate.Server) -> None:
        self.server = server
        self.seen: Counter[str] = Counter()
        self.streams: dict[int, tuple[int, gate.Request]] = {}
        self.held: dict[int, gate.Request] = {}
        self.fed = 0
        self.replies: list[Any] = []

    def turn(self) -> None:
        """Take what waits and answer it."""
        for kind, number, detail, message, with_it in self.server.take():
            if kind == gate.CALL:
                self.seen[METHODS[detail][0]] += 1
                self.call(number, detail, message, with_it)
            elif kind == gate.OPEN:
                self.seen["open"] += 1
                self.streams[number] = (detail, with_it)
            elif kind == gate.MESSAGE:
                self.seen["message"] += 1
                if self.streams[number][0] == BIDI:
                    self.server.send(self.streams[number][1], message)
            elif kind == gate.HALF_CLOSE:
                self.seen["half_close"] += 1
                if self.streams[number][0] == BIDI:
                    del self.streams[number]
                    self.replies.append((number, 0, ""))
            elif kind == gate.CANCEL:
                self.seen[f"cancel_{detail}"] += 1
                self.seen["returned"] += with_it == "token"
                self.streams.pop(number, None)
                self.held.pop(number, None)
            else:
                self.seen["drained"] += 1
                self.seen["cancelled_before_drained"] = self.seen["cancel_0"]
        if self.replies:
            replies, self.replies = self.replies, []
            self.server.reply(replies)

    def linger(self, limit_us: int) -> int:
        """Wait as the gate does for a lone caller."""
        waited_us = self.server.linger(limit_us)
        self.seen["lingered"] += waited_us > 0
        return waited_us

    def call(self, number: int, method: int, message: bytes, request: gate.Request) -> None:
        """Answer one call."""
        answers = self.replies
        if method == UNARY:
            answers.append((number, message))
        elif method in (STREAM, DELIVER):
            count, size = map(int, message.split(b","))
            messages = [b"%06d" % n + b"x" * (size - 6) for n in range(count)]
            token = ("token",) if method == DELIVER else ()
            answers.append((number, messages, *token))
        elif method == HOLD:
            self.held[number] = request
        elif method == FEED:
            self.held[number] = request
            while self.server.send(request, message):
                self.fed += 1
        elif method == FACTS:
            answers.append((number, json.dumps(facts(request)).encode()))
        elif method == FAIL:
            answers.append((number, 5, message.decode()))
        else:
            answers.append((number, b"wild"))

    def order(self, order: dict[str, Any]) -> object:
        """Do what the test asks."""
        what = order["do"]
        server, loop = self.server, asyncio.get_running_loop()
        if what == "look":
            return {
                "seen": self.seen,
                "statistics": server.statistics(),
                "rss_kib": rss_kib(),
                "peak_kib": peak_kib(),
                "notes": server.notes(),
                "fed": self.fed,
                "held": len(self.held),
            }
        if what == "pause":
            loop.remove_reader(server.fileno())
        elif what == "resume":
            loop.add_reader(server.fileno(), self.turn)
        elif what == "drain":
            server.drain(order["grace_ms"])
        elif what == "release":
            self.replies += [(number, b"released") for number in self.held]
            self.held.clear()
            self.turn()
        elif what == "finish_streams":
            server.reply([(number, 0, "") for number in self.streams])
        elif what == "reload":
            try:
                chain, key, client_ca = (base64.b64decode(order.get(n, "")) for n in CERTIFICATES)
                asked = order.get("client_certificate", "none")
                server.reload_certificates(chain, key, client_ca, asked)
            except ValueError as error:
                return str(error)
        return None


def facts(request: gate.Request) -> dict[str, object]:
    """What a request says about itself."""
    return {
        "headers": dict(request),
        "peer": request.peer,
        "is_tls": request.is_tls,
        "deadline_ms": request.deadline_ms,
        "certificate": base64.b64encode(request.peer_certificate).decode(),
    }


def peak_kib() -> int:
    """The most this process has held."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    # Not getrusage: on Linux its peak outlives exec, so it is that of who started us.
    with open("/proc/self/status") as file:  # noqa: PTH123 - the smallest way to one number
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def rss_kib() -> int:
    """What this process holds now; on a Mac, which does not say, the most it has held."""
    if sys.platform == "darwin":
        return peak_kib()
    with open("/proc/self/statm") as file:  # noqa: PTH123 - the smallest way to one number
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


async def main() -> None:
    """Serve until stdin ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    settings = json.loads(sys.argv[1])
    for part in CERTIFICATES:
        if part in settings:
            settings[part] = base64.b64decode(settings[part])
    settings.setdefault("tcp", [["127.0.0.1", 0]])
    settings["tcp"] = [tuple(address) for address in settings["tcp"]]
    server = gate.Server(METHODS, **settings)
    echo = EchoServer(server)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, EventLoop)
    loop.add_reader(server.fileno(), echo.turn)
    loop.linger_by(echo.linger)
    print(json.dumps(server.addresses), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(echo.order(json.loads(line))), flush=True)
    loop.remove_reader(server.fileno())
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main())
