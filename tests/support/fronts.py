"""Both fronts over the same small table of handlers, for the suite that both must pass."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from cosmodrome_server.config import Config, load
from cosmodrome_server.proxy.front import Call, Front, GrpcStatus, Handler, Kind
from cosmodrome_server.proxy.tls import Certificates

FRONTS = ["grpcio", *(["gate"] if util.find_spec("cosmodrome_gate") else [])]


@dataclass(frozen=True)
class TableRow:
    """A `front.Route`."""

    path: str
    kind: Kind
    handler: Handler


class Handlers:
    """What the suite calls; `seen` is what handlers noticed."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.held: list[Call] = []

    def table(self) -> list[TableRow]:
        return [
            TableRow("/test.T/Echo", Kind.UNARY, lambda call: call.reply(call.payload)),
            TableRow("/test.T/Describe", Kind.UNARY, self._describe),
            TableRow("/test.T/Hold", Kind.UNARY, self._hold),
            TableRow("/test.T/Refuse", Kind.UNARY, self._refuse),
            TableRow("/test.T/Broken", Kind.UNARY, self._break),
            TableRow("/test.T/Count", Kind.SERVER_STREAM, self._count),
            TableRow("/test.T/Wait", Kind.SERVER_STREAM, self._hold),
            TableRow("/test.T/Chat", Kind.BIDI, self._chat),
            TableRow("/test.T/*", Kind.UNARY, lambda call: call.reply(b"unknown")),
        ]

    def _describe(self, call: Call) -> None:
        deadline = "none" if call.deadline_ms is None else str(call.deadline_ms)
        host = call.peer.rpartition(":")[0]
        name = call.headers.get("x-name", "")
        call.reply(f"{name} {host} {deadline} {call.is_tls} {call.peer_subject}".encode())

    def _hold(self, call: Call) -> None:
        call.on_cancel(lambda: self.seen.append("cancelled"))
        self.held.append(call)

    def _refuse(self, call: Call) -> None:
        call.finish(GrpcStatus.UNAVAILABLE, "not now")

    def _break(self, call: Call) -> None:
        raise ZeroDivisionError("secret")

    def _count(self, call: Call) -> None:
        call.reply_stream([str(n).encode() for n in range(int(call.payload))])

    def _chat(self, call: Call) -> None:
        def on_message(message: bytes | None) -> None:
            if message is None:
                call.send(b"bye")
                call.finish()
            elif message == b"fail":
                call.finish(GrpcStatus.INVALID_ARGUMENT, "so be it")
            else:
                call.send(message.upper())

        call.on_cancel(lambda: self.seen.append("cancelled"))
        call.on_message(on_message)
        call.send(b"welcome")


def make_front(kind: str, table: list[TableRow], config: Config) -> Front:
    certificates = Certificates(config) if config.tls.mode != "off" else None
    if kind == "gate":
        from cosmodrome_server.proxy.fronts.gate import GateFront

        return GateFront(table, config, certificates)
    from cosmodrome_server.proxy.fronts.grpcio import GrpcioFront

    return GrpcioFront(table, config, certificates)


@asynccontextmanager
async def serving(kind: str, data: Path, **overrides: str) -> AsyncIterator[tuple[Front, Handlers]]:
    """A front that listens, and its handlers."""
    settings = {"server.data": str(data), "server.port": "0"}
    settings |= {key.replace("__", "."): value for key, value in overrides.items()}
    handlers = Handlers()
    front = make_front(kind, handlers.table(), load(None, environment={}, overrides=settings))
    await front.start()
    try:
        yield front, handlers
    finally:
        await front.drain(0)


async def until(condition: Callable[[], bool], turns: int = 3_000) -> None:
    """Let the loop and the front's threads go on until something is so."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came about")
