"""The proxy without a network: handlers, sessions and a real broker on a log in memory."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from cosmodrome_proto import Duration, methods
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.app import broker_settings
from cosmodrome_server.config import Config, load
from cosmodrome_server.model import wire
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.proxy import service
from cosmodrome_server.proxy.client_events import ClientEvents
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_duration, to_timestamp
from cosmodrome_server.proxy.front import GrpcStatus, Handler
from cosmodrome_server.proxy.health import Health
from cosmodrome_server.proxy.outgoing import StreamReplies
from cosmodrome_server.proxy.security.directory import Directory
from cosmodrome_server.proxy.security.guard import Guard
from cosmodrome_server.proxy.sessions import Sessions
from tests.support.broker_world import World
from tests.support.memory_log import MemoryLog

METHODS = {
    method.name: method
    for name in (
        service.MESSAGING_SERVICE,
        service.ADMIN_SERVICE,
        service.CONTROL_SERVICE,
        service.BULK_SERVICE,
    )
    for method in methods(name)
}
OK = pb.OK
Scenario = Callable[["ProxyWorld"], Awaitable[None]]


class FakeCall:
    """A `Call` that keeps what it is answered; also plays the client's part of a stream."""

    def __init__(
        self,
        payload: bytes = b"",
        *,
        client_id: str | None = "client",
        deadline_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.payload = payload
        named = {} if client_id is None else {"x-mq-client-id": client_id}
        self.headers: Mapping[str, str] = {
            "x-mq-client-version": "5.1.2",
            **named,
            **(headers or {}),
        }
        self.peer = "192.0.2.7:4711"
        self.deadline_ms = deadline_ms
        self.is_tls = False
        self.peer_subject = ""
        self.messages: list[bytes] = []
        self.ended: tuple[GrpcStatus, str] | None = None
        self.is_gone = False
        self._on_cancel: Callable[[], None] | None = None
        self._on_message: Callable[[bytes | None], None] | None = None

    def reply(self, message: bytes) -> None:
        self.reply_stream([message])

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        if not self.is_gone:
            assert self.ended is None, "a call is answered once"
            self.messages += messages
            self.ended = (GrpcStatus.OK, "")

    def send(self, message: bytes) -> bool:
        if self.is_gone or self.ended is not None:
            return False
        self.messages.append(message)
        return True

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        if not self.is_gone:
            assert self.ended is None, "a call is answered once"
            self.ended = (status, message)

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        self._on_cancel = callback

    def on_message(self, callback: Callable[[bytes | None], None]) -> None:
        self._on_message = callback

    def cancel(self) -> None:
        """The client goes away."""
        self.is_gone = True
        callback, self._on_cancel = self._on_cancel, None
        if self.ended is None and callback is not None:
            callback()

    def say(self, command: Message | None) -> None:
        """The client sends a message of its stream; None closes its half."""
        assert self._on_message is not None
        self._on_message(None if command is None else command.SerializeToString())

    def commands(self) -> list[rpc.TelemetryCommand]:
        """What a Telemetry stream was sent so far."""
        return [rpc.TelemetryCommand.FromString(message) for message in self.messages]


class _UnaryReplies:
    """The front's part of holding replies."""

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        for call, message in replies:
            assert isinstance(call, FakeCall)
            call.reply(message)


class ProxyWorld:
    """Calls by name against the table of routes."""

    def __init__(self, config: Config) -> None:
        self.world = World(broker_settings(config))
        self.world.finder = self._find
        self.world.start(MemoryLog())
        self.clocks = self.world.clocks
        self.config = config
        self.connect()
        broker = self.world.broker
        for kind in TopicType:
            broker.create_topic(Topic(kind.lower(), kind, queues=2))
        broker.create_group(Group("billing", max_attempts=3))
        broker.create_group(Group("ledger", is_fifo=True))
        broker.create_group(Group("readers", lite_bind_topic="lite"))

    def _find(
        self, topic_id: int, key: str, between: tuple[int, int], most: int
    ) -> list[MessageRecord]:
        """Look at every message, where the real index would not."""
        log = self.world.log
        found = []
        for position in sorted(log.positions(), reverse=True):
            record = log.read_position(position)
            names = [wire.message_id(record.system), *wire.keys(record.system)]
            is_inside = between[0] <= record.store_timestamp_ms < between[1]
            is_there = record.state is MessageState.VISIBLE and record.topic_id == topic_id
            if is_there and key in names and is_inside:
                found.append(record)
        return found[:most]

    def connect(self) -> None:
        """Make a proxy over the broker as it is now: also after a restart."""
        broker = self.world.broker
        self.sessions = Sessions(broker, self.clocks, self.config)
        self.sessions.restore()
        self.context = Context(
            config=self.config,
            clock=self.clocks,
            broker=broker,
            sessions=self.sessions,
            sink=_UnaryReplies(),
            streams=StreamReplies(asyncio.get_running_loop()),
            endpoint=("203.0.113.1", 8081),
            access=Guard(
                Directory(broker, self.config.security), self.config.security, self.clocks
            ),
        )
        events = ClientEvents(self.context.waits)
        events.connect(self.sessions, self.context.store_host)
        broker.listen(events)
        self.events = events
        self.health = Health([service.MESSAGING_SERVICE])
        self.routes = service.routes(self.context, self.health, has_reflection=True)
        self.handlers: dict[str, Handler] = {one.path: one.handler for one in self.routes}

    async def restart(self) -> None:
        """Stop the broker and start it again on the same log, with a new proxy."""
        await self.world.restart()
        self.connect()

    def begin(self, name: str, request: Message, **options: Any) -> FakeCall:
        """Begin a call and do not wait."""
        call = FakeCall(request.SerializeToString(), **options)
        self.handlers[METHODS[name].path](call)
        return call

    async def answer(self, name: str, request: Message, **options: Any) -> list[Any]:
        """The messages a call is answered with."""
        call = self.begin(name, request, **options)
        for _ in range(20):
            if call.ended is not None:
                break
            await asyncio.sleep(0)
        assert call.ended is not None, f"{name} is not answered"
        return [METHODS[name].response.FromString(message) for message in call.messages]

    async def call(self, name: str, request: Message, **options: Any) -> Any:
        """The one message a unary call is answered with."""
        (only,) = await self.answer(name, request, **options)
        return only

    async def code(self, name: str, request: Message, **options: Any) -> int:
        """The status code a call is answered with, unary or stream."""
        answers = await self.answer(name, request, **options)
        code: int = answers[0].status.code
        return code

    def telemetry(self, settings: pb.Settings | None = None, **options: Any) -> FakeCall:
        """Open a Telemetry stream, and send settings on it if given."""
        call = FakeCall(**options)
        self.handlers[METHODS["Telemetry"].path](call)
        if settings is not None:
            call.say(rpc.TelemetryCommand(settings=settings))
        return call

    async def send(self, *messages: pb.Message, **options: Any) -> Any:
        request = rpc.SendMessageRequest(messages=messages)
        return await self.call("SendMessage", request, **options)

    async def receive(self, **changes: Any) -> list[pb.Message]:
        """Receive what there is."""
        answers = await self.answer("ReceiveMessage", receive_request(**changes))
        return [one.message for one in answers if one.HasField("message")]

    async def receive_nothing(self, **changes: Any) -> bool:
        """Whether a receive finds nothing now."""
        call = self.begin("ReceiveMessage", receive_request(**changes))
        await self.world.settle()
        is_waiting = call.ended is None
        call.cancel()
        return is_waiting

    async def later(self, duration_ms: int) -> None:
        """Let time pass for broker and sessions."""
        await self.world.later(duration_ms)
        self.sessions.tick()
        await self.world.settle()


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """What is let go is let go with its last reference, or not at all."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seen_to_go(call: FakeCall) -> "weakref.ref[FakeCall]":
    """A call that has ended, without holding it."""
    assert call.is_gone or call.ended is not None
    return weakref.ref(call)


def run(scenario: Scenario, **overrides: str) -> None:
    """Run a scenario in a world with these settings (area__key=value)."""

    async def main() -> None:
        settings = {key.replace("__", "."): value for key, value in overrides.items()}
        world = ProxyWorld(load(None, environment={}, overrides=settings))
        await world.world.settle()
        await scenario(world)

    asyncio.run(main())


def resource(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def message(
    body: bytes = b"hello",
    topic: str = "normal",
    properties: Mapping[str, str] | None = None,
    due_ms: int | None = None,
    **system: Any,
) -> pb.Message:
    """A message as a producer sends it; `due_ms` is its delivery time."""
    system.setdefault("message_id", "id1")
    made = pb.Message(
        topic=resource(topic),
        body=body,
        user_properties=properties or {},
        system_properties=pb.SystemProperties(**system),
    )
    if due_ms is not None:
        made.system_properties.delivery_timestamp.CopyFrom(to_timestamp(due_ms))
    return made


def receive_request(
    topic: str = "normal",
    group: str = "billing",
    batch: int = 32,
    invisible_ms: int | None = 30_000,
    poll_ms: int | None = 5_000,
    **other: Any,
) -> rpc.ReceiveMessageRequest:
    queue = pb.MessageQueue(topic=resource(topic), id=other.pop("queue_id", 0))
    request = rpc.ReceiveMessageRequest(
        group=resource(group), message_queue=queue, batch_size=batch, **other
    )
    if invisible_ms is not None:
        request.invisible_duration.CopyFrom(to_duration(invisible_ms))
    if poll_ms is not None:
        request.long_polling_timeout.CopyFrom(to_duration(poll_ms))
    return request


def ack_request(*handles: str, topic: str = "normal", group: str = "billing") -> Message:
    entries = [
        rpc.AckMessageEntry(message_id=f"m{number}", receipt_handle=handle)
        for number, handle in enumerate(handles)
    ]
    return rpc.AckMessageRequest(topic=resource(topic), group=resource(group), entries=entries)


def change_request(handle: str, invisible_ms: int, **other: Any) -> Message:
    request = rpc.ChangeInvisibleDurationRequest(
        topic=resource("normal"), group=resource("billing"), receipt_handle=handle, **other
    )
    request.invisible_duration.CopyFrom(to_duration(invisible_ms))
    return request


def producer_settings(*topics: str) -> pb.Settings:
    return pb.Settings(
        client_type=pb.PRODUCER,
        publishing=pb.Publishing(topics=[resource(topic) for topic in topics]),
    )


def consumer_settings(
    group: str = "billing",
    topic: str = "normal",
    kind: pb.ClientType.ValueType = pb.SIMPLE_CONSUMER,
    expression: pb.FilterExpression | None = None,
) -> pb.Settings:
    wanted = expression or pb.FilterExpression(type=pb.TAG, expression="*")
    entry = pb.SubscriptionEntry(topic=resource(topic), expression=wanted)
    return pb.Settings(
        client_type=kind,
        request_timeout=Duration(seconds=3),
        subscription=pb.Subscription(group=resource(group), subscriptions=[entry]),
    )


def handle_of(one: pb.Message) -> str:
    return one.system_properties.receipt_handle
