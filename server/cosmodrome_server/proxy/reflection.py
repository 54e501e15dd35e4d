"""Server reflection (v1 and v1alpha, which are one on the wire), for grpcurl and its like.

Answers from our own descriptor pool, so that what tools see is exactly what is served.
On under --dev; `server.reflection` decides otherwise.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from cosmodrome_proto import POOL
from cosmodrome_server.proxy.front import Call, GrpcStatus
from cosmodrome_server.proxy.open_streams import OpenStreams

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
_NOT_FOUND = int(GrpcStatus.NOT_FOUND)


class Reflection:
    """Says which services there are and what their messages look like.

    Args:
        services: Their full names.
        streams: Whoever ends those that clients keep open.
    """

    def __init__(self, services: Sequence[str], streams: OpenStreams) -> None:
        self._services = sorted(services)
        self._streams = streams

    def inform(self, call: Call) -> None:
        """Answer `ServerReflectionInfo`: one response for each request."""
        # Its descriptors live in the default pool and cost an import that few need.
        from grpc_reflection.v1alpha import reflection_pb2 as wire  # noqa: PLC0415 - see above

        def take(message: bytes | None) -> None:
            if message is None:
                self._streams.forget(call)
                call.finish()
                return
            try:
                request = wire.ServerReflectionRequest.FromString(message)
            except DecodeError:
                self._streams.forget(call)
                call.finish(GrpcStatus.INVALID_ARGUMENT, "not a ServerReflectionRequest")
                return
            answer = wire.ServerReflectionResponse(
                valid_host=request.host, original_request=request
            )
            self._fill(answer, request)
            call.send(answer.SerializeToString())

        if self._streams.begin(call):
            call.on_message(take)

    def _fill(self, answer: Any, request: Any) -> None:  # noqa: ANN401 - generated without stubs
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._files(answer, POOL.FindFileByName, request.file_by_filename)
            case "file_containing_symbol":
                self._files(answer, POOL.FindFileContainingSymbol, request.file_containing_symbol)
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                self._refuse_unless_known(answer, name)
            case _:
                _refuse(answer, "nothing here has extensions")

    def _files(self, answer: Any, find: Any, name: str) -> None:  # noqa: ANN401 - see above
        try:
            found = find(name)
        except KeyError:
            _refuse(answer, f"{name} is not known here")
            return
        answer.file_descriptor_response.file_descriptor_proto.extend(
            file.serialized_pb for file in _with_dependencies(found)
        )

    def _refuse_unless_known(self, answer: Any, name: str) -> None:  # noqa: ANN401 - see above
        try:
            POOL.FindMessageTypeByName(name)
        except KeyError:
            _refuse(answer, f"{name} is not known here")
        else:
            answer.all_extension_numbers_response.base_type_name = name


def _refuse(answer: Any, why: str) -> None:  # noqa: ANN401 - see above
    answer.error_response.error_code = _NOT_FOUND
    answer.error_response.error_message = why


def _with_dependencies(file: "FileDescriptor") -> list["FileDescriptor"]:
    """The file and all it imports, each once."""
    found: dict[str, FileDescriptor] = {}
    todo = [file]
    while todo:
        one = todo.pop()
        if one.name not in found:
            found[one.name] = one
            todo += one.dependencies
    return list(found.values())
