"""Receives that are answered later: at the end of their turn, and when something arrives."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosmodrome_server.broker.receive_verbs import INFLIGHT_ATTRIBUTE
from cosmodrome_server.core.receive import BYTES_MAX
from cosmodrome_server.core.records import LEASE_SPAN
from cosmodrome_server.errors import BadRequest, StoreFull, TopicNotFound
from cosmodrome_server.model.filter import Filter, FilterType
from cosmodrome_server.model.group import ConsumeFrom, Group
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.model.message import Delivery
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Waiter
from cosmodrome_server.model.topic import Topic
from tests.support.broker_world import Run, World, bodies, new_message

Found = list[Delivery] | Exception


def query(
    count: int = 1,
    topic: str = "line",
    group: str = "billing",
    client_id: str = "client",
    invisible_ms: int = 10_000,
    **more: Any,
) -> ReceiveQuery:
    return ReceiveQuery(group, topic, ANY_QUEUE, client_id, count, invisible_ms, **more)


class Askers:
    """Who asked, and what each was given, in the order they asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._given: dict[int, Found] = {}
        self._asked = 0

    def ask(self, *queries: ReceiveQuery) -> None:
        for one in queries:
            self._world.broker.receive_soon(one, self._taker(self._asked))
            self._asked += 1

    def _taker(self, number: int) -> Callable[[Found], None]:
        def then(found: Found) -> None:
            assert number not in self._given, "answered twice"
            self._given[number] = found

        return then

    @property
    def answered(self) -> int:
        return len(self._given)

    @property
    def answers(self) -> list[Found]:
        return [self._given[number] for number in range(self._asked)]

    async def deliveries(self) -> list[list[Delivery]]:
        await self._world.settle()
        answers = self.answers
        assert not [found for found in answers if isinstance(found, Exception)]
        return [found for found in answers if isinstance(found, list)]


async def line(world: World, count: int, queues: int = 1) -> None:
    world.broker.create_topic(Topic("line", queues=queues))
    if count:
        world.broker.send("line", [new_message(b"%d" % number) for number in range(count)])
    await world.settle()


def test_those_of_a_turn_that_ask_for_the_same_share_in_the_order_they_came(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 5)
        askers = Askers(world)
        askers.ask(query(2), query(2), query(2), query(2))
        with pytest.raises(KeyError):
            assert askers.answers, "before the end of the turn"
        found = await askers.deliveries()
        assert [bodies(each) for each in found] == [[b"0", b"1"], [b"2", b"3"], [b"4"], []]
        # Each is settled by itself.
        first, _ = found[0]
        world.broker.ack("billing", "line", first.receipt_handle)
        await world.later(10_000)
        assert bodies(world.receive("line", "billing")) == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_they_are_one_record(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 64)
        world.receive("line", "billing", 1)  # The group has begun.
        await world.settle()
        askers = Askers(world)
        askers.ask(*[query() for _ in range(40)])
        found = await askers.deliveries()
        assert [len(each) for each in found] == [1] * 40
        last = list(world.log.crashed().replay())[-1]
        assert last.kind is RecordKind.POP
        world.kill()
        assert world.broker.accumulation("billing", "line").inflight == 41

    run(scenario)


@pytest.mark.parametrize(
    "other",
    [
        query(invisible_ms=20_000),
        query(group="audit"),
        query(filter=Filter(expression="a || b")),
        query(client_id="other", auto_renew=True),
    ],
    ids=["invisible time", "group", "filter", "renewed for a client"],
)
def test_those_that_ask_for_something_else_have_a_receive_of_their_own(
    run: Run, other: ReceiveQuery
) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        world.broker.create_group(Group("audit"))
        world.broker.send("line", [new_message(b"%d" % number, tag="a") for number in range(3)])
        askers = Askers(world)
        askers.ask(query(), other, query())
        first, second, third = await askers.deliveries()
        (given,) = second
        assert given.invisible_ms == other.invisible_ms
        assert len(first) == len(third) == 1
        if other.auto_renew:
            for _ in range(12):
                await world.later(1_000)
            again = [*bodies(first), *bodies(third)]
            assert sorted(bodies(world.receive("line", "billing"))) == again

    run(scenario)


def test_clients_that_do_not_renew_share(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 2)
        askers = Askers(world)
        askers.ask(query(client_id="one"), query(client_id="other"))
        assert [bodies(each) for each in await askers.deliveries()] == [[b"0"], [b"1"]]

    run(scenario)


def test_ordered_receives_are_not_shared(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.send("steps", [new_message(b"%d" % n, group="g") for n in range(4)])
        await world.settle()
        askers = Askers(world)
        askers.ask(*[query(2, "steps", "ledger") for _ in range(2)])
        assert [bodies(each) for each in await askers.deliveries()] == [[b"0", b"1"], []]

    run(scenario)


def test_all_get_what_they_want_of_one_long_queue(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 3 * LEASE_SPAN)
        askers = Askers(world)
        askers.ask(*[query(LEASE_SPAN - 1) for _ in range(3)], query(2), query())
        assert [len(each) for each in await askers.deliveries()] == [*[LEASE_SPAN - 1] * 3, 2, 1]

    run(scenario)


def test_all_are_told_why_there_is_nothing(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 2)
        askers = Askers(world)
        askers.ask(query(), query(), query(topic="orders"))
        world.broker.delete_topic("line")
        await world.settle()
        one, two, other = askers.answers
        assert isinstance(one, TopicNotFound)
        assert isinstance(two, TopicNotFound)
        assert other == []

    run(scenario)


def test_a_name_that_is_too_long_is_refused_to_who_has_it(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 1)
        askers = Askers(world)
        with pytest.raises(BadRequest, match="at most 1024 characters"):
            world.broker.receive_soon(query(client_id="c" * 1_025), lambda _: None)
        askers.ask(query())
        assert [bodies(each) for each in await askers.deliveries()] == [[b"0"]]

    run(scenario)


def test_a_full_disk_is_told_and_hides_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFull("the disk is full")

    async def scenario(world: World) -> None:
        await line(world, 2)
        askers = Askers(world)
        askers.ask(query(), query())
        with monkeypatch.context() as on_full_disk:
            on_full_disk.setattr(world.log, "stage", full)
            await world.settle()
        assert all(isinstance(found, StoreFull) for found in askers.answers)
        assert bodies(world.receive("line", "billing")) == [b"0", b"1"]

    run(scenario)


def test_who_asked_before_the_stop_is_answered(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 1)
        askers = Askers(world)
        askers.ask(query(), query())
        await world.restart()
        first, second = askers.answers
        assert isinstance(first, list)
        assert bodies(first) == [b"0"]
        assert second == []
        assert world.receive("line", "billing") == [], "its lease is kept"

    run(scenario)


def test_who_gets_nothing_because_too_many_are_in_flight_is_woken_by_an_ack(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 6)
        world.broker.create_group(Group("billing", attributes={INFLIGHT_ATTRIBUTE: "3"}))
        askers = Askers(world)
        askers.ask(query(2), query(2), query(2))
        found = await askers.deliveries()
        assert [bodies(each) for each in found] == [[b"0", b"1"], [b"2"], []]
        given: list[bytes] = []
        world.broker.wait(Waiter(query(2), 60_000, lambda found: given.extend(bodies(found))))
        await world.settle()
        world.broker.ack("billing", "line", found[0][0].receipt_handle)
        await world.settle()
        assert given == [b"3"]

    run(scenario)


@given(
    sent=st.integers(0, 60),
    dropped=st.integers(0, 20),
    counts=st.lists(st.integers(1, 16), min_size=1, max_size=8),
    queues=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_together_they_get_as_much_as_one_after_the_other(
    sent: int, dropped: int, counts: Sequence[int], queues: int
) -> None:
    """New messages and redeliveries: of each its share, and no message twice."""

    async def world_of_it() -> World:
        world = World()
        world.broker.create_group(Group("billing"))
        await line(world, 0, queues)
        for number in range(sent):
            world.broker.send("line", [new_message(b"%d" % number)])
        await world.settle()
        for _ in range(dropped):
            world.receive("line", "billing", 1, invisible_ms=10)
        await world.later(11)
        return world

    async def main() -> None:
        alone, together = await world_of_it(), await world_of_it()
        expected = [world_receives(alone, count) for count in counts]
        askers = Askers(together)
        askers.ask(*[query(count) for count in counts])
        found = await askers.deliveries()
        assert [len(each) for each in found] == [len(each) for each in expected]
        given = [body for each in found for body in bodies(each)]
        assert len(set(given)) == len(given)
        if len(given) == sent:
            assert sorted(given) == sorted(body for each in expected for body in each)
        await together.broker.drain()
        before = together.broker.state_hash()
        await together.restart()
        assert together.broker.state_hash() == before

    def world_receives(world: World, count: int) -> list[bytes]:
        return bodies(world.receive("line", "billing", count))

    asyncio.run(main())


def test_waiters_are_served_together_longest_first(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        given: list[tuple[int, list[bytes]]] = []

        def waits(number: int, one: ReceiveQuery) -> None:
            world.broker.wait(
                Waiter(one, 60_000, lambda found: given.append((number, bodies(found))))
            )

        for number in range(5):
            waits(number, query())
        waits(5, query(2, invisible_ms=20_000))
        waits(6, query())
        await world.settle()
        world.broker.send("line", [new_message(b"%d" % number) for number in range(4)])
        await world.settle()
        assert given == [(number, [b"%d" % number]) for number in range(4)]
        world.broker.send("line", [new_message(b"%d" % number) for number in range(4, 8)])
        await world.settle()
        assert given[4:] == [(4, [b"4"]), (5, [b"5", b"6"]), (6, [b"7"])]

    run(scenario)


def test_more_waiters_than_messages_stay_in_their_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        given: list[int] = []

        def notes(number: int) -> Callable[[list[Delivery]], None]:
            return lambda _: given.append(number)

        for number in range(10):
            world.broker.wait(Waiter(query(), 60_000, notes(number)))
        for batch in (1, 3, 5):
            world.broker.send("line", [new_message(b"x") for _ in range(batch)])
            await world.settle()
        assert given == list(range(9))

    run(scenario)


MIB = b"x" * (1 << 20)


async def large(world: World, count: int, topic: str = "line", group: str = "") -> None:
    """A MiB each; as many in a frame as it holds."""
    for number in range(count):
        world.broker.send(topic, [new_message(MIB, message_id=str(number), group=group)])
        await world.settle()


def test_a_receive_takes_so_many_bytes_and_who_finds_nothing_left_waits_a_turn(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0, queues=2)
        await large(world, 64)
        assert BYTES_MAX >> 20 <= len(world.receive("line", "billing")) < 20
        given: list[Delivery] = []
        asked = query(8)

        def then(found: Found) -> None:
            if found == []:
                world.broker.wait(Waiter(asked, 60_000, given.extend))
            else:
                assert isinstance(found, list)
                given.extend(found)

        for _ in range(4):
            world.broker.receive_soon(asked, then)
        await world.settle()
        assert 24 < len(given) <= 32, "those that were cut short have one or some"

    run(scenario)


def test_redeliveries_and_matches_of_a_filter_count_as_well(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        await large(world, 20)
        first = world.receive("line", "billing", 20, invisible_ms=10)
        assert 16 <= len(first) < 20
        await world.later(11)
        assert len(world.receive("line", "billing", 20)) == 16
        wanted = Filter(FilterType.SQL, "TRUE")
        world.broker.create_group(Group("audit", consume_from=ConsumeFrom.FIRST))
        assert len(world.receive("line", "audit", 20, filter=wanted)) == 16

    run(scenario)


def test_large_redeliveries_leave_new_messages_their_half(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        await large(world, 16)
        assert len(world.receive("line", "billing", 16, invisible_ms=10)) == 16
        await world.later(11)
        await large(world, 16)
        found = world.receive("line", "billing", 32)
        assert {each.attempt for each in found} == {1, 2}
        assert 16 <= len(found) < 20

    run(scenario)


def test_an_ordered_receive_takes_so_many_bytes_too(run: Run) -> None:
    async def scenario(world: World) -> None:
        await large(world, 20, "steps", "g")
        first = world.receive("steps", "ledger", 20)
        assert len(first) == 16
        await world.later(10_000)
        again = world.receive("steps", "ledger", 20)
        assert [each.message.queue_offset for each in again] == list(range(16))
        for each in again:
            world.broker.ack("ledger", "steps", each.receipt_handle)
        assert len(world.receive("steps", "ledger", 20)) == 4

    run(scenario)


def test_a_turn_gives_so_many_bytes_and_the_next_one_goes_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        await large(world, 80)
        askers = Askers(world)
        for number in range(5):
            askers.ask(query(16, invisible_ms=10_000 + number))
        world.broker.wake()
        assert askers.answered == 2
        assert [len(each) for each in await askers.deliveries()] == [16] * 5
        askers.ask(query(), query())
        await world.broker.close()
        assert askers.answered == 7

    run(scenario)


def test_those_who_wait_are_woken_by_so_many_bytes_a_turn(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 0)
        given: list[int] = []
        for number in range(6):
            one = query(16, invisible_ms=10_000 + number)
            world.broker.wait(Waiter(one, 60_000, lambda found: given.append(len(found))))
        await world.settle()
        world.log.holding = True
        world.broker.send("line", [new_message(b"first")])
        await world.settle()
        for _ in range(3):
            world.broker.send("line", [new_message(MIB) for _ in range(32)])
        world.log.holding = False
        world.log.release()
        world.broker.catch_up()
        world.broker.wake()
        assert given == [1, 16, 16]
        await world.settle()
        assert given == [1, 16, 16, 16, 16, 16]

    run(scenario)


def test_a_filter_that_nothing_matches_ends_its_turn_after_some_messages(run: Run) -> None:
    async def scenario(world: World) -> None:
        await line(world, 5_000)
        found: list[int] = []
        wanted = Filter(FilterType.SQL, "color = 'red'")
        asked = query(filter=wanted)
        while not found or found[-1] < 5_000:
            assert world.broker.receive(asked) == []
            found.append(world.broker.accumulation("billing", "line").ready)
            found[-1] = 5_000 - found[-1]
        assert len(found) == 2
        assert found[0] < 4_500

    run(scenario)
