"""Exactly once into a topic: stage in tasks, publish once on the driver.

    task     StageMessages(job, encoded SendMessageRequest) ─▶ token (durable, invisible)
    driver   PublishStaged(job, lineage, batch, tokens in order) until it says done

Only the tokens of the attempts that won reach the driver, so what a failed attempt staged is
never published; the server forgets it with the retention of its staging topic. Publishing
again what is published changes nothing: the server keeps (lineage, batch, how many) of each
job in the same atomic write as the messages.
"""

from collections.abc import Sequence

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_spark.errors import BrokerUnreachable, UnsupportedByServer
from cosmodrome_spark.options import Connection, SinkOptions
from cosmodrome_spark.read.bulk import BULK
from cosmodrome_spark.read.wire import Wire, check


class StagingSender:
    """Stages the messages of one task; the same shape as `Sender`."""

    def __init__(self, options: SinkOptions, job: str) -> None:
        self._options = options
        self._job = job
        self._wire = Wire(options.connection, is_known=True)
        self._messages: list[pb.Message] = []
        self._bytes = 0
        self.tokens: list[int] = []
        self.sent = 0

    def send(self, message: pb.Message) -> None:
        """Put a message into the open request; stages that when it is full."""
        size = message.ByteSize()
        same_topic = not self._messages or self._messages[0].topic == message.topic
        is_full = len(self._messages) >= self._options.batch_messages
        if self._messages and (
            is_full or not same_topic or self._bytes + size > self._options.batch_bytes
        ):
            self._stage()
        self._messages.append(message)
        self._bytes += size

    def flush(self) -> None:
        """Return when everything is staged and durable."""
        if self._messages:
            self._stage()

    def close(self) -> None:
        """Let the connection go."""
        self._wire.close()

    def _stage(self) -> None:
        content = verbs.SendMessageRequest(messages=self._messages)
        request = bulk.StageMessagesRequest(job=self._job, content=content)
        try:
            reply = self._wire.unary(f"{BULK}StageMessages", request.SerializeToString())
        except UnsupportedByServer as error:
            raise UnsupportedByServer(
                "dedup=transaction needs a Cosmodrome server; dedup=property works anywhere"
            ) from error
        answer = bulk.StageMessagesResponse.FromString(reply)
        check(answer.status, f"staging for job {self._job!r}")
        self.tokens.append(answer.token)
        self.sent += len(self._messages)
        self._messages, self._bytes = [], 0


def publish(
    connection: Connection, job: str, lineage: str, batch: int, tokens: Sequence[int]
) -> None:
    """Make staged messages visible, exactly once, however often this is called.

    Raises:
        BrokerRefused: A token is unknown: retention took it before it was published.
        BrokerUnreachable: No answer; call again.
    """
    wire = Wire(connection, is_known=True)
    request = bulk.PublishStagedRequest(job=job, lineage=lineage, batch=batch, tokens=tokens)
    encoded = request.SerializeToString()
    try:
        published = -1
        while True:
            reply = wire.unary(f"{BULK}PublishStaged", encoded)
            answer = bulk.PublishStagedResponse.FromString(reply)
            check(answer.status, f"publishing batch {batch} of job {job!r}")
            if answer.is_done:
                return
            if answer.published <= published:
                raise BrokerUnreachable(f"publishing stands still at {published} requests")
            published = answer.published
    finally:
        wire.close()
