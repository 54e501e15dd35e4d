"""One receive: the request, the stream's frames, the deliveries."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmodrome._client.rpc import Rpc
from cosmodrome._core import convert, status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import (
    CosmodromeError,
    MessageNotFound,
    StatusError,
    TransportError,
    UnrecognizedClientType,
)
from cosmodrome.message import MessageView
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import packed_pb2 as packed
from cosmodrome_proto import service_pb2 as rpc


@dataclass(slots=True)
class Received:
    """What one receive brought.

    Attributes:
        messages: In the order of the broker.
        transport_ms: How long the answer was on its way, by both clocks; None for unknown.
        is_full: It brought as many as were asked for: there are likely more.
    """

    messages: list[MessageView] = field(default_factory=list)
    transport_ms: float | None = None
    is_full: bool = False


async def receive(
    rpc_: Rpc,
    endpoints: Endpoints,
    request: rpc.ReceiveMessageRequest,
    *,
    timeout_s: float,
    give_back: Callable[[list[MessageView]], None],
) -> Received:
    """Receive once.

    Frames may come in any order, and a refusal even after messages; then the messages count.

    Args:
        rpc_: Calls it.
        endpoints: Whom.
        request: What is wanted.
        timeout_s: How long.
        give_back: Gets what had come when the receive was cancelled.

    Raises:
        StatusError: The broker refused.
        TransportError: The stream broke before a message came.
    """
    incoming = _Incoming(str(endpoints))
    failure: CosmodromeError | None = None
    try:
        await rpc_.stream(endpoints, "ReceiveMessage", request, incoming.take, timeout_s=timeout_s)
    except TransportError as error:
        failure = error
    except asyncio.CancelledError:
        give_back(incoming.received.messages)
        raise
    failure = failure or incoming.refusal
    if isinstance(failure, UnrecognizedClientType):
        rpc_.lost_settings(endpoints)
    if failure is not None and not incoming.received.messages:
        raise failure
    return incoming.received


@dataclass(slots=True)
class _Incoming:
    """Sorts the frames of one receive."""

    endpoint: str
    received: Received = field(default_factory=Received)
    refusal: StatusError | None = None

    def take(self, frames: packed.PackedReceive) -> None:
        """One frame, or many."""
        endpoint = self.endpoint
        # A slice, because a protobuf list iterates through Python.
        self.received.messages += [convert.view(one, endpoint) for one in frames.messages[:]]
        if frames.HasField("status") and frames.status.code != pb.OK:
            error = status.error_of(frames.status, endpoint=endpoint)
            if error is not None and not isinstance(error, MessageNotFound):
                self.refusal = error
        if frames.HasField("delivery_timestamp"):
            sent_ms = frames.delivery_timestamp.ToMilliseconds()
            self.received.transport_ms = time.time_ns() / 1e6 - sent_ms
