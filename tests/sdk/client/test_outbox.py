"""Messages on their way out: none waits for another that it has nothing to do with."""

import asyncio

from cosmodrome import Message, MessageType, SendReceipt
from cosmodrome._client.in_flight import InFlight
from cosmodrome._client.outbox import Outbox
from cosmodrome._client.sender import Outcome
from cosmodrome._client.tasks import Tasks
from cosmodrome._core.send_queue import Bounds
from cosmodrome_proto import definition_pb2 as pb


class Broker:
    """Answers a request when it is told to: `held` are those of a group that it holds."""

    def __init__(self, *held: str) -> None:
        self._held = set(held)
        self.answer = asyncio.Event()

    async def exchange(
        self, topic: str, kind: MessageType, wires: list[pb.Message]
    ) -> list[Outcome]:
        if self._held & {wire.system_properties.message_group for wire in wires}:
            await self.answer.wait()
        return [SendReceipt(wire.system_properties.message_id, topic, 0) for wire in wires]


async def test_a_group_that_waits_holds_up_no_other_group() -> None:
    room, broker, tasks = InFlight(10, 1_000), Broker("slow"), Tasks()
    outbox = Outbox(Bounds(), room, tasks, broker.exchange)

    def add(group: str) -> "asyncio.Future[SendReceipt]":
        assert room.try_take(1)
        wire = pb.Message()
        wire.system_properties.message_group = group
        return outbox.add(Message("t", b"x", message_group=group), wire, 1)

    first = add("slow")
    await asyncio.sleep(0)  # it is under way
    second = add("slow")
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await add("quick")
    assert not first.done()
    assert not second.done()
    broker.answer.set()
    async with asyncio.timeout(20):
        await asyncio.gather(first, second)
        await outbox.flush()
    await tasks.close()
