"""What every RPC has at hand, and the two hooks around every call.

An activity is a plain function `(context, call, request) -> reply`:

    bytes         the encoded reply
    a message     the boundary encodes it
    None          the activity answers later, by `reply_late` or on `call` itself (then it counts
                  that by `answered` or `refused`)

Where its reply leaves at once or is held until what it staged is durable stands in
`service.METHODS`; what it raises, the boundary turns into a Status.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec
from google.protobuf.message import Message

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.broker.interface import Broker, ReplySink
from cosmodrome_server.clock import Clock
from cosmodrome_server.config import Config, Flow
from cosmodrome_server.errors import ConsumerGroupNotFound, OverloadedError, TopicNotFound
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.bulk.source import BulkSource
from cosmodrome_server.proxy.encoding import bytes_field
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.names import Names
from cosmodrome_server.proxy.open_streams import OpenStreams
from cosmodrome_server.proxy.security import needs
from cosmodrome_server.proxy.security.guard import Guard
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.proxy.validate import MessageRules
from cosmodrome_server.proxy.waits import Waits

Request = TypeVar("Request", bound=Message)
Reply = bytes | Message | None
Activity = Callable[["Context", Call, Request], Reply]

# Called with the method's name and the code of the answer, once per unary answer or stream.
Observer = Callable[[str, int], None]
UNNAMED = "none"

CLIENT_ID = "x-mq-client-id"
CLIENT_VERSION = "x-mq-client-version"


class Admission(Protocol):
    """Flow control, as others than the boundary see it."""

    def adopt(self, settings: Flow) -> None:
        """Admit by these settings from now on; on the loop's thread."""

    def under_way(self) -> Mapping[str, int]:
        """Calls of each class that wait for the disk now."""


# Of what `Context.__post_init__` sets.
_MADE_BELOW: Any = None


class Context(msgspec.Struct):
    """The parts of the proxy.

    Attributes:
        config: All settings.
        clock: Time.
        broker: The verbs.
        sessions: The clients that are there.
        sink: Where held replies of unary calls go: the front; set when it is made.
        streams: Where held replies of server streams go.
        endpoint: Host and port given to clients that named none.
        access: Who may do what.
        is_guarded: Whether `access` is asked; security.authentication.
        observe: Counts answers; None where nobody counts.
        bounded: Told the setting of each bound that refused a call; None where nobody counts.
        flow: Flow control; set when the table of RPCs is made.
        waited: Told how many seconds a receive waited; None where nobody counts.
        front: What carries the calls: gate or grpcio.
        waits: The receives and pulls that wait.
        started_ms: Since when.
        reflections: Streams of server reflection, which a stop ends.
        bulk: Ranges of queues for the data pipeline; None where the log is elsewhere.
    """

    config: Config
    clock: Clock
    broker: Broker
    sessions: Sessions
    sink: ReplySink
    streams: ReplySink
    endpoint: tuple[str, int]
    access: Guard
    observe: Observer | None = None
    bounded: Callable[[str], None] | None = None
    flow: Admission | None = None
    waited: Callable[[float], None] | None = None
    bulk: BulkSource | None = None
    front: str = ""
    waits: Waits = msgspec.field(default_factory=Waits)
    reflections: OpenStreams = msgspec.field(default_factory=OpenStreams)
    is_guarded: bool = _MADE_BELOW
    started_ms: int = _MADE_BELOW
    rules: MessageRules = _MADE_BELOW
    names: Names = _MADE_BELOW
    store_host: bytes = _MADE_BELOW

    def __post_init__(self) -> None:
        self.advertise(self.endpoint)
        self.started_ms = self.clock.now_ms()
        self.is_guarded = self.config.security.authentication
        self.rules = MessageRules.of(self.config)
        self.names = Names(self.config.limits)

    def advertise(self, endpoint: tuple[str, int]) -> None:
        """Be known under this host and port from now on: the port is known after start."""
        self.endpoint = endpoint
        self.store_host = bytes_field(10, "{}:{}".format(*endpoint).encode())

    def known_topic(self, name: str) -> Topic:
        """A topic, for who only looks: a mistyped name must not become a topic (auto_create).

        Raises:
            IllegalTopic, TopicNotFound
        """
        self.names.topic(name)
        if self.config.auto_create and not self.broker.has_topic(name):
            raise TopicNotFound(f"there is no topic {name}")
        return self.broker.topic(name)

    def known_group(self, name: str) -> Group:
        """A group, for who only looks, as `known_topic`.

        Raises:
            IllegalConsumerGroup, ConsumerGroupNotFound
        """
        self.names.group(name)
        if self.config.auto_create and not self.broker.has_group(name):
            raise ConsumerGroupNotFound(f"there is no consumer group {name}")
        return self.broker.group(name)

    def answered(self, rpc: str, code: int) -> None:
        """Count an answer."""
        if self.observe is not None:
            self.observe(rpc, code)

    def refused(self, rpc: str, error: Exception) -> None:
        """Count an answer that is an error, and the bound that was reached if it is that."""
        self.answered(rpc, status.code_of(error))
        if self.bounded is not None and isinstance(error, OverloadedError):
            self.bounded(error.setting or UNNAMED)

    def reply_late(self, rpc: str, call: Call, reply: bytes | Exception, code: int = pb.OK) -> None:
        """Answer a call whose activity returned None: with a response of this code, or an error."""
        if isinstance(reply, Exception):
            call.reply(status.error_field(reply))
            self.refused(rpc, reply)
        else:
            call.reply(reply)
            self.answered(rpc, code)

    def admit(self, call: Call, request: Message) -> None:
        """Let a call pass, or not.

        Raises:
            Unauthorized: The caller is not who it says, or may not.
            OverloadedError: Too many wrong signatures from there.
        """
        self.access.admit(
            request.DESCRIPTOR.full_name, call.headers, call.peer, needs.needs_of(request)
        )


def client_id_of(call: Call) -> str:
    """The client's id; the boundary has seen that there is one."""
    return call.headers[CLIENT_ID]
