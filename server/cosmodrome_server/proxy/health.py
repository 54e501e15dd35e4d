"""grpc.health.v1 for load balancers and orchestrators: NOT_SERVING is the first act of a drain.

    HealthCheckRequest { service = 1 }      HealthCheckResponse { status = 1 }

Two messages of one field each, packed by hand: the library would cost every start an import.
"""

from collections.abc import Iterable
from enum import IntEnum

from cosmodrome_server.errors import MessageCorrupted
from cosmodrome_server.model.wire import text_field
from cosmodrome_server.proxy.encoding import varint_field
from cosmodrome_server.proxy.front import Call, GrpcStatus
from cosmodrome_server.proxy.open_streams import OpenStreams

SERVICE = "grpc.health.v1.Health"
# Watches are answered on change only, so one that is never closed costs a list entry.
WATCHES_MAX = 1_000


class Serving(IntEnum):
    """The numbers of the wire."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class Health:
    """Whether the server takes calls; "" is the whole server."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset(services) | {"", SERVICE}
        self._state = Serving.NOT_SERVING
        self._watches: dict[int, tuple[Call, str]] = {}
        # Also those that asked nothing yet.
        self._streams = OpenStreams()

    @property
    def is_serving(self) -> bool:
        """Whether new calls are welcome."""
        return self._state is Serving.SERVING

    def set(self, state: Serving) -> None:
        """Change the state and tell those who watch."""
        self._state = state
        for call, service in list(self._watches.values()):
            call.send(self._answer(service))

    def check(self, call: Call) -> None:
        """Answer `Check`."""
        try:
            service = text_field(call.payload, 1)
        except MessageCorrupted:
            call.finish(GrpcStatus.INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        if service not in self._services:
            call.finish(GrpcStatus.NOT_FOUND, f"there is no service {service[:80]}")
            return
        call.reply(self._answer(service))

    def watch(self, call: Call) -> None:
        """Answer `Watch`: the state now, and each change, until the client goes away."""
        if self._streams.begin(call):
            call.on_cancel(lambda: self._forget(call))
            call.on_message(lambda message: self._begin(call, message))

    def _begin(self, call: Call, message: bytes | None) -> None:
        if message is None:
            return  # the client sends one request and then only listens
        if len(self._watches) >= WATCHES_MAX:
            self._streams.forget(call)
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, f"{WATCHES_MAX} watches are open")
            return
        try:
            service = text_field(message, 1)
        except MessageCorrupted:
            self._streams.forget(call)
            call.finish(GrpcStatus.INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        self._watches[id(call)] = (call, service)
        call.send(self._answer(service))

    def _forget(self, call: Call) -> None:
        self._watches.pop(id(call), None)
        self._streams.forget(call)

    def close(self) -> None:
        """End every watch, and those that begin from now on."""
        self._watches.clear()
        self._streams.close()

    def _answer(self, service: str) -> bytes:
        known = service in self._services
        return varint_field(1, self._state if known else Serving.SERVICE_UNKNOWN)
