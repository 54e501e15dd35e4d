"""grpc.health.v1, hand-packed, against the library's own messages."""

from grpc_health.v1 import health_pb2

from cosmodrome_server.proxy.front import GrpcStatus
from cosmodrome_server.proxy.health import Health, Serving
from tests.support.proxy_world import FakeCall


def ask(service: str) -> bytes:
    encoded: bytes = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return encoded


def told(message: bytes) -> str:
    response = health_pb2.HealthCheckResponse.FromString(message)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


def test_a_server_is_not_serving_before_its_start_and_in_its_drain() -> None:
    health = Health(["test.T"])
    for state, word in (
        (None, "NOT_SERVING"),
        (Serving.SERVING, "SERVING"),
        (Serving.NOT_SERVING, "NOT_SERVING"),
    ):
        if state is not None:
            health.set(state)
        for service in ("", "test.T"):
            call = FakeCall(ask(service))
            health.check(call)
            assert told(call.messages[0]) == word


def test_a_service_that_is_not_there_is_not_found() -> None:
    call = FakeCall(ask("other"))
    Health(["test.T"]).check(call)
    assert call.ended is not None
    assert call.ended[0] is GrpcStatus.NOT_FOUND


def test_rubbish_is_an_invalid_argument() -> None:
    call = FakeCall(b"\x0a\xff")
    Health([]).check(call)
    assert call.ended is not None
    assert call.ended[0] is GrpcStatus.INVALID_ARGUMENT


def test_a_watch_hears_of_each_change_until_it_goes_away() -> None:
    health = Health(["test.T"])
    call, stranger = FakeCall(), FakeCall()
    for one, service in ((call, "test.T"), (stranger, "other")):
        health.watch(one)
        one.say(health_pb2.HealthCheckRequest(service=service))
        one.say(None)
        assert one.ended is None, "half-closing is how every watch begins"
    health.set(Serving.SERVING)
    assert [told(one) for one in call.messages] == ["NOT_SERVING", "SERVING"]
    assert [told(one) for one in stranger.messages] == ["SERVICE_UNKNOWN"] * 2
    stranger.cancel()
    health.close()
    assert call.ended is not None


def test_at_the_end_also_a_watch_ends_that_asked_nothing() -> None:
    health = Health([])
    silent, half_closed, gone, late = (FakeCall() for _ in range(4))
    for call in (silent, half_closed, gone):
        health.watch(call)
    half_closed.say(None)
    gone.cancel()
    refused = FakeCall()
    health.watch(refused)
    assert refused._on_message is not None
    refused._on_message(b"\x0a\xff")
    health.close()
    health.watch(late)
    for call in (silent, half_closed, late):
        assert call.ended == (GrpcStatus.OK, "")
    assert gone.ended is None
