"""A grpcio server of a dense topic: the pull verbs and SendMessage, nothing else.

It stands in for any RocketMQ 5 server that has PullMessage but none of our extensions.
The same reader tests run against it and against our own server.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from cosmodrome_proto import Timestamp, methods
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs

BROKER = "broker-a"
SERVICE = "apache.rocketmq.v2.MessagingService"


@dataclass
class Queue:
    """A queue's messages; `min_offset` is what retention left."""

    messages: list[pb.Message] = field(default_factory=list)
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return len(self.messages)


class PullServer:
    """Topics in memory behind a real gRPC port of the loopback."""

    def __init__(self, batch_size_max: int = 32) -> None:
        self.topics: dict[str, list[Queue]] = {}
        self.committed: dict[tuple[str, str, int], int] = {}
        self.batch_size_max = batch_size_max
        self.sends_to_refuse = 0
        self.pulls_to_refuse = 0
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers([self._handlers()])
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    @property
    def endpoints(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def create(self, topic: str, queues: int) -> None:
        self.topics[topic] = [Queue() for _ in range(queues)]

    def fill(self, topic: str, queue_id: int, count: int, **properties: str) -> None:
        """Append `count` messages whose contents follow from their place."""
        for _ in range(count):
            self.append(
                topic, queue_id, sample(topic, queue_id, self.end(topic, queue_id), **properties)
            )

    def end(self, topic: str, queue_id: int) -> int:
        return self.topics[topic][queue_id].max_offset

    def append(self, topic: str, queue_id: int, message: pb.Message) -> int:
        queue = self.topics[topic][queue_id]
        stored = pb.Message.FromString(message.SerializeToString())
        system = stored.system_properties
        system.queue_id, system.queue_offset = queue_id, queue.max_offset
        system.store_timestamp.CopyFrom(at_ms(1_700_000_000_000 + 10 * queue.max_offset))
        system.store_host = "127.0.0.1:10911"
        queue.messages.append(stored)
        return queue.max_offset - 1

    def _handlers(self) -> Any:
        by_name: dict[str, Callable[..., Any]] = {
            "QueryRoute": self._query_route,
            "QueryOffset": self._query_offset,
            "GetOffset": self._get_offset,
            "UpdateOffset": self._update_offset,
            "PullMessage": self._pull,
            "SendMessage": self._send,
        }
        table = {}
        for method in methods(SERVICE):
            if method.name not in by_name:
                continue
            make = (
                grpc.unary_stream_rpc_method_handler
                if method.server_streams
                else grpc.unary_unary_rpc_method_handler
            )
            table[method.name] = make(
                by_name[method.name],
                request_deserializer=method.request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(SERVICE, table)

    def _query_route(self, request: Any, _: Any) -> Any:
        name = request.topic.name
        if name not in self.topics:
            return verbs.QueryRouteResponse(status=no_topic(name))
        queues = [
            pb.MessageQueue(
                topic=pb.Resource(name=name),
                id=queue_id,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=BROKER, id=0),
            )
            for queue_id in range(len(self.topics[name]))
        ]
        return verbs.QueryRouteResponse(status=OK, message_queues=queues)

    def _find(self, queue: pb.MessageQueue) -> Queue | pb.Status:
        if queue.topic.name not in self.topics:
            return no_topic(queue.topic.name)
        queues = self.topics[queue.topic.name]
        if queue.id >= len(queues):
            return pb.Status(code=pb.BAD_REQUEST, message=f"no queue {queue.id}")
        return queues[queue.id]

    def _query_offset(self, request: Any, _: Any) -> Any:
        queue = self._find(request.message_queue)
        if isinstance(queue, pb.Status):
            return verbs.QueryOffsetResponse(status=queue)
        if request.query_offset_policy == pb.BEGINNING:
            offset = queue.min_offset
        elif request.query_offset_policy == pb.END:
            offset = queue.max_offset
        else:
            asked = request.timestamp.ToMilliseconds()
            times = [m.system_properties.store_timestamp.ToMilliseconds() for m in queue.messages]
            offset = next((i for i, time in enumerate(times) if time >= asked), queue.max_offset)
        return verbs.QueryOffsetResponse(status=OK, offset=offset)

    def _get_offset(self, request: Any, _: Any) -> Any:
        key = (request.group.name, request.message_queue.topic.name, request.message_queue.id)
        if key not in self.committed:
            return verbs.GetOffsetResponse(status=pb.Status(code=pb.OFFSET_NOT_FOUND))
        return verbs.GetOffsetResponse(status=OK, offset=self.committed[key])

    def _update_offset(self, request: Any, _: Any) -> Any:
        key = (request.group.name, request.message_queue.topic.name, request.message_queue.id)
        self.committed[key] = request.offset
        return verbs.UpdateOffsetResponse(status=OK)

    def _pull(self, request: Any, _: Any) -> Iterator[Any]:
        reply = verbs.PullMessageResponse
        queue = self._find(request.message_queue)
        if isinstance(queue, pb.Status):
            yield reply(status=queue)
            return
        if self.pulls_to_refuse:
            self.pulls_to_refuse -= 1
            yield reply(status=pb.Status(code=pb.TOO_MANY_REQUESTS))
            return
        if not queue.min_offset <= request.offset <= queue.max_offset:
            nearest = queue.min_offset if request.offset < queue.min_offset else queue.max_offset
            yield reply(status=pb.Status(code=pb.ILLEGAL_OFFSET))
            yield reply(next_offset=nearest)
            return
        end = request.offset + min(request.batch_size, self.batch_size_max)
        found = queue.messages[request.offset : end]
        wanted = request.filter_expression.expression
        chosen = [m for m in found if wanted in {"*", "", m.system_properties.tag}]
        yield reply(status=OK if chosen else pb.Status(code=pb.MESSAGE_NOT_FOUND))
        for message in chosen:
            yield reply(message=message)
        yield reply(next_offset=request.offset + len(found))

    def _send(self, request: Any, _: Any) -> Any:
        name = request.messages[0].topic.name
        if name not in self.topics:
            return verbs.SendMessageResponse(status=no_topic(name))
        if self.sends_to_refuse:
            self.sends_to_refuse -= 1
            return verbs.SendMessageResponse(status=pb.Status(code=pb.TOO_MANY_REQUESTS))
        entries = []
        for message in request.messages:
            offset = self.append(name, message.system_properties.queue_id, message)
            message_id = message.system_properties.message_id
            entries.append(verbs.SendResultEntry(status=OK, message_id=message_id, offset=offset))
        return verbs.SendMessageResponse(status=OK, entries=entries)


OK = pb.Status(code=pb.OK, message="OK")


def no_topic(name: str) -> pb.Status:
    return pb.Status(code=pb.TOPIC_NOT_FOUND, message=f"no topic {name}")


def at_ms(time_ms: int) -> Any:
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def sample(topic: str, queue_id: int, offset: int, **properties: str) -> pb.Message:
    """A message whose every field follows from its place."""
    return pb.Message(
        topic=pb.Resource(name=topic),
        user_properties={"place": f"{queue_id}-{offset}", **properties},
        system_properties=pb.SystemProperties(
            tag="odd" if offset % 2 else "even",
            keys=[f"k{offset}", "all"][: offset % 3],
            message_id=f"{topic}-{queue_id}-{offset}",
            message_type=pb.NORMAL,
            born_timestamp=at_ms(1_690_000_000_000 + offset),
            born_host="127.0.0.1",
        ),
        body=f'{{"queue": {queue_id}, "offset": {offset}}}'.encode(),
    )
