"""What producers of transactional messages see."""

import asyncio
from typing import NoReturn

import pytest

from cosmodrome_server.broker import transaction_verbs
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.errors import BadRequest, InvalidTransactionId, OverloadedError, StoreFull
from cosmodrome_server.model.message import MessageType, NewMessage, StoredMessage
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import Run, World, bodies, new_message


class Producers:
    """Those who are asked; `answers` says whether anybody is there."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_there = True

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        if self.is_there:
            assert message.body
            self.asked.append(transaction_id)
        return self.is_there

    def topic_changed(self, name: str) -> None:
        pass

    def group_changed(self, name: str) -> None:
        pass

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        pass


def half(name: str, check_ms: int = 0) -> NewMessage:
    message = new_message(name.encode(), message_type=MessageType.TRANSACTION)
    message.transaction_check_ms = check_ms
    return message


async def begin(world: World, *names: str, check_ms: int = 0) -> Producers:
    producers = Producers()
    world.broker.listen(producers)
    world.broker.create_topic(Topic("money", TopicType.TRANSACTION, queues=1))
    for name in names:
        await world.send("money", half(name, check_ms))
    return producers


def end(world: World, name: str, *, commit: bool) -> None:
    world.broker.end_transaction("money", name, commit=commit, from_check=False)


def test_a_half_message_is_seen_when_it_is_committed_and_not_before(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a", "b", "c")
        assert world.receive("money", "billing") == []
        end(world, "b", commit=True)
        end(world, "a", commit=False)
        await world.settle()
        (seen,) = world.receive("money", "billing")
        assert (seen.message.body, seen.message.queue_offset) == (b"b", 0)
        assert [each.transaction_id for each in world.broker.transactions("money", 10)] == ["c"]

    run(scenario)


def test_half_messages_are_spread_over_the_queues_also_while_all_are_open(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.broker.create_topic(Topic("money", TopicType.TRANSACTION, queues=3))
        for name in "abcdef":
            await world.send("money", half(name))
        for name in "abcdef":
            end(world, name, commit=True)
        await world.settle()
        seen = world.receive("money", "billing")
        assert sorted(delivery.message.queue_id for delivery in seen) == [0, 0, 1, 1, 2, 2]

    run(scenario)


def test_the_same_resolution_again_is_fine_and_another_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a")
        end(world, "a", commit=True)
        end(world, "a", commit=True)
        with pytest.raises(BadRequest):
            end(world, "a", commit=False)
        for name in ("unknown", " "):
            with pytest.raises(InvalidTransactionId):
                end(world, name, commit=True)
        await world.settle()
        assert bodies(world.receive("money", "billing")) == [b"a"]
        assert world.broker.statistics().commits == {"money": 1}

    run(scenario)


def test_producers_are_asked_on_schedule_until_the_message_is_parked(run: Run) -> None:
    async def scenario(world: World) -> None:
        producers = await begin(world, "a")
        await world.later(5_999)
        assert producers.asked == []
        await world.later(1)
        assert producers.asked == ["a"]
        await world.later(29_999)
        assert producers.asked == ["a"]
        for _ in range(40):
            await world.later(30_000)
        assert producers.asked == ["a"] * 15
        (parked,) = world.broker.transactions("", 10)
        assert parked.is_parked
        end(world, "a", commit=True)
        await world.settle()
        assert bodies(world.receive("money", "billing")) == [b"a"]

    run(scenario)


def test_a_check_nobody_could_be_asked_is_not_counted(run: Run) -> None:
    async def scenario(world: World) -> None:
        producers = await begin(world, "a", check_ms=60_000)
        producers.is_there = False
        for _ in range(100):
            await world.later(30_000)
        producers.is_there = True
        await world.later(30_000)
        assert producers.asked == ["a"]
        assert world.broker.transactions("", 10)[0].checks == 1

    run(scenario)


def test_another_half_message_with_the_id_of_an_open_one_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a")
        other = half("b")
        other.message_id, other.system = "a", half("a").system
        for messages in ([other], [half("c"), other]):
            with pytest.raises(BadRequest, match="message id a is that of another"):
                world.broker.send("money", messages)
        await world.send("money", half("a"), half("a"))
        end(world, "a", commit=True)
        await world.send("money", other)
        end(world, "a", commit=True)
        await world.settle()
        assert bodies(world.receive("money", "billing")) == [b"a", b"b"]

    run(scenario)


def test_two_half_messages_of_a_batch_have_ids_of_their_own(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world)
        twin = half("b")
        twin.message_id, twin.system = "a", half("a").system
        with pytest.raises(BadRequest, match="message id a"):
            world.broker.send("money", [half("a"), twin])
        assert world.broker.transactions("money", 10) == []

    run(scenario)


def test_large_half_messages_are_shown_a_few_a_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_verbs, "_SHOWN_BYTES_PER_TURN", 2)

    async def scenario(world: World) -> None:
        producers = await begin(world, "a", "b", "c", "d", "e")
        world.clocks.pass_ms(6_001)
        world.broker.wake()
        assert producers.asked == ["a", "b"]
        await world.settle()
        assert producers.asked == ["a", "b", "c", "d", "e"]

    run(scenario)


def test_an_expired_half_message_is_dropped(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a")
        await world.later(72 * 3_600_000)
        with pytest.raises(InvalidTransactionId):
            end(world, "a", commit=True)

    run(scenario)


@pytest.mark.parametrize("is_committed_first", [True, False])
def test_half_messages_survive_a_restart(run: Run, is_committed_first: bool) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a", "b")
        if is_committed_first:
            end(world, "a", commit=True)
        await world.settle()
        before = world.broker.state_hash()
        await world.restart()
        assert world.broker.state_hash() == before
        if is_committed_first:
            with pytest.raises(BadRequest):
                end(world, "a", commit=False)
        end(world, "a", commit=True)
        end(world, "b", commit=False)
        await world.settle()
        assert bodies(world.receive("money", "billing")) == [b"a"]

    run(scenario)


def test_on_a_disk_without_any_space_a_half_message_is_asked_about_and_dropped_later(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World) -> None:
        producers = await begin(world, "a")
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(6_001)
        assert world.broker.transactions("", 9)[0].checks == 0
        await world.later(30_001)
        assert world.broker.transactions("", 9)[0].checks == 1
        assert producers.asked == ["a", "a"]
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(72 * 3_600_000)
        assert len(world.broker.transactions("", 9)) == 1
        await world.later(30_001)
        assert world.broker.transactions("", 9) == []

    run(scenario)


def test_a_renewal_that_finds_no_space_stops_nobody(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World) -> None:
        await begin(world, "a")
        end(world, "a", commit=True)
        await world.settle()
        assert len(world.receive("money", "billing", auto_renew=True)) == 1
        await world.settle()
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(9_000)
        await world.later(2_000)
        # Its term was over before there was space.
        assert bodies(world.receive("money", "billing")) == [b"a"]

    run(scenario)


def test_a_clock_that_jumps_ahead_for_a_while_drops_no_half_message(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a")
        world.clocks.wall_ms += 40 * 24 * 3_600_000
        await world.later(7_000)
        world.clocks.wall_ms -= 40 * 24 * 3_600_000
        await world.later(60_000)
        end(world, "a", commit=True)
        assert bodies(world.receive("money", "billing")) == [b"a"]

    run(scenario)


def test_what_has_expired_by_a_clock_that_stays_ahead_is_dropped(run: Run) -> None:
    async def scenario(world: World) -> None:
        await begin(world, "a")
        world.clocks.wall_ms += 40 * 24 * 3_600_000
        for _ in range(3):
            await world.later(3_600_000)
        assert world.broker.transactions("", 9) == []

    run(scenario)


def test_there_is_a_bound_of_open_transactions() -> None:
    async def main() -> None:
        world = World(BrokerSettings(transactions_max=1))
        await begin(world, "a")
        with pytest.raises(OverloadedError, match="open_max"):
            world.broker.send("money", [half("b")])
        world.broker.abandon()

    asyncio.run(main())
