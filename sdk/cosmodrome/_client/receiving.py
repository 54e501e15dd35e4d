"""One receive: the request, the stream's frames, the deliveries."""

import time
from dataclasses import dataclass, field

from cosmodrome._client.rpc import Rpc
from cosmodrome._core import convert, status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import MessageNotFound
from cosmodrome.message import MessageView
from cosmodrome_proto import service_pb2 as rpc


@dataclass(slots=True)
class Received:
    """What one receive brought.

    Attributes:
        messages: In the order of the broker.
        transport_ms: How long the answer was on its way, by both clocks; None for unknown.
    """

    messages: list[MessageView] = field(default_factory=list)
    transport_ms: float | None = None


async def receive(
    rpc_: Rpc, endpoints: Endpoints, request: rpc.ReceiveMessageRequest, *, timeout_s: float
) -> Received:
    """Receive once.

    Frames may come in any order, and a refusal even after messages; then the messages count.

    Raises:
        StatusError: The broker refused.
        TransportError: The stream broke before a message came.
    """
    received = Received()
    failure: Exception | None = None
    where = str(endpoints)
    frames = rpc_.stream(endpoints, "ReceiveMessage", request, timeout_s=timeout_s)
    try:
        async for frame in frames:
            kind = frame.WhichOneof("content")
            if kind == "message":
                received.messages.append(convert.view(frame.message, where))
            elif kind == "status":
                error = status.error_of(frame.status, endpoint=where)
                if error is not None and not isinstance(error, MessageNotFound):
                    failure = error
            elif kind == "delivery_timestamp":
                sent_ms = frame.delivery_timestamp.ToMilliseconds()
                received.transport_ms = time.time_ns() / 1e6 - sent_ms
    except Exception as error:
        failure = error
    if failure is not None and not received.messages:
        raise failure
    return received
