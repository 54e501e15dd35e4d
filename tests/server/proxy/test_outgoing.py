"""What is on its way to a consumer."""

import sys

from cosmodrome_server.model.log import MessageRecord, MessageState
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.proxy.outgoing import Outgoing
from tests.support.proxy_world import FakeCall, ProxyWorld, run


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
