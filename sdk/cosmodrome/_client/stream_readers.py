"""Threads that read a backlog: whole streams, handed to the loop in one piece.

grpc.aio brings a stream to the loop message by message: for each a thread of gRPC's is woken, a
socket written to, the loop turned and a task resumed, which costs more than consuming the
message. A thread that reads a stream by itself wakes the loop once for all its messages.

    last stream of the queue was full, a reader is free ──▶ a reader, over a second connection
    otherwise ──▶ grpc.aio: waiting for messages costs no thread there

Nothing here runs, and no second connection is made, until there is a backlog.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from cosmodrome._core.signature import Metadata
from cosmodrome_proto import Method

# More read no faster: they share one interpreter lock with the loop.
READERS_MAX = 4
# Streams of fewer messages are not worth a thread.
FULL_MIN = 16


@dataclass(slots=True)
class Read:
    """What one stream brought.

    Attributes:
        messages: In order.
        error: How it broke; None if it ended well.
    """

    messages: list[Any]
    error: grpc.RpcError | None = None


@dataclass(slots=True)
class _Job:
    call: Any
    done: "asyncio.Future[Read]"
    loop: asyncio.AbstractEventLoop


class StreamReaders:
    """Readers of the streams of one broker. Its methods belong to one loop.

    Args:
        connect: Makes the connection, at the first read.
    """

    def __init__(self, connect: Callable[[], grpc.Channel]) -> None:
        self._connect = connect
        self._channel: grpc.Channel | None = None
        self._callables: dict[str, Any] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._is_closed = False

    @property
    def is_free(self) -> bool:
        """Whether a reader could begin now."""
        return self._busy < READERS_MAX and not self._is_closed

    async def read(
        self,
        method: Method,
        request: Message,
        stranded: Callable[[Any], None],
        *,
        metadata: Metadata,
        timeout_s: float,
    ) -> Read:
        """Read one server stream to its end; only while `is_free`.

        Cancelling ends the stream and its reader; `stranded` gets what had come.
        """
        loop = asyncio.get_running_loop()
        call = self._callable(method)(request, timeout=timeout_s, metadata=metadata)
        job = _Job(call, loop.create_future(), loop)
        self._busy += 1
        if self._threads < self._busy:
            self._threads += 1
            name = f"cosmodrome-read-{self._threads}"
            threading.Thread(target=_serve, args=(self, self._jobs), name=name, daemon=True).start()
        self._jobs.put(job)
        try:
            return await asyncio.shield(job.done)
        except asyncio.CancelledError:
            call.cancel()
            for message in (await job.done).messages:
                stranded(message)
            raise

    def finish(self, job: _Job, read: Read) -> None:
        """A reader is through with a stream."""
        self._busy -= 1
        if not job.done.done():
            job.done.set_result(read)

    def close(self) -> None:
        """End every stream, the threads and the connection."""
        self._is_closed = True
        for _ in range(self._threads):
            self._jobs.put(None)
        if self._channel is not None:
            self._channel.close()

    def _callable(self, method: Method) -> Any:  # noqa: ANN401 - grpc-stubs lack its type
        made = self._callables.get(method.name)
        if made is None:
            if self._channel is None:
                self._channel = self._connect()
            made = self._callables[method.name] = self._channel.unary_stream(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return made


def _serve(readers: StreamReaders, jobs: "queue.SimpleQueue[_Job | None]") -> None:
    """The life of one reader."""
    while (job := jobs.get()) is not None:
        read = Read([])
        try:
            read.messages.extend(job.call)
        except grpc.RpcError as error:
            read.error = error
        with contextlib.suppress(RuntimeError):  # the loop is gone, and who waited with it
            job.loop.call_soon_threadsafe(readers.finish, job, read)
