"""One descriptor pool for our protocol files, and how modules fill themselves from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["POOL", "Duration", "Method", "Timestamp", "load", "methods"]

_FILE_TAG = 1 << 3 | 2


def _filled_pool() -> descriptor_pool.DescriptorPool:
    # Not importlib.resources, which imports zipfile and tempfile: 4 ms of every start.
    described = Path(__file__).with_name("descriptors.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in _files(described):
        pool.AddSerializedFile(file)
    return pool


def _files(described: bytes) -> Iterator[bytes]:
    """The files of a FileDescriptorSet, which has nothing but `repeated file = 1`.

    descriptor_pb2 could read it, and would take longer than all else here.
    """
    position = 0
    while position < len(described):
        assert described[position] == _FILE_TAG, "no FileDescriptorSet"
        position += 1
        length = shift = 0
        while True:
            byte = described[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        yield described[position : position + length]
        position += length


POOL = _filled_pool()


def _message_class(full_name: str) -> Any:  # noqa: ANN401 - the class is made at run time
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(full_name))


if not TYPE_CHECKING:
    Timestamp = _message_class("google.protobuf.Timestamp")
    Duration = _message_class("google.protobuf.Duration")


def load(file: str, namespace: dict[str, Any]) -> None:
    """Put the classes, enums and enum values of one .proto file into a module's globals."""
    descriptor = POOL.FindFileByName(file)
    namespace["DESCRIPTOR"] = descriptor
    for name, message in descriptor.message_types_by_name.items():
        namespace[name] = message_factory.GetMessageClass(message)
    for name, enum in descriptor.enum_types_by_name.items():
        namespace[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        namespace.update({value.name: value.number for value in enum.values})


class Method(NamedTuple):
    """One RPC: its HTTP/2 path, its message classes, and which sides stream."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    client_streams: bool
    server_streams: bool


def methods(service: str) -> tuple[Method, ...]:
    """List the RPCs of `service` (a full name) in the order of its .proto file.

    Raises:
        KeyError: No file of this package declares the service.
    """
    return tuple(
        Method(
            name=method.name,
            path=f"/{service}/{method.name}",
            request=message_factory.GetMessageClass(method.input_type),
            response=message_factory.GetMessageClass(method.output_type),
            client_streams=method.client_streaming,
            server_streams=method.server_streaming,
        )
        for method in POOL.FindServiceByName(service).methods
    )
