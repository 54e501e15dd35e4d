"""What clients of a lite group see."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest
from msgspec.structs import replace

from cosmodrome_server.broker import lite_verbs
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.core import consumptions
from cosmodrome_server.core.lite_subscription import lite_topic_name
from cosmodrome_server.errors import (
    BadRequest,
    LiteSubscriptionQuotaExceeded,
    LiteTopicQuotaExceeded,
    ReadFailed,
    StoreFull,
)
from cosmodrome_server.model import wire
from cosmodrome_server.model.filter import Filter
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.lite import LiteAction, LiteChange, LiteStart
from cosmodrome_server.model.message import Delivery, MessageType, NewMessage, StoredMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery, Redriven, RedriveQuery, Waiter
from cosmodrome_server.model.topic import Topic, TopicType
from tests.support.broker_world import World, bodies, new_message


class Events:
    """What the proxy is told."""

    def __init__(self) -> None:
        self.evicted: list[tuple[str, str, str]] = []

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        self.evicted.append((client_id, group, lite_topic))

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        return False

    def topic_changed(self, name: str) -> None:
        pass

    def group_changed(self, name: str) -> None:
        pass


def run(
    scenario: Callable[[World, Events], Awaitable[None]], *, topics_max: int = 3, **attributes: str
) -> None:
    async def main() -> None:
        world = World(BrokerSettings(lite_topics_max=topics_max, lite_subscriptions_max=5))
        events = Events()
        world.broker.listen(events)
        named = {name.replace("_", "."): value for name, value in attributes.items()}
        world.broker.create_topic(
            Topic("chat", TopicType.LITE, queues=1, lite_expiration_ms=3_600_000)
        )
        world.broker.create_group(Group("room", lite_bind_topic="chat", attributes=named))
        await world.settle()
        await scenario(world, events)
        world.broker.abandon()

    asyncio.run(main())


def lite(name: str, body: bytes) -> NewMessage:
    message = new_message(body, message_type=MessageType.LITE)
    message.lite_topic = name
    message.system += wire.encode_bytes(wire.LITE_TOPIC, name.encode())
    return message


def sync(
    world: World,
    client_id: str,
    *names: str,
    action: LiteAction = LiteAction.PARTIAL_ADD,
    start: tuple[LiteStart, int] = (LiteStart.LAST, 0),
) -> None:
    world.broker.sync_lite_subscription(
        LiteChange(client_id, "room", "chat", action, names, 0, *start)
    )


def receive(world: World, client_id: str, count: int = 32) -> list[Delivery]:
    return world.broker.receive(ReceiveQuery("room", "chat", ANY_QUEUE, client_id, count, 10_000))


def test_a_client_gets_the_messages_of_the_lite_topics_it_subscribed_to() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a", "b")
        await world.send("chat", lite("a", b"a1"), lite("c", b"c1"), lite("b", b"b1"))
        await world.send("chat", lite("a", b"a2"))
        found = receive(world, "ann")
        assert sorted(bodies(found)) == [b"a1", b"a2", b"b1"]
        assert {delivery.topic for delivery in found} == {"chat"}
        assert receive(world, "bob") == []
        for delivery in found:
            world.broker.ack("room", "chat", delivery.receipt_handle)
        await world.later(10_000)
        assert receive(world, "ann") == []
        assert [topic.name for topic in world.broker.topics()] == ["chat"]
        known = ["chat", lite_topic_name("chat", "a"), "a", "nope"]
        assert [world.broker.has_topic(name) for name in known] == [True, False, False, False]

    run(scenario)


def test_a_lite_topic_is_read_in_order_one_batch_at_a_time() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        sync(world, "bob", "a")
        await world.send("chat", *[lite("a", b"%d" % number) for number in range(4)])
        first = receive(world, "ann", 2)
        assert bodies(first) == [b"0", b"1"]
        assert receive(world, "bob") == []
        await world.later(10_000)
        again = receive(world, "bob", 3)
        assert [(each.message.body, each.attempt) for each in again] == [
            (b"0", 2),
            (b"1", 2),
            (b"2", 1),
        ]

    run(scenario)


def test_a_group_has_so_many_in_flight_as_it_says_of_all_lite_topics_together() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a", "b")
        sync(world, "bob", "b")
        await world.send("chat", *(lite("a", b"a%d" % n) for n in range(2)))
        await world.send("chat", *(lite("b", b"b%d" % n) for n in range(3)))
        found = receive(world, "ann")
        assert len(found) == 4
        assert receive(world, "bob") == []
        given: list[list[bytes]] = []
        query = ReceiveQuery("room", "chat", ANY_QUEUE, "ann", 32, 10_000)
        world.broker.wait(
            Waiter(query, world.clocks.run_ms + 5_000, lambda more: given.append(bodies(more)))
        )
        await world.settle()
        assert given == []
        for delivery in found:
            world.broker.ack("room", "chat", delivery.receipt_handle)
        await world.settle()
        assert [len(more) for more in given] == [1]

    run(scenario, inflight_max="4")


def test_room_that_one_client_makes_is_news_for_all_others() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        sync(world, "bob", "b")
        await world.send("chat", lite("a", b"a1"), lite("b", b"b1"))
        (first,) = receive(world, "ann")
        given: list[Delivery] = []
        query = ReceiveQuery("room", "chat", ANY_QUEUE, "bob", 32, 10_000)
        world.broker.wait(Waiter(query, world.clocks.run_ms + 5_000, given.extend))
        await world.settle()
        assert given == []
        world.broker.ack("room", "chat", first.receipt_handle)
        await world.settle()
        assert bodies(given) == [b"b1"]

    run(scenario, inflight_max="1")


def test_more_clients_than_one_turn_serves_are_served_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lite_verbs, "_SERVED_PER_TURN", 1)

    async def scenario(world: World, events: Events) -> None:
        given: list[Delivery] = []
        for name in ("a", "b", "c"):
            sync(world, name, name)
            query = ReceiveQuery("room", "chat", ANY_QUEUE, name, 32, 10_000)
            world.broker.wait(Waiter(query, world.clocks.run_ms + 5_000, given.extend))
        await world.send("chat", *(lite(name, name.encode()) for name in ("a", "b", "c")))
        await world.settle()
        assert sorted(bodies(given)) == [b"a", b"b", b"c"]

    run(scenario)


def test_a_match_behind_many_messages_of_other_tags_is_not_waited_for() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        for _ in range(1_200):
            world.broker.send("chat", [lite("a", b"not wanted")])
        wanted = lite("a", b"wanted")
        wanted.tag = "a"
        wanted.system += wire.encode_bytes(1, b"a")
        await world.send("chat", wanted)
        query = ReceiveQuery(
            "room", "chat", ANY_QUEUE, "ann", 1, 10_000, filter=Filter(expression="a")
        )
        found = world.broker.receive(query)
        assert found == []
        world.broker.wait(Waiter(query, world.clocks.run_ms + 9_000, found.extend))
        await world.settle()
        assert bodies(found) == [b"wanted"]

    run(scenario)


def test_a_waiting_client_is_woken_by_its_own_lite_topics_only() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        sync(world, "bob", "b")
        given: list[tuple[str, list[bytes]]] = []

        def wait(client_id: str) -> None:
            def on_ready(found: list[Delivery]) -> None:
                given.append((client_id, bodies(found)))

            query = ReceiveQuery("room", "chat", ANY_QUEUE, client_id, 1, 60_000)
            world.broker.wait(Waiter(query, world.clocks.run_ms + 20_000, on_ready))

        wait("ann")
        wait("bob")
        await world.send("chat", lite("b", b"b1"), lite("b", b"b2"))
        assert given == [("bob", [b"b1"])]
        wait("bob")
        await world.settle()
        assert given == [("bob", [b"b1"])]
        sync(world, "ann", "b")
        await world.settle()
        assert given == [("bob", [b"b1"])]

    run(scenario)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((LiteStart.LAST, 0), []),
        ((LiteStart.MAX, 0), []),
        ((LiteStart.MIN, 0), [b"0", b"1", b"2"]),
        ((LiteStart.OFFSET, 1), [b"1", b"2"]),
        ((LiteStart.OFFSET, 9), []),
        ((LiteStart.TAIL, 1), []),
    ],
)
def test_reading_begins_where_the_client_says(
    start: tuple[LiteStart, int], expected: list[bytes]
) -> None:
    async def scenario(world: World, events: Events) -> None:
        await world.send("chat", *[lite("a", b"%d" % number) for number in range(3)])
        sync(world, "ann", "a", start=start)
        assert bodies(receive(world, "ann")) == expected
        await world.send("chat", lite("a", b"new"))
        await world.later(10_000)
        assert bodies(receive(world, "ann"))[-1:] == [b"new"]

    run(scenario)


def test_in_an_exclusive_group_the_newest_client_takes_a_lite_topic_over() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        sync(world, "bob", "a")
        assert events.evicted == [("ann", "room", "a")]
        await world.send("chat", lite("a", b"a1"))
        assert receive(world, "ann") == []
        sync(world, "ann", "a", action=LiteAction.COMPLETE_ADD)
        assert events.evicted == [("ann", "room", "a")] * 2
        assert bodies(receive(world, "bob")) == [b"a1"]
        sync(world, "ann", "a")
        assert events.evicted[2:] == [("bob", "room", "a")]

    run(scenario, lite_sub_model="Exclusive")


async def read_all(world: World, client_id: str) -> list[bytes]:
    """Receive and acknowledge what there is of a lite topic."""
    found = []
    while deliveries := receive(world, client_id):
        for delivery in deliveries:
            world.broker.ack("room", "chat", delivery.receipt_handle)
        found += bodies(deliveries)
        await world.settle()
    return found


@pytest.mark.parametrize("is_reset", [False, True])
def test_who_takes_a_lite_topic_over_reads_from_the_beginning_if_the_group_says_so(
    is_reset: bool,
) -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        await world.send("chat", lite("a", b"1"), lite("a", b"2"))
        assert await read_all(world, "ann") == [b"1", b"2"]
        sync(world, "bob", "a")
        assert events.evicted == [("ann", "room", "a")]
        assert await read_all(world, "bob") == ([b"1", b"2"] if is_reset else [])
        # Where the client says, it begins all the same.
        sync(world, "cid", "a", start=(LiteStart.OFFSET, 1))
        assert await read_all(world, "cid") == [b"2"]

    word = str(is_reset).lower()
    run(scenario, lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive=word)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_lite_topic_a_client_removed_is_read_from_the_beginning_if_the_group_says_so(
    is_reset: bool,
) -> None:
    async def scenario(world: World, _: Events) -> None:
        sync(world, "ann", "a", "b", start=(LiteStart.MIN, 0))
        await world.send("chat", lite("a", b"1"), lite("b", b"2"))
        assert sorted(await read_all(world, "ann")) == [b"1", b"2"]
        # That it is not in the whole set is no removal.
        sync(world, "ann", "a", action=LiteAction.COMPLETE_ADD)
        sync(world, "ann", "a", "never sent to", action=LiteAction.PARTIAL_REMOVE)
        sync(world, "ann", "a", "b")
        assert await read_all(world, "ann") == ([b"1"] if is_reset else [])

    run(scenario, lite_sub_reset_offset_unsubscribe=str(is_reset).lower())


def test_a_group_with_a_wildcard_reads_every_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        with pytest.raises(BadRequest):
            sync(world, "ann", "a")
        sync(world, "ann", action=LiteAction.COMPLETE_ADD)
        await world.send("chat", lite("a", b"a1"), lite("b", b"b1"))
        assert sorted(bodies(receive(world, "ann"))) == [b"a1", b"b1"]

    run(scenario, lite_sub_wildcard="true")


async def restart(world: World, events: Events) -> None:
    await world.restart()
    world.broker.listen(events)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("action", [LiteAction.PARTIAL_ADD, LiteAction.COMPLETE_ADD])
def test_a_message_sent_to_a_subscriber_waits_for_it_over_a_restart(
    action: LiteAction, *, is_killed: bool
) -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"first"))
        if is_killed:
            world.kill()
        else:
            await restart(world, events)
        sync(world, "ann", "a", action=action)
        assert bodies(receive(world, "ann")) == [b"first"]

    run(scenario)


@pytest.mark.parametrize("wildcard", ["true", "false"])
def test_a_message_sent_to_a_subscriber_is_not_passed_over_by_the_next_one(wildcard: str) -> None:
    async def scenario(world: World, events: Events) -> None:
        is_all = wildcard == "true"
        names = () if is_all else ("a",)
        action = LiteAction.COMPLETE_ADD if is_all else LiteAction.PARTIAL_ADD
        sync(world, "ann", *names, action=action)
        await world.send("chat", lite("a", b"first"))
        sync(world, "bob", *names, action=action)
        assert bodies(receive(world, "bob")) == [b"first"]

    run(scenario, lite_sub_wildcard=wildcard)


def test_a_group_deleted_while_the_disk_is_slow_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World, _: Events) -> None:
        await world.send("chat", lite("a", b"a1"))
        world.log.holding = True
        await world.send("chat", lite("a", b"a2"))
        # Its place on the lite topic is news, and laid down before anybody looks.
        sync(world, "ann", "a")
        monkeypatch.setattr(world.broker._shard.consumptions, "_lay_at", 1)
        world.broker.delete_group("room")
        await world.release()
        await world.send("chat", lite("a", b"a3"))
        assert world.broker.bounds("%LMQ%$chat$a", 0).max_offset == 3

    run(scenario)


@pytest.mark.parametrize("wildcard", ["true", "false"])
def test_what_was_sent_before_a_client_could_say_its_set_again_waits_for_it(wildcard: str) -> None:
    async def scenario(world: World, events: Events) -> None:
        names = () if wildcard == "true" else ("a", "b")
        sync(world, "ann", *names, action=LiteAction.COMPLETE_ADD)
        await world.send("chat", lite("b", b"b1"))
        await restart(world, events)
        await world.send("chat", lite("a", b"a1"))
        sync(world, "ann", *names, action=LiteAction.COMPLETE_ADD)
        assert sorted(bodies(receive(world, "ann"))) == [b"a1", b"b1"]

    run(scenario, lite_sub_wildcard=wildcard)


def test_a_group_that_reads_everything_begins_with_what_is_sent_then() -> None:
    async def scenario(world: World, events: Events) -> None:
        await world.send("chat", lite("a", b"old"))
        sync(world, "ann", action=LiteAction.COMPLETE_ADD)
        await world.send("chat", lite("a", b"new"))
        assert bodies(receive(world, "ann")) == [b"new"]

    run(scenario, lite_sub_wildcard="true")


def test_who_reads_everything_from_its_beginning_does_not_begin_anew_by_repeating_that() -> None:
    async def scenario(world: World, events: Events) -> None:
        await world.send("chat", lite("a", b"old"))
        for found in ([b"old"], []):
            sync(world, "ann", action=LiteAction.COMPLETE_ADD, start=(LiteStart.MIN, 0))
            deliveries = receive(world, "ann")
            assert bodies(deliveries) == found
            for each in deliveries:
                world.broker.ack("room", "chat", each.receipt_handle)

    run(scenario, lite_sub_wildcard="true")


def test_only_groups_bound_to_its_parent_begin_on_a_new_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        world.broker.create_topic(Topic("other", TopicType.LITE, queues=1))
        world.broker.create_group(Group("elsewhere", lite_bind_topic="other"))
        change = LiteChange("bob", "elsewhere", "other", LiteAction.PARTIAL_ADD, ("a",))
        world.broker.sync_lite_subscription(change)
        sync(world, "ann", "b")
        await world.send("chat", lite("a", b"first"))
        assert world.broker.topics_of("elsewhere") == world.broker.topics_of("room") == []

    run(scenario)


def test_there_are_bounds_of_lite_topics_and_of_subscriptions() -> None:
    async def scenario(world: World, events: Events) -> None:
        with pytest.raises(LiteSubscriptionQuotaExceeded, match="its group allows 3"):
            sync(world, "ann", "a", "b", "c", "d")
        sync(world, "ann", "a", "b", "c")
        sync(world, "ann", "a")
        with pytest.raises(LiteSubscriptionQuotaExceeded, match="subscriptions_max"):
            sync(world, "bob", "a", "b", "c")
        await world.send("chat", lite("a", b""), lite("b", b""), lite("c", b""))
        with pytest.raises(LiteTopicQuotaExceeded, match="topics_max"):
            world.broker.send("chat", [lite("a", b"x"), lite("d", b"x")])
        with pytest.raises(BadRequest, match="bound"):
            world.broker.create_topic(Topic("other", TopicType.LITE, queues=1))
            world.broker.receive(ReceiveQuery("room", "other", ANY_QUEUE, "ann", 1, 10_000))

    run(scenario, lite_sub_client_quota="3")


def test_what_a_client_says_no_more_it_reads_no_more() -> None:
    async def scenario(world: World, events: Events) -> None:
        silences: list[Callable[[], None]] = [
            lambda: sync(world, "ann", "a", action=LiteAction.PARTIAL_REMOVE),
            lambda: sync(world, "ann", "b", action=LiteAction.COMPLETE_ADD),
            lambda: sync(world, "ann", action=LiteAction.COMPLETE_REMOVE),
            lambda: world.broker.client_gone("ann"),
        ]
        for fall_silent in silences:
            sync(world, "ann", "a")
            fall_silent()
            await world.send("chat", lite("a", b"unread"))
            assert receive(world, "ann") == []
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        await world.later(180_000)
        await world.later(10_000)
        assert receive(world, "ann") == []

    run(scenario)


def test_a_group_may_go_back_by_so_many_from_where_it_is() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", *[lite("a", b"%d" % number) for number in range(5)])
        for delivery in receive(world, "ann", 4):
            world.broker.ack("room", "chat", delivery.receipt_handle)
        sync(world, "ann", "a", action=LiteAction.PARTIAL_REMOVE)
        sync(world, "ann", "a", start=(LiteStart.TAIL, 2))
        assert bodies(receive(world, "ann")) == [b"2", b"3", b"4"]

    run(scenario)


def test_no_lite_topic_is_deleted_before_it_was_idle_for_a_quarter_of_an_hour() -> None:
    async def scenario(world: World, events: Events) -> None:
        chat = world.broker.topic("chat")
        world.broker.create_topic(replace(chat, lite_expiration_ms=60_000))
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"kept"))
        await world.later(890_000)
        await world.later(9_000)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert bodies(receive(world, "ann")) == [b"kept"]
        await world.later(10_000)
        await world.later(10_000)
        assert receive(world, "ann") == []

    run(scenario)


def test_an_idle_lite_topic_is_deleted_and_comes_back_with_the_next_message() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"old"))
        await world.later(3_600_000)
        await world.later(10_000)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert receive(world, "ann") == []
        await world.send("chat", lite("a", b"new"))
        assert bodies(receive(world, "ann")) == [b"new"]
        world.broker.delete_topic("chat")
        assert world.broker.topics() == []

    run(scenario)


def test_many_idle_lite_topics_are_deleted_a_few_at_a_time() -> None:
    async def scenario(world: World, events: Events) -> None:
        for number in range(120):
            await world.send("chat", lite(f"{number}", b"old"))
        left = []
        for wait_ms in (3_600_000, 50, 50, 50):
            await world.later(wait_ms)
            left.append(world.broker.statistics().topics)
        assert left == [71, 21, 1, 1]

    run(scenario, topics_max=120)


def test_a_clock_that_jumps_ahead_for_a_while_costs_no_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"kept"))
        world.clocks.wall_ms += 40 * 24 * 3_600_000
        await world.later(10_000)
        world.clocks.wall_ms -= 40 * 24 * 3_600_000
        await world.later(10_000)
        assert bodies(receive(world, "ann")) == [b"kept"]

    run(scenario)


def test_a_lite_topic_that_is_idle_by_a_clock_that_stays_ahead_is_deleted() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"old"))
        world.clocks.wall_ms += 40 * 24 * 3_600_000
        await world.later(10_000)
        await world.later(3_600_000)
        await world.later(10_000)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert receive(world, "ann") == []

    run(scenario)


def test_a_message_on_its_way_to_the_disk_keeps_an_idle_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"old"))
        world.clocks.pass_ms(3_600_001)
        world.broker.send("chat", [lite("a", b"new")])
        # The sweep comes before the frame is written.
        world.broker.wake()
        await world.settle()
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert bodies(receive(world, "ann")) == [b"old", b"new"]

    run(scenario)


def test_a_lite_topic_whose_index_cannot_be_read_is_not_taken_for_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"old"))

        def refused(*_: object) -> NoReturn:
            raise ReadFailed("the disk refuses it now")

        with monkeypatch.context() as patch:
            patch.setattr(world.log, "timestamp", refused)
            await world.later(3_600_001)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert bodies(receive(world, "ann")) == [b"old"]

    run(scenario)


def test_on_a_disk_without_any_space_an_idle_lite_topic_is_deleted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"old"))
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            await world.later(3_600_001)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert bodies(receive(world, "ann")) == [b"old"]
        await world.later(10_000)
        sync(world, "ann", "a", start=(LiteStart.MIN, 0))
        assert receive(world, "ann") == []

    run(scenario)


@pytest.mark.parametrize(
    ("method", "error"), [("read", ReadFailed("a bad sector")), ("stage", StoreFull("no space"))]
)
def test_what_a_receive_has_leased_is_delivered_whatever_becomes_of_the_next_lite_topic(
    method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a", "b")
        await world.send("chat", lite("a", b"a1"), lite("b", b"b1"))
        real, left = getattr(world.log, method), 1

        def refused(*arguments: object) -> object:
            nonlocal left
            if left == 0:
                raise error
            left -= 1
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(world.log, method, refused)
            (first,) = receive(world, "ann")
            with pytest.raises(type(error)):
                receive(world, "ann")
        (second,) = receive(world, "ann")
        found = {(bytes(each.message.body), each.attempt) for each in (first, second)}
        assert found == {(b"a1", 1), (b"b1", 1)}

    run(scenario)


def test_dead_letters_and_redeliveries_name_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"a1"))
        (delivery,) = receive(world, "ann")
        world.broker.forward_to_dead_letter_queue("room", "chat", delivery.receipt_handle)
        await world.settle()
        world.broker.create_group(Group("undertaker"))
        (dead,) = world.receive("%DLQ%room", "undertaker")
        assert wire.dead_letter_origin(dead.message.system) == ("chat", "a1")

    run(scenario)


def test_a_dead_letter_goes_back_to_its_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"a1"), lite("b", b"b1"))
        (delivery,) = receive(world, "ann")
        world.broker.forward_to_dead_letter_queue("room", "chat", delivery.receipt_handle)
        await world.settle()
        assert world.broker.redrive(RedriveQuery("room", dry_run=True)).moved == 1
        assert world.broker.redrive(RedriveQuery("room")).moved == 1
        await world.settle()
        (again,) = receive(world, "ann")
        assert (again.message.body, again.attempt) == (b"a1", 1)
        assert wire.text_field(again.message.system, wire.LITE_TOPIC) == "a"

    run(scenario)


def test_a_dead_letter_of_a_lite_topic_that_is_gone_makes_it_anew() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"a1"))
        (delivery,) = receive(world, "ann")
        world.broker.forward_to_dead_letter_queue("room", "chat", delivery.receipt_handle)
        await world.later(3_600_000)
        await world.later(10_000)
        sync(world, "ann", "a")
        assert world.broker.redrive(RedriveQuery("room")).moved == 1
        await world.settle()
        assert bodies(receive(world, "ann")) == [b"a1"]

    run(scenario)


def test_dead_letters_of_lite_topics_go_back_once_whatever_is_laid_down_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumptions, "_LAY_MIN", 1)

    async def scenario(world: World, events: Events) -> None:
        for name in "ab":
            sync(world, "ann", name)
            await world.send("chat", lite(name, b"1"))
            (delivery,) = receive(world, "ann")
            world.broker.forward_to_dead_letter_queue("room", "chat", delivery.receipt_handle)
            await world.settle()
        # They lie in lite topics that are made anew: a record between the two.
        await world.later(3_600_000)
        await world.later(10_000)
        redriven = world.broker.redrive(RedriveQuery("room", queue_offsets=(0, 0, 1, 0)))
        assert redriven == Redriven(2, 0)

    run(scenario)


def test_lite_topics_and_progress_survive_a_restart() -> None:
    async def scenario(world: World, events: Events) -> None:
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"a1"), lite("a", b"a2"))
        (first,) = receive(world, "ann", 1)
        world.broker.ack("room", "chat", first.receipt_handle)
        await world.restart()
        sync(world, "ann", "a", action=LiteAction.COMPLETE_ADD)
        assert bodies(receive(world, "ann")) == [b"a2"]

    run(scenario)


def test_who_subscribed_and_fell_silent_is_forgotten_before_there_is_a_lite_topic() -> None:
    async def scenario(world: World, events: Events) -> None:
        for client in range(5):
            sync(world, f"client-{client}", action=LiteAction.COMPLETE_ADD)
        with pytest.raises(LiteSubscriptionQuotaExceeded, match="5 clients"):
            sync(world, "ann", "a")
        await world.later(180_000)
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"a1"))
        assert bodies(receive(world, "ann")) == [b"a1"]

    run(scenario)


def test_a_subscription_that_found_no_space_begins_where_it_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: World, events: Events) -> None:
        await world.send("chat", lite("a", b"old"))
        with monkeypatch.context() as patch:
            patch.setattr(world.log, "stage", refused)
            with pytest.raises(StoreFull):
                sync(world, "ann", "a")
        sync(world, "ann", "a")
        await world.send("chat", lite("a", b"new"))
        assert bodies(receive(world, "ann")) == [b"new"]

    run(scenario)
