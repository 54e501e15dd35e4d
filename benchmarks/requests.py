"""Requests as a load generator sends them: encoded once, framed, in files."""

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from cosmodrome_proto import definition_pb2, service_pb2

BODY_BYTES = 1024
OK = definition_pb2.OK
METADATA = (
    ("x-mq-client-id", "bench@1@0@x"),
    ("x-mq-language", "JAVA"),
    ("x-mq-client-version", "5.2.0"),
    ("x-mq-protocol", "v2"),
    ("x-mq-date-time", "20261121T000000Z"),
)
SERVICE = "apache.rocketmq.v2.MessagingService"


def send_request(topic: str, messages: int, body_bytes: int = BODY_BYTES) -> bytes:
    """A SendMessageRequest as official clients write it: tag, key, id, born time and host."""
    request = service_pb2.SendMessageRequest()
    for index in range(messages):
        message = request.messages.add()
        message.topic.name = topic
        message.body = bytes(body_bytes)
        system = message.system_properties
        system.tag = "a"
        system.keys.append("k1")
        system.message_id = f"01{index:032X}"
        system.message_type = definition_pb2.NORMAL
        system.body_encoding = definition_pb2.IDENTITY
        system.born_timestamp.FromMilliseconds(1_767_323_045_000)
        system.born_host = "bench"
    return request.SerializeToString()


def send_one(endpoint: str, topic: str) -> int:
    """Send a message; the status code of the answer."""
    with grpc.insecure_channel(endpoint) as channel:
        send = channel.unary_unary(
            f"/{SERVICE}/SendMessage",
            request_serializer=bytes,
            response_deserializer=service_pb2.SendMessageResponse.FromString,
        )
        answer = send(send_request(topic, 1), metadata=METADATA, timeout=30, wait_for_ready=True)
    return int(answer.status.code)


@contextmanager
def framed_file(message: bytes) -> Iterator[Path]:
    """A file that holds one gRPC frame."""
    with tempfile.NamedTemporaryFile(suffix=".grpc") as file:
        file.write(struct.pack(">BI", 0, len(message)) + message)
        file.flush()
        yield Path(file.name)
