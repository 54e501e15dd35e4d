"""Which of those who wait for lite topics are looked at, and how much is looked at for it."""

import pytest

from cosmodrome_server.broker import lite_verbs
from cosmodrome_server.core.consumption import Consumption
from cosmodrome_server.core.lite_subscription import has_something
from cosmodrome_server.model.lite import LiteAction
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from tests.server.broker.test_lite import Events, lite, receive, run, sync
from tests.support.broker_world import World, bodies


def test_a_client_that_does_not_read_yet_keeps_nobody_behind_it_waiting() -> None:
    async def scenario(world: World, _: Events) -> None:
        sync(world, "ann", action=LiteAction.COMPLETE_ADD)
        given: dict[str, list[Delivery]] = {"bob": [], "ann": []}
        for client_id, found in given.items():
            query = ReceiveQuery("room", "chat", ANY_QUEUE, client_id, 32, 10_000)
            world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, found.extend))
        await world.send("chat", lite("a", b"a1"))
        assert {name: bodies(found) for name, found in given.items()} == {
            "bob": [],
            "ann": [b"a1"],
        }

    run(scenario, lite_sub_wildcard="true")


def test_those_served_in_one_turn_look_at_all_lite_topics_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    def counted(consumption: Consumption | None, end: int) -> bool:
        looks.append(end)
        return has_something(consumption, end)

    async def scenario(world: World, _: Events) -> None:
        clients = [str(number) for number in range(5)]
        for client_id in clients:
            sync(world, client_id, action=LiteAction.COMPLETE_ADD)
        for number in range(50):
            await world.send("chat", lite(str(number), b"old"))
        for delivery in receive(world, "0", 50):
            world.broker.ack("room", "chat", delivery.receipt_handle)
        given: list[Delivery] = []
        for client_id in clients:
            query = ReceiveQuery("room", "chat", ANY_QUEUE, client_id, 1, 10_000)
            world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, given.extend))
        await world.settle()
        monkeypatch.setattr(lite_verbs, "has_something", counted)
        world.broker.send("chat", [lite(name, name.encode()) for name in clients])
        await world.settle()
        assert sorted(bodies(given)) == [name.encode() for name in clients]
        assert len(looks) < 100

    run(scenario, topics_max=50, lite_sub_wildcard="true")


def test_a_message_that_one_reader_got_is_not_looked_for_by_the_others() -> None:
    async def scenario(world: World, _: Events) -> None:
        given: dict[str, list[Delivery]] = {"ann": [], "bob": [], "cid": []}
        for client_id, found in given.items():
            sync(world, client_id, "a")
            query = ReceiveQuery("room", "chat", ANY_QUEUE, client_id, 1, 10_000)
            world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, found.extend))
        await world.settle()
        asked, ask = [], world.broker.receive

        def counted(query: ReceiveQuery) -> list[Delivery]:
            asked.append(query.client_id)
            return ask(query)

        world.broker.receive = counted  # type: ignore[method-assign]  # counts
        await world.send("chat", lite("a", b"a1"))
        assert asked == ["ann"]
        world.broker.ack("room", "chat", given["ann"][0].receipt_handle)
        await world.send("chat", lite("a", b"a2"))
        assert asked == ["ann", "bob"]
        assert [bodies(found) for found in given.values()] == [[b"a1"], [b"a2"], []]

    run(scenario)
