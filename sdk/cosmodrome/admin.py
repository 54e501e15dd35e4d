"""The operator's client: topics, groups, progress, dead letters, what waits, from Python.

    async with AdminClient("127.0.0.1:8081") as admin:
        await admin.create_topic("orders", topic_type="FIFO", queues=8)
        print(await admin.lag("billing"))

Speaks `cosmodrome.v1.Control` for changes and `apache.rocketmq.v2.Admin` for looking.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self, cast

import grpc.aio
from google.protobuf.message import Message as WireMessage

from cosmodrome._client import channels
from cosmodrome._client.channels import Channel
from cosmodrome._client.client import new_client_id
from cosmodrome._client.rpc import translated
from cosmodrome._core import convert, status
from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core.signature import Identity, signed
from cosmodrome.config import ClientConfiguration
from cosmodrome.credentials import asked
from cosmodrome.errors import ConsumerGroupNotFound, IllegalArgument, NotRunning
from cosmodrome.message import MessageView
from cosmodrome_proto import admin_pb2, control_pb2, methods
from cosmodrome_proto import definition_pb2 as pb

CONTROL, ADMIN = "cosmodrome.v1.Control", "apache.rocketmq.v2.Admin"
_METHODS = {
    (service, method.name): method for service in (CONTROL, ADMIN) for method in methods(service)
}


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and what its queues hold.

    Attributes:
        name, topic_type: As it was created.
        queues: Queue id → (first offset, next offset).
        redriven: Of a group's dead letters (`%DLQ%group`) those that were sent back.
    """

    name: str
    topic_type: str
    queues: Mapping[int, tuple[int, int]]
    redriven: int = 0

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return sum(end - start for start, end in self.queues.values())


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a group is on a topic."""

    topic: str
    ready: int
    in_flight: int


class AdminClient:
    """Changes and looks.

    Args:
        configuration: Where the broker is; its credentials need the rights.
    """

    def __init__(self, configuration: ClientConfiguration | str) -> None:
        self._configuration = ClientConfiguration.of(configuration)
        self._endpoints = endpoint_text.parse(self._configuration.endpoints)
        self._fixed = Identity(new_client_id(), self._configuration.namespace).fixed()
        self._channel: Channel | None = None

    def __repr__(self) -> str:
        return f"<AdminClient at {self._endpoints}>"

    async def start(self) -> Self:
        """Open the connection."""
        if self._channel is None:
            tls = self._configuration.tls
            self._channel = await channels.borrow(self._endpoints, tls)
        return self

    async def close(self) -> None:
        """Close it; again is fine."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channels.give_back(channel, self._configuration.tls)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create_topic(
        self,
        name: str,
        *,
        topic_type: str = "",
        queues: int = 0,
        retention: timedelta | None = None,
    ) -> None:
        """Create a topic, or change what is given of one.

        Args:
            name: The topic.
            topic_type: NORMAL (the default of a new one), FIFO, DELAY, TRANSACTION, MIXED, LITE
                or PRIORITY; it stays for ever.
            queues: How many message queues; 0 for the broker's default. They may only grow.
            retention: How long its messages are kept at least; zero for the broker's.

        Raises:
            BadRequest: Another type, or fewer queues than it has.
        """
        topic = control_pb2.Topic(name=name, type=topic_type.upper(), queues=queues)
        if retention is not None:
            topic.retention.FromTimedelta(retention)
        await self._call(CONTROL, "CreateTopic", control_pb2.CreateTopicRequest(topic=topic))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        await self._call(CONTROL, "DeleteTopic", control_pb2.DeleteTopicRequest(name=name))

    async def topics(self, prefix: str = "") -> list[TopicInfo]:
        """List topics by name."""
        request = control_pb2.ListTopicsRequest(prefix=prefix)
        found = await self._call(CONTROL, "ListTopics", request)
        return [
            TopicInfo(
                state.topic.name,
                state.topic.type,
                {q.queue_id: (q.min_offset, q.max_offset) for q in state.queues},
                state.redriven,
            )
            for state in found.topics
        ]

    async def create_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int = 0,
        consume_from: str = "",
        lite_bind_topic: str = "",
        paused: bool | None = None,
    ) -> None:
        """Create a consumer group, or change what is given of one.

        Args:
            name: The group.
            fifo: Whether the messages of a message group are delivered in order.
            max_attempts: Deliveries before a message is a dead letter; 0 for the default, 17.
            consume_from: Where it begins: auto, first or last.
            lite_bind_topic: The LITE topic a lite group reads.
            paused: Whether receives are refused.
        """
        group = control_pb2.Group(
            name=name,
            fifo=fifo,
            max_attempts=max_attempts,
            consume_from=consume_from,
            lite_bind_topic=lite_bind_topic,
            paused=paused,
        )
        await self._call(CONTROL, "CreateGroup", control_pb2.CreateGroupRequest(group=group))

    async def delete_group(self, name: str) -> None:
        """Delete a group with its progress."""
        await self._call(CONTROL, "DeleteGroup", control_pb2.DeleteGroupRequest(name=name))

    async def groups(self, prefix: str = "") -> list[str]:
        """Names of consumer groups."""
        request = control_pb2.ListGroupsRequest(prefix=prefix)
        found = await self._call(CONTROL, "ListGroups", request)
        return [state.group.name for state in found.groups]

    async def lag(self, group: str) -> list[Lag]:
        """How far behind a group is, topic by topic.

        Raises:
            ConsumerGroupNotFound: There is no such group.
        """
        request = control_pb2.ListGroupsRequest(prefix=group, lag=True)
        found = await self._call(CONTROL, "ListGroups", request)
        state = next((each for each in found.groups if each.group.name == group), None)
        if state is None:
            raise ConsumerGroupNotFound(f"there is no consumer group {group}")
        return [Lag(each.topic, each.ready, each.inflight) for each in state.progress]

    async def reset_offset(
        self, group: str, topic: str, to: datetime | str, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Move a group to a moment, "first" or "last"; returns queue → offset."""
        request = control_pb2.ResetOffsetRequest(group=group, topic=topic, queue_id=queue_id)
        if isinstance(to, datetime):
            request.timestamp.FromMilliseconds(convert.milliseconds(to))
        elif to in ("first", "last"):
            request.policy = pb.BEGINNING if to == "first" else pb.END
        else:
            raise IllegalArgument(f"a reset goes to a datetime, first or last, not {to!r}")
        moved = await self._call(CONTROL, "ResetOffset", request)
        return {offset.queue_id: offset.offset for offset in moved.offsets}

    async def redrive(
        self, group: str, *, topic: str = "", max_messages: int = 0, rate: int = 0
    ) -> int:
        """Send dead letters back where they came from; returns how many went.

        Args:
            group: Whose dead letters.
            topic: Only those that came from this topic.
            max_messages: How many at most; 0 for all.
            rate: How many a second, so that the consumers keep up; 0 for no bound.

        Raises:
            IllegalArgument: A number below 0.
            ConsumerGroupNotFound: There is no such group.
        """
        if max_messages < 0 or rate < 0:
            raise IllegalArgument("max_messages and rate of a redrive are 0 or more")
        request = control_pb2.RedriveRequest(group=group, topic=topic)
        moved = 0
        while True:
            left = max_messages and max_messages - moved
            request.max_messages = min(filter(None, (left, rate)), default=0)
            answer = await self._call(CONTROL, "Redrive", request)
            moved += int(answer.moved)
            request.from_offset = answer.next_offset
            if not answer.next_offset or (max_messages and moved >= max_messages):
                return moved
            if rate:
                await asyncio.sleep(answer.moved / rate)

    async def find(
        self, topic: str, *, message_id: str = "", key: str = "", max_messages: int = 32
    ) -> list[MessageView]:
        """Find stored messages by id or key; none for none."""
        request = admin_pb2.ListMessageRequest(
            topic=pb.Resource(name=topic), max_message_nums=max_messages
        )
        if bool(message_id) == bool(key):
            raise IllegalArgument("find by message_id or by key")
        if message_id:
            request.message_id = message_id
        else:
            request.message_key = key
        answer = await self._call(ADMIN, "QueryMessage", request, empty=pb.MESSAGE_NOT_FOUND)
        return [convert.view(message, str(self._endpoints)) for message in answer.messages]

    async def consumers(self, group: str) -> list[str]:
        """Client ids of the consumers of a group that are online."""
        request = admin_pb2.ListConsumerConnectionRequest(group=pb.Resource(name=group))
        answer = await self._call(ADMIN, "ListConsumerConnection", request)
        return [client.client_id for client in answer.client_info]

    async def verify(self, client_id: str, group: str, topic: str, message_id: str) -> None:
        """Have one connected consumer consume one stored message, beside its deliveries.

        Raises:
            InternalError: Its listener failed.
            NotFound: There is no such client, or no such message.
            StatusError: As said; a client without a listener does not implement it.
        """
        request = admin_pb2.VerifyMessageRequest(
            client_id=client_id,
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            message_id=message_id,
        )
        await self._call(ADMIN, "VerifyMessage", request)

    async def stacks(self, client_id: str, group: str = "") -> str:
        """The stacks of a connected client's threads and tasks."""
        request = admin_pb2.PrintThreadStackTraceRequest(
            client_id=client_id, group=pb.Resource(name=group)
        )
        answer = await self._call(ADMIN, "PrintThreadStackTrace", request)
        return str(answer.thread_stack_trace)

    async def _call(
        self, service: str, name: str, request: WireMessage, *, empty: int = pb.OK
    ) -> Any:  # noqa: ANN401 - the response of the method called
        if self._channel is None:
            raise NotRunning("the admin client is not started: use it inside a `with` block")
        method = _METHODS[service, name]
        make = self._channel.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        now = datetime.fromtimestamp(time.time_ns() / 1e9).astimezone()
        metadata, request_id = signed(self._fixed, asked(self._configuration.provider), now)
        timeout_s = self._configuration.request_timeout_s
        try:
            answer = await cast("Any", make)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise translated(error, name, self._endpoints, request_id) from error
        error_ = status.error_of(
            answer.status, endpoint=str(self._endpoints), request_id=request_id
        )
        if error_ is not None and answer.status.code != empty:
            raise error_
        return answer
