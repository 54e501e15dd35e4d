"""The table: every RPC of the three services, and the boundary around each."""

import logging
from collections.abc import Mapping

import pytest

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.proxy import service
from cosmodrome_server.proxy.activities.admin import ADMIN
from cosmodrome_server.proxy.activities.control import CONTROL
from cosmodrome_server.proxy.bulk.table import BULK
from cosmodrome_server.proxy.front import Kind
from tests.support.proxy_world import METHODS, FakeCall, ProxyWorld, message, resource, run

UNARY = [name for name, method in METHODS.items() if not method.client_streams]
CLIENT_RPCS = [one.name for one in methods(service.MESSAGING_SERVICE) if one.name != "Telemetry"]


def test_every_rpc_of_the_four_services_has_a_route_of_its_kind() -> None:
    async def scenario(world: ProxyWorld) -> None:
        kinds = {route.path: route.kind for route in world.routes}
        for method in METHODS.values():
            wanted = Kind.UNARY
            if method.server_streams:
                wanted = Kind.BIDI if method.client_streams else Kind.SERVER_STREAM
            assert kinds[method.path] is wanted, method.path
        assert len(METHODS) == 17 + 16 + 18 + 5

    run(scenario)


@pytest.mark.parametrize("client_id", [None, "", "  "])
@pytest.mark.parametrize("name", CLIENT_RPCS)
def test_a_call_without_client_id_is_refused(name: str, client_id: str | None) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answers = await world.answer(name, METHODS[name].request(), client_id=client_id)
        assert [one.status.code for one in answers] == [pb.CLIENT_ID_REQUIRED]

    run(scenario)


@pytest.mark.parametrize("name", UNARY)
def test_bytes_that_are_no_request_are_a_bad_request(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = FakeCall(b"\x0a\xff\xff")
        world.handlers[METHODS[name].path](call)
        answer = METHODS[name].response.FromString(call.messages[0])
        if isinstance(answer, admin.ChangeLogLevelResponse):
            assert "ChangeLogLevelRequest" in answer.remark
        else:
            assert answer.status.code == pb.BAD_REQUEST  # type: ignore[attr-defined] # all have it

    run(scenario)


@pytest.mark.parametrize("name", [name for name in UNARY if name not in service.LARGE])
def test_a_request_has_a_bound_where_it_holds_no_bodies(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        unknown = b"\xf2\x3f\x80\x80\xc0\x02" + bytes(5 << 20)  # one field of 5 MiB
        call = FakeCall(unknown)
        world.handlers[METHODS[name].path](call)
        answer = METHODS[name].response.FromString(call.messages[0])
        if isinstance(answer, admin.ChangeLogLevelResponse):
            assert "bytes" in answer.remark
        else:
            assert answer.status.code == pb.BAD_REQUEST  # type: ignore[attr-defined] # all have it
            assert "5242886 bytes" in answer.status.message  # type: ignore[attr-defined] # as above

    run(scenario)


def test_a_method_newer_than_the_server_gets_a_status() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for name in (service.MESSAGING_SERVICE, service.ADMIN_SERVICE, service.CONTROL_SERVICE):
            call = FakeCall()
            world.handlers[f"/{name}/*"](call)
            answer = rpc.HeartbeatResponse.FromString(call.messages[0])
            assert answer.status.code == pb.NOT_IMPLEMENTED

    run(scenario)


def test_a_bug_is_logged_and_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.broker.topic = lambda name: 1 // 0  # type: ignore[assignment,method-assign,return-value] # a bug
        with caplog.at_level(logging.CRITICAL + 1):
            answer = await world.call("QueryRoute", rpc.QueryRouteRequest(topic=resource("normal")))
        assert answer.status.code == pb.INTERNAL_SERVER_ERROR
        assert "division" not in answer.status.message

    run(scenario)


def test_a_reply_is_held_until_what_it_promises_is_durable() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.log.holding = True
        call = world.begin("SendMessage", rpc.SendMessageRequest(messages=[message()]))
        await world.world.settle()
        assert call.ended is None
        await world.world.release()
        assert call.ended is not None

    run(scenario)


def test_answers_are_counted_by_method_and_code() -> None:
    async def scenario(world: ProxyWorld) -> None:
        seen: list[tuple[str, int]] = []
        world.context.observe = lambda name, code: seen.append((name, code))
        await world.send(message())
        await world.send()
        assert seen == [("SendMessage", pb.OK), ("SendMessage", pb.MESSAGE_CORRUPTED)]

    run(scenario)


def test_with_authentication_on_an_unsigned_call_is_unauthorized() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.send(message(), client_id=None)
        assert answer.status.code == pb.UNAUTHORIZED

    run(scenario, security__authentication="true")


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (service.ADMIN_SERVICE, ADMIN),
        (service.CONTROL_SERVICE, CONTROL),
        (service.BULK_SERVICE, BULK),
    ],
)
def test_a_service_that_is_made_at_its_first_call_answers_every_method(
    name: str, table: Mapping[str, object]
) -> None:
    """Its routes are made before its table is known."""
    assert table.keys() == {method.name for method in methods(name)}
