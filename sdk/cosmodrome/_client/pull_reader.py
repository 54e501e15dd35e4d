"""What a pull consumer knows of one queue, and one read of it.

polled ──▶ cached … ──▶ next_read       polled: what `commit` keeps
a seek moves all three and makes the read under way void
"""

import asyncio
from dataclasses import dataclass, field

from cosmodrome._client.rpc import Rpc
from cosmodrome._client.tasks import end
from cosmodrome._core import convert, status
from cosmodrome._core.route import MessageQueue
from cosmodrome.errors import StatusError
from cosmodrome.message import MessageView
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import packed_pb2 as packed
from cosmodrome_proto import service_pb2 as rpc


@dataclass(slots=True)
class Pulled:
    """What one read brought.

    Attributes:
        messages: In order.
        next_offset: Where to read on; None where the broker does not say.
        failure: Why it refused.
    """

    messages: list[MessageView] = field(default_factory=list)
    next_offset: int | None = None
    failure: StatusError | None = None


class Reader:
    """One queue."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue: MessageQueue = queue
        self.next_read: int = 0
        self.polled: int = 0  # the offset to commit: everything before it was given out
        self.cached: list[MessageView] = []
        self.cached_bytes: int = 0
        self.is_stuck: bool = False  # its offset does not exist; a seek ends that
        self.is_failing: bool = False  # and somebody was told
        self.generation: int = 0  # a seek makes reads under way void
        self.allowed: asyncio.Event = asyncio.Event()
        self.allowed.set()
        self._read: asyncio.Task[Pulled] | None = None

    def interrupt(self) -> None:
        """End the read under way, which may wait for messages at its old place."""
        if self._read is not None:
            self._read.cancel()

    def forget(self, offset: int) -> None:
        """Read on at `offset`."""
        self.interrupt()
        self.generation += 1
        self.is_stuck = False
        self.cached.clear()
        self.cached_bytes = 0
        self.next_read = self.polled = offset

    def keep(self, pulled: Pulled) -> None:
        """Take what a read brought."""
        self.cached += pulled.messages
        self.cached_bytes += sum(len(message.body) for message in pulled.messages)
        if pulled.next_offset is not None:
            self.next_read = pulled.next_offset
            if not self.cached:
                self.polled = pulled.next_offset

    async def pull(
        self, rpc_: Rpc, request: rpc.PullMessageRequest, timeout_s: float
    ) -> Pulled | None:
        """Read once; None when `interrupt` ended it.

        Raises:
            TransportError: The stream broke.
        """
        work = self._pull(rpc_, request, timeout_s)
        self._read = read = asyncio.get_running_loop().create_task(work, name="pull")
        try:
            await asyncio.wait([read])
        finally:
            await end([read])
        return None if read.cancelled() else read.result()

    async def _pull(self, rpc_: Rpc, request: rpc.PullMessageRequest, timeout_s: float) -> Pulled:
        pulled = Pulled()
        endpoints = self.queue.endpoints
        where = str(endpoints)

        def take(frames: packed.PackedPull) -> None:
            pulled.messages += [convert.view(one, where) for one in frames.messages[:]]
            if frames.HasField("next_offset"):
                pulled.next_offset = frames.next_offset
            if frames.HasField("status") and frames.status.code != pb.MESSAGE_NOT_FOUND:
                pulled.failure = status.error_of(frames.status, endpoint=where)

        await rpc_.stream(endpoints, "PullMessage", request, take, timeout_s=timeout_s)
        return pulled
