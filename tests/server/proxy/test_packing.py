"""A client that asks for it gets many messages of a stream in one; all others one by one."""

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import packed_pb2, service_pb2
from cosmodrome_server.proxy.packing import PACK_BYTES, PACKED
from tests.support.proxy_world import METHODS, FakeCall, ProxyWorld, message, receive_request, run

ASKED = {PACKED: "1"}


async def replies(world: ProxyWorld, headers: dict[str, str]) -> list[bytes]:
    call = FakeCall(receive_request().SerializeToString(), headers=headers)
    world.handlers[METHODS["ReceiveMessage"].path](call)
    await world.world.settle()
    return call.messages


def test_whoever_asks_gets_status_messages_and_timestamp_in_one() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a"), message(b"b"))
        (only,) = await replies(world, ASKED)
        pack = packed_pb2.PackedReceive.FromString(only)
        assert pack.status.code == pb.OK
        assert [one.body for one in pack.messages] == [b"a", b"b"]
        assert pack.delivery_timestamp.ToMilliseconds() == world.clocks.now_ms()

    run(scenario)


def test_whoever_does_not_gets_one_response_after_the_other() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a"), message(b"b"))
        frames = [
            service_pb2.ReceiveMessageResponse.FromString(one) for one in await replies(world, {})
        ]
        kinds = [one.WhichOneof("content") for one in frames]
        assert kinds == ["status", "message", "message", "delivery_timestamp"]

    run(scenario)


def test_under_strict_nothing_is_packed() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message(b"a"))
        assert len(await replies(world, ASKED)) == 3

    run(scenario, server__strict="true")


def test_a_single_response_reads_as_a_pack_of_one() -> None:
    status = service_pb2.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND))
    pack = packed_pb2.PackedReceive.FromString(status.SerializeToString())
    assert pack.status.code == pb.MESSAGE_NOT_FOUND
    assert not pack.messages
    end = service_pb2.PullMessageResponse(next_offset=0)
    assert packed_pb2.PackedPull.FromString(end.SerializeToString()).HasField("next_offset")


@pytest.mark.parametrize("bodies", [(3, 1), (1, 3), (2, 2), (1,)])
def test_large_messages_are_not_gathered_into_one_larger_one(bodies: tuple[int, ...]) -> None:
    async def scenario(world: ProxyWorld) -> None:
        sizes = [part * PACK_BYTES * 2 // 5 for part in bodies]
        await world.send(*(message(bytes(size)) for size in sizes))
        packs = await replies(world, ASKED)
        read = [packed_pb2.PackedReceive.FromString(one) for one in packs]
        assert [len(one.body) for pack in read for one in pack.messages] == sizes
        assert all(len(pack.messages) <= 1 for pack in read)
        assert read[0].HasField("status")
        assert read[-1].HasField("delivery_timestamp")

    run(scenario)
