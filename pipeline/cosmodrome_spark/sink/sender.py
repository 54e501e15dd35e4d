"""Requests to acks: several under way, each waited for, refusals kept apart from failures.

    messages ─▶ one open request per topic ─▶ full: start it ─▶ at most `maxInFlight` wait
                                                     ▲                 │
                                     back-off ◀── busy, unreachable ◀──┘

Nothing counts as written before its answer is there. A request that was not answered is
sent again with the same message ids: a repeat is possible, and recognisable.

Messages with a group or a delivery time may stand in a batch of their topic: the order of
the rows is the order of the requests, and requests of FIFO topics go out one at a time.
"""

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_spark.errors import BrokerRefused, BrokerUnreachable
from cosmodrome_spark.options import SinkOptions
from cosmodrome_spark.read.wire import MESSAGING, Started, Wire
from cosmodrome_spark.sink.pace import Pace

SEND_MESSAGE = f"{MESSAGING}SendMessage"
ATTEMPTS = 8
BACKOFF_MS_FIRST = 50
BACKOFF_MS_MAX = 5_000
_BUSY = frozenset({pb.TOO_MANY_REQUESTS, pb.INTERNAL_SERVER_ERROR, pb.PROXY_TIMEOUT})
_STORED = frozenset(
    {pb.OK, pb.MASTER_PERSISTENCE_TIMEOUT, pb.SLAVE_PERSISTENCE_TIMEOUT, pb.HA_NOT_AVAILABLE}
)


@dataclass(slots=True)
class Refused:
    """A message that the broker does not take, and why."""

    message: pb.Message
    reason: str


@dataclass(slots=True)
class _Request:
    messages: list[pb.Message] = field(default_factory=list)
    bytes: int = 0
    attempts: int = 0
    started: Started | None = None


class Sender:
    """Sends the messages of one task.

    Args:
        options: See there.
        on_refused: Called for each message that the broker refuses for good.
    """

    def __init__(self, options: SinkOptions, on_refused: Callable[[Refused], None]) -> None:
        self._options = options
        self._wire = Wire(options.connection)
        self._on_refused = on_refused
        self._open: dict[str, _Request] = {}
        self._under_way: deque[_Request] = deque()
        self._pace = Pace(options)
        self._messages_max = min(options.batch_messages, options.rate_limit or sys.maxsize)
        self.sent = 0

    def send(self, message: pb.Message) -> None:
        """Put a message into its topic's request; sends that when it is full.

        Raises:
            BrokerRefused, BrokerUnreachable: An earlier message could not be written.
        """
        size = message.ByteSize()
        topic = message.topic.name
        request = self._open.setdefault(topic, _Request())
        is_full = len(request.messages) >= self._messages_max
        if request.messages and (is_full or request.bytes + size > self._options.batch_bytes):
            self._start(self._open.pop(topic))
            request = self._open.setdefault(topic, _Request())
        request.messages.append(message)
        request.bytes += size

    def flush(self) -> None:
        """Return when every message is acknowledged; raises as `send`."""
        for topic in list(self._open):
            self._start(self._open.pop(topic))
        while self._under_way:
            self._finish()

    def close(self) -> None:
        """Let the connection go; what is not flushed may or may not be written."""
        self._wire.close()

    def _start(self, request: _Request) -> None:
        is_ordered = any(each.system_properties.message_group for each in request.messages)
        most = 1 if is_ordered else self._options.max_in_flight
        while len(self._under_way) >= most:
            self._finish()
        self._pace.wait(len(request.messages))
        self._issue(request)
        self._under_way.append(request)

    def _issue(self, request: _Request) -> None:
        request.attempts += 1
        encoded = verbs.SendMessageRequest(messages=request.messages).SerializeToString()
        request.started = self._wire.start(SEND_MESSAGE, encoded)

    def _finish(self) -> None:
        """Wait for the oldest request; send it again while that may help."""
        request = self._under_way.popleft()
        while True:
            assert request.started is not None, "what is under way has been issued"
            try:
                reply = self._wire.finish(request.started)
                answer = verbs.SendMessageResponse.FromString(reply)
                again = self._settle(request, answer)
            except BrokerUnreachable:
                if request.attempts >= ATTEMPTS:
                    raise
                again = request.messages
            if not again:
                return
            if request.attempts >= ATTEMPTS:
                raise BrokerUnreachable(
                    f"{len(again)} messages were not taken in {ATTEMPTS} attempts: it is busy"
                )
            time.sleep(min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << request.attempts) / 1000)
            request.messages = again
            self._issue(request)

    def _settle(self, request: _Request, answer: verbs.SendMessageResponse) -> list[pb.Message]:
        """Account for an answer; return the messages to send again."""
        if len(answer.entries) != len(request.messages):
            return self._settle_whole(request, answer.status)
        again = []
        for message, entry in zip(request.messages, answer.entries, strict=True):
            if entry.status.code in _STORED:
                self.sent += 1
            elif entry.status.code in _BUSY:
                again.append(message)
            else:
                self._refuse(message, entry.status)
        return again

    def _settle_whole(self, request: _Request, status: pb.Status) -> list[pb.Message]:
        if status.code in _STORED:
            # Apache's proxy answers a batch with one entry.
            self.sent += len(request.messages)
            return []
        if status.code in _BUSY:
            return request.messages
        if len(request.messages) == 1:
            self._refuse(request.messages[0], status)
            return []
        # One bad message refuses the batch: find it by sending them one by one.
        for message in request.messages:
            single = _Request([message])
            self._issue(single)
            self._under_way.appendleft(single)
            self._finish()
        return []

    def _refuse(self, message: pb.Message, status: pb.Status) -> None:
        name = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
        reason = f"{name}: {status.message}"
        if self._options.on_error == "fail":
            raise BrokerRefused(
                f"message {message.system_properties.message_id} for topic "
                f"{message.topic.name!r} is refused: {reason}; onError=deadLetterPath sets "
                "such messages aside",
                code=status.code,
            )
        self._on_refused(Refused(message, reason))
