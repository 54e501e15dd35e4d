"""A client of the bare protocol: one coroutine per RPC, nothing retried, nothing hidden.

For tests that must see each answer; the SDK would paper over what they look for.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Self

import grpc
import grpc.aio
from google.protobuf.message import Message

from cosmodrome_proto import Duration, Method, methods
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

SERVICES = (
    "apache.rocketmq.v2.MessagingService",
    "apache.rocketmq.v2.Admin",
    "cosmodrome.v1.Control",
)
METHODS: Mapping[str, Method] = {m.name: m for service in SERVICES for m in methods(service)}
OK, NOTHING = pb.OK, pb.MESSAGE_NOT_FOUND

# A server that is killed again and again would be looked for every two minutes only.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class RawClient:
    """One client id on one channel."""

    def __init__(self, endpoint: str, client_id: str = "raw@1@1@test") -> None:
        self._channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        self.metadata: tuple[tuple[str, str], ...] = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", "5.1.2"),
        )
        self._ids = (f"{client_id}-{number}" for number in itertools.count())

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, name: str, request: Message, timeout_s: float = 5.0) -> Message:
        """One unary RPC of any of our services."""
        method = METHODS[name]
        stub = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        answer: Message = await stub(request, timeout=timeout_s, metadata=self.metadata)
        return answer

    async def stream(self, name: str, request: Message, timeout_s: float) -> list[Message]:
        """One server-streaming RPC, read to its end."""
        method = METHODS[name]
        stub = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        call = stub(request, timeout=timeout_s, metadata=self.metadata)
        return [message async for message in call]

    def message(
        self, topic: str, body: bytes, *, message_id: str = "", group: str = ""
    ) -> pb.Message:
        """A message with a fresh id."""
        made = pb.Message(topic=pb.Resource(name=topic), body=body)
        made.system_properties.message_id = message_id or next(self._ids)
        made.system_properties.born_timestamp.GetCurrentTime()
        if group:
            made.system_properties.message_group = group
        return made

    async def send(self, *messages: pb.Message) -> rpc.SendMessageResponse:
        """SendMessage."""
        answer = await self.call("SendMessage", rpc.SendMessageRequest(messages=messages))
        assert isinstance(answer, rpc.SendMessageResponse)
        return answer

    async def receive(
        self, topic: str, group: str, *, most: int = 32, invisible_s: int = 30, wait_s: float = 5
    ) -> tuple[int, list[pb.Message]]:
        """ReceiveMessage on any queue: the status code and the messages."""
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            batch_size=most,
            invisible_duration=Duration(seconds=invisible_s),
            long_polling_timeout=Duration(seconds=int(wait_s)),
        )
        frames = await self.stream("ReceiveMessage", request, timeout_s=wait_s + 3)
        status, messages = 0, []
        for frame in frames:
            assert isinstance(frame, rpc.ReceiveMessageResponse)
            kind = frame.WhichOneof("content")
            if kind == "status":
                status = frame.status.code
            elif kind == "message":
                messages.append(frame.message)
        return status, messages

    async def ack(
        self, topic: str, group: str, messages: Iterable[pb.Message]
    ) -> rpc.AckMessageResponse:
        """AckMessage, one entry per message."""
        request = rpc.AckMessageRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            entries=[
                rpc.AckMessageEntry(
                    message_id=m.system_properties.message_id,
                    receipt_handle=m.system_properties.receipt_handle,
                )
                for m in messages
            ],
        )
        answer = await self.call("AckMessage", request)
        assert isinstance(answer, rpc.AckMessageResponse)
        return answer
