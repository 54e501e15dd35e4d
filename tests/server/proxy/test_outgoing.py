"""What is on its way to a consumer."""

import asyncio
import sys

import pytest

from cosmodrome_server.errors import StoreFull
from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.proxy.outgoing import Outgoing
from tests.support.proxy_world import FakeCall, ProxyWorld, message, receive_request, run


def test_of_messages_on_their_way_nothing_is_held_but_what_was_encoded() -> None:
    async def scenario(world: ProxyWorld) -> None:
        record = MessageRecord(MessageState.VISIBLE, 1, 0, 0, 0, 1, 0, b"", b"", bytes(1_000))
        held = sys.getrefcount(record)
        call, deliveries = FakeCall(), [Delivery("normal", record, "handle", 1, 30_000)]
        outgoing = Outgoing(call, [b"encoded"], world.world.broker, "billing", deliveries)
        del deliveries
        assert sys.getrefcount(record) == held
        outgoing.write()
        assert call.messages == [b"encoded"]

    run(scenario)


def test_on_a_full_disk_what_a_client_left_is_not_given_back_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("the disk is full")

    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        await world.world.settle()
        call = world.begin("ReceiveMessage", receive_request(invisible_ms=30_000))
        await asyncio.sleep(0)  # to the end of the turn: taken, not yet written
        with monkeypatch.context() as on_full_disk:
            on_full_disk.setattr(world.world.broker, "return_undelivered", full)
            call.cancel()
        assert await world.receive_nothing()
        await world.later(31_000)
        (again,) = await world.receive()
        assert again.body == b"hello"

    run(scenario)
    assert "1 messages whose client of group billing went away" in caplog.text
    assert "the disk is full" in caplog.text
