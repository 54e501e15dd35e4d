"""Faults on the way to a test broker: what a network, a proxy or an overload does to calls.

A fault sits between the front and the handlers, so that clients see exactly what they would see
from a broker in trouble.
"""

import asyncio
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_proto import packed_pb2 as packed
from cosmodrome_server.broker.interface import ReplySink
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.front import Call, GrpcStatus, Handler
from cosmodrome_server.proxy.service import Rpc

_SERVICES = (
    "apache.rocketmq.v2.MessagingService",
    "apache.rocketmq.v2.Admin",
    "cosmodrome.v1.Control",
)
_CODES = frozenset(pb.Code.keys())
_RPCS = frozenset({"*"}.union(*((each.name for each in methods(one)) for one in _SERVICES)))


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {found[0]}?" if found else ""


@dataclass(slots=True)
class Fault:
    """What happens to calls of one RPC.

    Attributes:
        rpc: Its name, such as "SendMessage"; "*" for every one.
        code: Answer this status code instead; a name of `Code` such as "TOO_MANY_REQUESTS".
        drop: Never answer.
        unavailable: Answer gRPC UNAVAILABLE.
        corrupt: Spoil the bodies of received messages, so that their digest does not fit.
        delay_ms: Handle the call so much later.
        times: For how many calls; -1 for all until removed.
        after_handling: Do the work first, then lose the answer (with drop or unavailable).

    Raises:
        ValueError: There is no such RPC or code: the fault would never be seen.
    """

    rpc: str = "*"
    code: str = ""
    drop: bool = False
    unavailable: bool = False
    corrupt: bool = False
    delay_ms: int = 0
    times: int = -1
    after_handling: bool = False

    def __post_init__(self) -> None:
        if self.rpc not in _RPCS:
            raise ValueError(f"no RPC {self.rpc!r}{_nearest(self.rpc, _RPCS)}")
        if self.code and self.code not in _CODES:
            raise ValueError(f"no status code {self.code!r}{_nearest(self.code, _CODES)}")
        if self.after_handling and not (self.drop or self.unavailable or self.code):
            raise ValueError("after_handling loses an answer: by drop, unavailable or a code")


class Faults:
    """The faults of one broker; used on its loop."""

    def __init__(self) -> None:
        self.active: list[Fault] = []
        self.recordings: list[list[str]] = []

    def around(self, route: Rpc) -> Rpc:
        """The same RPC with faults in front of it."""
        name = route.path.rpartition("/")[2]
        return msgspec.structs.replace(route, handler=self._handler(name, route.handler))

    def _handler(self, name: str, handler: Handler) -> Handler:
        def handle(call: Call) -> None:
            for recording in self.recordings:
                recording.append(name)
            fault = self._take(name)
            if fault is None:
                handler(call)
            elif fault.delay_ms:
                loop = asyncio.get_running_loop()
                loop.call_later(fault.delay_ms / 1000, _strike, fault, handler, call)
            else:
                _strike(fault, handler, call)

        return handle

    def _take(self, name: str) -> Fault | None:
        for fault in self.active:
            if fault.rpc in (name, "*") and fault.times != 0:
                fault.times -= fault.times > 0
                return fault
        return None


class FaultySink:
    """Takes held replies; those of calls whose answer is lost go nowhere."""

    def __init__(self, front: ReplySink) -> None:
        self._front = front

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """See `ReplySink`."""
        heard = [(call, reply) for call, reply in replies if not isinstance(call, DeafCall)]
        if heard:
            self._front.reply_many(heard)


class _CallAround:
    """A call with something between it and its handler."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the call has
        return getattr(self._call, name)


class DeafCall(_CallAround):
    """A call whose answer is lost."""

    def reply(self, message: bytes) -> None:
        """Lose it."""

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        """Lose it."""

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """Lose it."""


class SpoiltCall(_CallAround):
    """A receive whose bodies change on the way."""

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        """Spoil every body, and answer."""
        self._call.reply_stream([_spoilt(message) for message in messages])


def _spoilt(encoded: bytes) -> bytes:
    frames = packed.PackedReceive.FromString(encoded)
    for message in frames.messages:
        message.body = bytes([message.body[0] ^ 0xFF]) + message.body[1:]
    return frames.SerializeToString()


def _strike(fault: Fault, handler: Handler, call: Call) -> None:
    around: Any = call
    if fault.after_handling:
        around = DeafCall(call)
        handler(around)
    if fault.unavailable:
        call.finish(GrpcStatus.UNAVAILABLE, "a fault of the test broker")
    elif fault.code:
        code = pb.Code.Value(fault.code)
        call.reply(status.status_field(code, "a fault of the test broker"))
    elif not fault.drop:
        around = SpoiltCall(call) if fault.corrupt else call
        handler(around)
