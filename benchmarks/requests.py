"""Requests as a load generator sends them: encoded once, framed, in files."""

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmodrome_proto import definition_pb2, service_pb2

BODY_BYTES = 1024


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


@contextmanager
def framed_file(message: bytes) -> Iterator[Path]:
    """A file that holds one gRPC frame."""
    with tempfile.NamedTemporaryFile(suffix=".grpc") as file:
        file.write(struct.pack(">BI", 0, len(message)) + message)
        file.flush()
        yield Path(file.name)
