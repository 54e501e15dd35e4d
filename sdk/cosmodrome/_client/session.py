"""The Telemetry session with one broker: settings out, settings and commands in, forever.

    open ─ send settings ─▶ read commands ─▶ stream ends or breaks ─▶ rest ─▶ open …

The stream is reopened for as long as the client wants the session. The first answer makes
the session *settled*; a client's start waits for it, or for a refusal that another try would
only meet again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from cosmodrome._client.rpc import Rpc, translated
from cosmodrome._client.tasks import is_cancelled
from cosmodrome._core import status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import BadRequest, CosmodromeError, StatusError, TransportError
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
REOPEN_S = 1.0
WRITE_S = 3.0
Command = rpc.TelemetryCommand


class Session:
    """One session.

    Args:
        rpc_: The client's calls.
        endpoints: The broker.
        settings: What the client says of itself now.
        on_command: Takes every command but settings; may answer through `send`.
        on_settings: Takes the broker's settings.
    """

    def __init__(
        self,
        rpc_: Rpc,
        endpoints: Endpoints,
        *,
        settings: Callable[[], pb.Settings],
        on_settings: Callable[[pb.Settings], None],
        on_command: Callable[[Command, "Session"], Awaitable[None]],
    ) -> None:
        self._rpc = rpc_
        self.endpoints = endpoints
        self._settings = settings
        self._on_settings = on_settings
        self._on_command = on_command
        self._stream: grpc.aio.StreamStreamCall[Command, Command] | None = None
        self._settled = asyncio.Event()
        self._answered = asyncio.Event()  # settled, or refused for good
        self._again = asyncio.Event()
        self._writing = asyncio.Lock()  # gRPC takes one write of a stream at a time
        self.failure: CosmodromeError | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the broker has answered our settings at least once."""
        return self._settled.is_set()

    async def settled(self) -> None:
        """Wait for the first answer.

        Raises:
            CosmodromeError: The broker refused, and will again.
        """
        await self._answered.wait()
        if self.failure is not None and not self.is_settled:
            raise self.failure

    async def run(self) -> None:
        """Keep the session until cancelled."""
        while True:
            try:
                await self._one_stream()
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                # Only the stream was, by `reopen`: gRPC says it in the same words.
            except CosmodromeError as error:
                self._failed(error)
                _log.debug("telemetry with %s: %s", self.endpoints, error)
            except grpc.aio.AioRpcError as error:
                self._failed(_refusal_of(error, self.endpoints))
                _log.info("telemetry with %s ended: %s", self.endpoints, error.details())
            self._again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REOPEN_S):
                    await self._again.wait()

    def reopen(self) -> None:
        """Drop the stream and open another at once."""
        self._again.set()
        if self._stream is not None:
            self._stream.cancel()

    async def sync(self) -> None:
        """Send the settings now; a session without a stream does so when it opens one."""
        await self.send(Command(settings=self._settings()))

    async def send(self, command: Command) -> None:
        """Write a command, for `WRITE_S` at most.

        A stream that breaks under it is reopened by `run`, one that takes nothing any more here.
        """
        try:
            async with asyncio.timeout(WRITE_S), self._writing:
                if self._stream is not None:
                    await self._stream.write(command)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except TimeoutError:
            self.reopen()
        except asyncio.CancelledError:
            if is_cancelled():
                raise

    async def _one_stream(self) -> None:
        stream = await self._rpc.telemetry(self.endpoints)
        self._stream = stream
        try:
            async with self._writing:
                await stream.write(Command(settings=self._settings()))
            while True:
                command = await stream.read()
                if not isinstance(command, Command):
                    return  # the broker ended the stream
                await self._take(command)
        finally:
            self._stream = None
            stream.cancel()

    def _failed(self, error: CosmodromeError) -> None:
        # What the broker said counts for more than how the stream ended after it.
        if self.failure is None or not isinstance(error, TransportError):
            self.failure = error
        if not self.failure.is_retryable:
            self._answered.set()

    async def _take(self, command: Command) -> None:
        error = status.error_of(command.status, endpoint=str(self.endpoints))
        if error is not None and command.HasField("status"):
            # Said once, not with every stream.
            level = logging.INFO if isinstance(self.failure, StatusError) else logging.WARNING
            self._failed(error)
            _log.log(level, "the broker at %s refuses our settings: %s", self.endpoints, error)
        if command.WhichOneof("command") == "settings":
            self.failure = None
            self._on_settings(command.settings)
            self._settled.set()
            self._answered.set()
        elif command.WhichOneof("command") is not None:
            await self._on_command(command, self)


def _refusal_of(error: grpc.aio.AioRpcError, endpoints: Endpoints) -> CosmodromeError:
    """Why a stream ended. Settings that do not fit end it as INVALID_ARGUMENT, by every broker."""
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        words = error.details() or "the broker refuses the settings"
        return BadRequest(words, code=pb.BAD_REQUEST, endpoint=str(endpoints))
    return translated(error, "Telemetry", endpoints, "")
