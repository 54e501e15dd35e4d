"""Calls: metadata, deadlines, and the one place where gRPC's errors become ours."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message

from cosmodrome._client import channels
from cosmodrome._client.channels import Channel
from cosmodrome._client.stream_readers import FULL_MIN
from cosmodrome._client.tasks import is_cancelled
from cosmodrome._core import status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome._core.signature import Identity, Metadata, signed
from cosmodrome.config import ClientConfiguration
from cosmodrome.credentials import asked
from cosmodrome.errors import ConnectionFailed, CosmodromeError, DeadlineExceeded, TransportError
from cosmodrome_proto import Method, methods
from cosmodrome_proto import definition_pb2 as nouns
from cosmodrome_proto import packed_pb2 as packed
from cosmodrome_proto import service_pb2 as pb

# Brokers of ours then put many messages of a stream into one of gRPC's; others do not look at it,
# and what they send reads as a pack of one.
PACKED: Metadata = (("x-cosmodrome-packed", "1"),)
_PACKS: dict[str, type[Message]] = {
    "ReceiveMessage": packed.PackedReceive,
    "PullMessage": packed.PackedPull,
}
METHODS: dict[str, Method] = {
    method.name: method._replace(response=_PACKS.get(method.name, method.response))
    for method in methods("apache.rocketmq.v2.MessagingService")
}
Response = TypeVar("Response", bound=Message)
_EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs lack it


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with what errors about it should name."""

    response: Any
    endpoint: str
    request_id: str

    def check(self) -> Any:  # noqa: ANN401 - the response of the method called
        """The response, if its status is fine.

        Raises:
            StatusError: The broker said no.
        """
        error = status.error_of(
            self.response.status, endpoint=self.endpoint, request_id=self.request_id
        )
        if error is not None:
            raise error
        return self.response


class Rpc:
    """The calls of one client.

    Args:
        configuration: The client's.
        client_id: Goes into every call's metadata.
        on_lost_settings: Told of a broker that does not know the client any more.
    """

    def __init__(
        self,
        configuration: ClientConfiguration,
        client_id: str,
        on_lost_settings: Callable[[Endpoints], None] = lambda _: None,
    ) -> None:
        self._configuration = configuration
        self._credentials = configuration.provider
        self._fixed = Identity(client_id, configuration.namespace).fixed()
        self._channels: dict[Endpoints, Channel] = {}
        self._opening = asyncio.Lock()
        self._full: set[tuple[str, str, int]] = set()  # queues whose last stream was full
        self._on_lost_settings = on_lost_settings

    async def close(self) -> None:
        """Give every channel back."""
        channels_, self._channels = list(self._channels.values()), {}
        for channel in channels_:
            await channels.give_back(channel, self._configuration.tls)

    async def forget(self, endpoints: Endpoints) -> None:
        """Drop the channel to endpoints that are of no use any more, or hang.

        Calls under way on it fail; other clients that share it keep it until they give it up.
        """
        channel = self._channels.pop(endpoints, None)
        if channel is not None:
            channels.retire(channel, self._configuration.tls)
            await channels.give_back(channel, self._configuration.tls)

    async def reach(self, endpoints: Endpoints, timeout_s: float) -> None:
        """Wait for a connection, so long at most: one that broke is there again after a restart."""
        channel = await self._channel(endpoints)
        with contextlib.suppress(TimeoutError, grpc.aio.UsageError):
            async with asyncio.timeout(timeout_s):
                await channel.channel.channel_ready()

    def headers(self) -> tuple[Metadata, str]:
        """Metadata of one call, signed now, and its request id.

        Raises:
            ConfigurationError: There are no credentials to sign with.
        """
        return signed(self._fixed, asked(self._credentials), datetime.now(UTC))

    async def call(
        self,
        endpoints: Endpoints,
        name: str,
        request: Message,
        *,
        timeout_s: float = 0.0,
        is_patient: bool = False,
        more: Metadata = (),
    ) -> Answer:
        """One unary call.

        Args:
            endpoints: Whom to call.
            name: The RPC.
            request: Its message.
            timeout_s: How long; 0 for the request timeout.
            is_patient: Wait for a broker that cannot be reached yet, as long.
            more: Metadata beside that of every call.

        Raises:
            TransportError: No answer came.
        """
        channel = self._channels.get(endpoints) or await self._channel(endpoints)
        make = channel.callables.get(name) or _callable(channel, name, channel.channel.unary_unary)
        metadata, request_id = self.headers()
        deadline_s = timeout_s or self._configuration.request_timeout_s
        try:
            response = await cast("Any", make)(
                request,
                timeout=deadline_s,
                metadata=metadata + more,
                wait_for_ready=is_patient or None,
            )
        except grpc.aio.AioRpcError as error:
            raise translated(error, name, endpoints, request_id) from error
        except grpc.aio.UsageError as error:
            raise _closed(name, endpoints) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise _closed(name, endpoints) from error
        if response.status.code == nouns.UNRECOGNIZED_CLIENT_TYPE:
            self._on_lost_settings(endpoints)
        return Answer(response, str(endpoints), request_id)

    async def stream(
        self,
        endpoints: Endpoints,
        name: str,
        request: Message,
        take: Callable[[Any], None],
        *,
        timeout_s: float,
    ) -> None:
        """Hand every pack of messages of one server stream to `take`, until the stream ends.

        Args:
            endpoints: Whom to call.
            name: The RPC, ReceiveMessage or PullMessage.
            request: Its message; names a message queue.
            take: Gets each pack, in order; all at once where a thread read them.
            timeout_s: How long.

        Raises:
            TransportError: The stream broke.
        """
        channel = self._channels.get(endpoints) or await self._channel(endpoints)
        named = cast("Any", request).message_queue
        key = (name, named.topic.name, named.id)
        count = 0

        def taken(message: object) -> None:
            nonlocal count
            count += 1
            take(message)

        try:
            if key in self._full and channel.readers.is_free:
                await self._read_by_thread(channel, name, request, taken, timeout_s)
            else:
                await self._read_on_loop(channel, name, request, taken, timeout_s)
        finally:
            # Where much was, more is: a thread reads the next one.
            (self._full.add if count >= FULL_MIN else self._full.discard)(key)

    async def _read_by_thread(
        self,
        channel: Channel,
        name: str,
        request: Message,
        take: Callable[[object], None],
        timeout_s: float,
    ) -> None:
        metadata, request_id = self.headers()
        try:
            read = await channel.readers.read(
                METHODS[name], request, take, metadata=metadata + PACKED, timeout_s=timeout_s
            )
        except ValueError as error:
            raise _closed(name, channel.endpoints) from error
        for message in read.messages:
            take(message)
        if read.error is not None:
            raise translated(read.error, name, channel.endpoints, request_id) from read.error

    async def _read_on_loop(
        self,
        channel: Channel,
        name: str,
        request: Message,
        take: Callable[[object], None],
        timeout_s: float,
    ) -> None:
        endpoints = channel.endpoints
        make = channel.callables.get(name) or _callable(channel, name, channel.channel.unary_stream)
        metadata, request_id = self.headers()
        call = cast("Any", make)(request, timeout=timeout_s, metadata=metadata + PACKED)
        try:
            # Not `async for`: its generator costs as much again as the read.
            while (message := await call.read()) is not _EOF:
                take(message)
        except grpc.aio.AioRpcError as error:
            raise translated(error, name, endpoints, request_id) from error
        except grpc.aio.UsageError as error:
            raise _closed(name, endpoints) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise _closed(name, endpoints) from error
        finally:
            call.cancel()

    def lost_settings(self, endpoints: Endpoints) -> None:
        """A stream said that the broker does not know the client any more."""
        self._on_lost_settings(endpoints)

    async def telemetry(
        self, endpoints: Endpoints
    ) -> "grpc.aio.StreamStreamCall[pb.TelemetryCommand, pb.TelemetryCommand]":
        """Open the Telemetry stream."""
        channel = self._channels.get(endpoints) or await self._channel(endpoints)
        method = METHODS["Telemetry"]
        make = channel.channel.stream_stream(
            method.path,
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )
        metadata, _ = self.headers()
        stream: grpc.aio.StreamStreamCall[pb.TelemetryCommand, pb.TelemetryCommand]
        stream = cast("Any", make)(metadata=metadata)
        return stream

    async def _channel(self, endpoints: Endpoints) -> Channel:
        async with self._opening:
            known = self._channels.get(endpoints)
            if known is None:
                known = await channels.borrow(endpoints, self._configuration.tls)
                self._channels[endpoints] = known
            return known


# What gRPC says when a connection cannot be, and what to do about it.
_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "name its authority's file (ca=…), or for development trust any"
    " certificate (tls=insecure)",
    "Hostname Verification Check": "server_name=… names the one that is on it",
    "requires TLS": "tls=true, with ca=…, speaks it",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "Failed parsing HTTP/2": "what listens there does not speak gRPC; the metrics port?",
}


def translated(
    error: grpc.RpcError, name: str, endpoints: Endpoints, request_id: str
) -> CosmodromeError:
    """GRPC's error, of a call on the loop or in a thread, as one of ours."""
    kind: type[TransportError] = ConnectionFailed
    call = cast("grpc.Call", error)
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        kind = DeadlineExceeded
    details = call.details() or ""
    hints = "".join(f"; {hint}" for sign, hint in _HINTS.items() if sign in details)
    words = f"{name} at {endpoints}: {call.code().name.lower()}: {details}{hints}"
    return kind(words, endpoint=str(endpoints), request_id=request_id)


def _closed(name: str, endpoints: Endpoints) -> ConnectionFailed:
    return ConnectionFailed(f"{name} at {endpoints}: channel closed", endpoint=str(endpoints))


def _callable(channel: Channel, name: str, make: Callable[..., object]) -> object:
    """What calls a method on a channel, remembered by it: making one costs as much as a call."""
    method = METHODS[name]
    made = make(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    channel.callables[name] = made
    return made
