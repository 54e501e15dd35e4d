"""The front seam: what accepts connections hands calls to handlers and takes replies.

    front ──Call──▶ handler(call)            on the loop's thread
    front ◀── call.reply / send / finish ──  at once, or later, on the loop's thread
    front ◀── reply_many([(call, bytes)]) ── from the writer thread, a whole commit at once

A handler is a plain function, called once per call with the request bytes already there
(a BIDI stream: called at its start, messages follow through `on_message`). It knows
nothing of grpcio or the gate. It either answers before it returns, or keeps the call
and answers later: `Broker.reply_when_durable(front, call, reply)` is the usual way.

Rules
1. A call is answered exactly once; answers to a call that was cancelled are dropped.
2. Handlers never block and never raise on purpose; what they raise is a bug, logged, and
   answered by the front with gRPC INTERNAL without details.
3. Between two turns of the loop a front may hand over many calls; replies given in that
   turn leave together.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from cosmodrome_server.broker.interface import ReplySink


class Kind(IntEnum):
    """How the messages of a method flow."""

    UNARY = 0
    SERVER_STREAM = 1
    BIDI = 2


class GrpcStatus(IntEnum):
    """The gRPC status codes a handler may end a stream with."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Call(Protocol):
    """One RPC as a handler sees it."""

    @property
    def payload(self) -> bytes:
        """The encoded request; empty for BIDI."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Metadata with lower-case names; of a repeated name the last value."""

    @property
    def peer(self) -> str:
        """The client's address, `ip:port`, or `unix:`."""

    @property
    def deadline_ms(self) -> int | None:
        """What was left of the deadline when the call arrived; None for no deadline."""

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""

    @property
    def peer_subject(self) -> str:
        """The subject of the client certificate, "" for none."""

    def reply(self, message: bytes) -> None:
        """End a unary call, or a stream, with one last message and gRPC OK."""

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        """End a server stream with these messages, in order, and gRPC OK."""

    def send(self, message: bytes) -> bool:
        """Send one message of a stream that goes on; False when gone or its buffer is full."""

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End the call without another message."""

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """Say what to do when the client goes away before the answer is written; None: nothing.

        A later callback replaces an earlier one.
        """

    def on_message(self, callback: Callable[[bytes | None], None]) -> None:
        """BIDI: take each message as it arrives; None when the client half-closes."""


Handler = Callable[[Call], None]


class Route(Protocol):
    """One method of the table a front serves.

    A path `/service/*` takes the methods of that service that have no route of their own.
    """

    @property
    def path(self) -> str:
        """`/service/Method`."""

    @property
    def kind(self) -> Kind:
        """How its messages flow."""

    @property
    def handler(self) -> Handler:
        """What serves it."""


class Front(ReplySink, Protocol):
    """What accepts connections."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on; the port is real also when 0 was asked for."""

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address is taken.
        """

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """End unary calls (the tokens) with their replies. Callable from any thread."""

    def statistics(self) -> dict[str, int]:
        """Counts of connections and calls; empty where the front keeps none."""

    async def drain(self, grace_s: float) -> None:
        """Take no new calls, let those under way finish for up to `grace_s`, close."""
