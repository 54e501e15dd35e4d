"""Our wire against the official client's: same names, same numbers, one process."""

import subprocess
import sys
from collections.abc import Mapping

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from rocketmq.grpc_protocol import admin_pb2 as official_admin
from rocketmq.grpc_protocol import definition_pb2 as official_definition
from rocketmq.grpc_protocol import service_pb2 as official_service

from cosmodrome_proto import admin_pb2, definition_pb2, methods, service_pb2

PAIRS = [
    pytest.param(definition_pb2.DESCRIPTOR, official_definition.DESCRIPTOR, id="definition"),
    pytest.param(service_pb2.DESCRIPTOR, official_service.DESCRIPTOR, id="service"),
    pytest.param(admin_pb2.DESCRIPTOR, official_admin.DESCRIPTOR, id="admin"),
]


def fields(message: Descriptor) -> dict[str, tuple[object, ...]]:
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.message_type.full_name if field.message_type else None,
            field.enum_type.full_name if field.enum_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in message.fields
    }


def messages(file: FileDescriptor) -> dict[str, dict[str, tuple[object, ...]]]:
    found = {}
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        found[message.full_name] = fields(message)
        waiting += message.nested_types
    return found


def enums(file: FileDescriptor) -> dict[str, dict[str, int]]:
    found: list[EnumDescriptor] = list(file.enum_types_by_name.values())
    for message in file.message_types_by_name.values():
        found += message.enum_types
    return {enum.full_name: {value.name: value.number for value in enum.values} for enum in found}


def rpcs(file: FileDescriptor) -> dict[str, tuple[str, str, bool, bool]]:
    return {
        method.full_name: (
            method.input_type.full_name,
            method.output_type.full_name,
            method.client_streaming,
            method.server_streaming,
        )
        for service in file.services_by_name.values()
        for method in service.methods
    }


def lacking(
    ours: Mapping[str, Mapping[str, object]], theirs: Mapping[str, Mapping[str, object]]
) -> list[str]:
    return [
        f"{name}.{member}: ours {ours.get(name, {}).get(member)}, theirs {expected}"
        for name, members in theirs.items()
        for member, expected in members.items()
        if ours.get(name, {}).get(member) != expected
    ]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_field_of_the_official_client_is_ours(
    ours: FileDescriptor, theirs: FileDescriptor
) -> None:
    assert lacking(messages(ours), messages(theirs)) == []


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_enum_value_of_the_official_client_is_ours(
    ours: FileDescriptor, theirs: FileDescriptor
) -> None:
    assert lacking(enums(ours), enums(theirs)) == []


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_every_rpc_of_the_official_client_is_ours(
    ours: FileDescriptor, theirs: FileDescriptor
) -> None:
    assert rpcs(ours).items() >= rpcs(theirs).items()


def test_the_services_are_whole() -> None:
    assert len(methods("apache.rocketmq.v2.MessagingService")) == 17
    assert len(methods("apache.rocketmq.v2.Admin")) == 16


@pytest.mark.parametrize("first", ["rocketmq", "cosmodrome_proto.service_pb2"])
def test_both_clients_live_in_one_process(first: str) -> None:
    code = f"import {first}; import rocketmq; import cosmodrome_proto.service_pb2"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
