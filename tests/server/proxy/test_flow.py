"""Flow control: buckets against a model, bounds per class, and what the refused are told."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import methods
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.config import ConfigError, Flow, load
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.proxy import flow, service
from cosmodrome_server.proxy.flow import Buckets, FlowControl, TokenBucket
from tests.support.broker_world import Clocks
from tests.support.proxy_world import (
    ProxyWorld,
    ack_request,
    change_request,
    handle_of,
    message,
    receive_request,
    resource,
    run,
)

ASKED = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 50)), max_size=60)


@given(st.integers(1, 100), ASKED)
def test_a_bucket_is_what_its_rate_says(rate: int, asked: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, 0)
    now_ms, level = 0, Fraction(rate)
    for elapsed_ms, cost in asked:
        now_ms += elapsed_ms
        level = min(Fraction(rate), level + Fraction(elapsed_ms * rate, 1000))
        is_admitted = level >= min(cost, rate)
        assert (bucket.wait_ms(cost, now_ms) == 0) is is_admitted
        if is_admitted:
            bucket.take(cost)
            level -= cost


@given(st.integers(1, 100), ASKED, st.integers(1, 200))
def test_who_comes_back_when_told_is_admitted_and_a_millisecond_sooner_is_not(
    rate: int, asked: list[tuple[int, int]], cost: int
) -> None:
    bucket = TokenBucket(rate, 0)
    now_ms = 0
    for elapsed_ms, one in asked:
        now_ms += elapsed_ms
        if not bucket.wait_ms(one, now_ms):
            bucket.take(one)
    wait_ms = bucket.wait_ms(cost, now_ms)
    if wait_ms:
        assert bucket.wait_ms(cost, now_ms + wait_ms - 1) == 1
    assert bucket.wait_ms(cost, now_ms + wait_ms) == 0


@given(st.integers(1, 20), st.lists(st.integers(0, 400), max_size=100))
def test_no_window_admits_more_than_a_burst_and_its_rate(rate: int, gaps: list[int]) -> None:
    bucket = TokenBucket(rate, 0)
    now_ms, admitted = 0, []
    for gap in gaps:
        now_ms += gap
        if not bucket.wait_ms(1, now_ms):
            bucket.take(1)
            admitted.append(now_ms)
    for first, begin in enumerate(admitted):
        for last, end in enumerate(admitted[first:], 1):
            assert last <= rate + Fraction((end - begin) * rate, 1000)


def test_buckets_are_bounded_and_the_one_idle_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "BUCKETS_MAX", 2)
    buckets = Buckets("{name} {rate}", "s", 1, "t", {})

    def is_admitted(name: str) -> bool:
        try:
            bucket = buckets.admitting(name, 1, 0)
        except OverloadedError:
            return False
        assert bucket is not None
        bucket.take(1)
        return True

    assert is_admitted("a")
    assert is_admitted("b")
    assert not is_admitted("a")
    assert is_admitted("c")  # in the place of b
    assert len(buckets) == 2
    assert not is_admitted("a")
    assert is_admitted("b")


def test_long_names_are_not_kept_whole() -> None:
    buckets = Buckets("{name} {rate}", "s", 1, "t", {})
    assert buckets.admitting("x" * 100_000, 1, 0) is buckets.admitting("x" * 200_000, 1, 0)


def test_every_method_of_clients_has_a_class() -> None:
    unary = {one.name for one in methods(service.MESSAGING_SERVICE)} - {"Telemetry"}
    assert set(flow.CLASSES) == unary


@pytest.mark.parametrize("method", flow.CLASSES)
def test_without_rates_nothing_is_asked(method: str) -> None:
    settings = Flow(topics={"t": 0}, groups={"g": 0})
    control = FlowControl(settings, Clocks(), lambda: pytest.fail("no reply"))
    assert control.charge_of(method) is None


def test_a_negative_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"flow\.topics"):
        load(None, environment={}, overrides={"flow.topics": "t=-1"})


def test_sends_to_a_topic_are_bounded_by_messages() -> None:
    async def scenario(world: ProxyWorld) -> None:
        two = message(), message()
        assert (await world.send(*two)).status.code == pb.OK
        refused = (await world.send(*two)).status
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert refused.message == (
            "topic normal takes 3 messages a second (flow.topic_sends_per_s); come back in 334 ms"
        )
        assert (await world.send(message())).status.code == pb.OK, "one was left"
        assert (await world.send(message(topic="mixed"))).status.code == pb.OK
        world.clocks.pass_ms(667)
        assert (await world.send(*two)).status.code == pb.OK

    run(scenario, flow__topic_sends_per_s="3")


def test_a_topic_can_have_a_rate_of_its_own_or_none() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert (await world.send(*[message()] * 2)).status.code == pb.OK
        refused = (await world.send(message())).status
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert "2 messages a second (flow.topics)" in refused.message
        for _ in range(5):
            assert (await world.send(message(topic="mixed"))).status.code == pb.OK
        assert (await world.send(message(topic="fifo", message_group="g"))).status.code == pb.OK
        again = await world.send(message(topic="fifo", message_group="g"))
        assert again.status.code == pb.TOO_MANY_REQUESTS

    run(scenario, flow__topic_sends_per_s="1", flow__topics="normal=2,mixed=0")


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        ({"flow__group_receives_per_s": "1"}, "flow.group_receives_per_s"),
        ({"flow__groups": "billing=1"}, "flow.groups"),
    ],
)
def test_receives_of_a_group_are_bounded(overrides: dict[str, str], setting: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        assert len(await world.receive()) == 1
        (refused,) = await world.answer("ReceiveMessage", receive_request())
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert refused.status.message == (
            f"group billing may receive 1 times a second ({setting}); come back in 1000 ms"
        )
        pull = rpc.PullMessageRequest(group=resource("billing"))
        assert await world.code("PullMessage", pull) == pb.TOO_MANY_REQUESTS
        world.clocks.pass_ms(1_000)
        await world.send(message())
        assert len(await world.receive()) == 1

    run(scenario, **overrides)


def test_calls_of_a_client_are_bounded_but_its_heartbeats_are_not() -> None:
    async def scenario(world: ProxyWorld) -> None:
        route = rpc.QueryRouteRequest(topic=resource("normal"))
        for _ in range(2):
            assert await world.code("QueryRoute", route) == pb.OK
        refused = (await world.call("QueryRoute", route)).status
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert "client client may make 2 calls a second (flow.client_calls_per_s)" in (
            refused.message
        )
        beat = rpc.HeartbeatRequest(client_type=pb.PRODUCER)
        assert await world.code("Heartbeat", beat) != pb.TOO_MANY_REQUESTS
        assert await world.code("QueryRoute", route, client_id="another") == pb.OK

    run(scenario, flow__client_calls_per_s="2")


def test_a_call_one_bucket_refuses_takes_nothing_of_the_other() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert (await world.send(message())).status.code == pb.OK
        for _ in range(5):
            assert "topic normal" in (await world.send(message())).status.message
        route = rpc.QueryRouteRequest(topic=resource("normal"))
        assert await world.code("QueryRoute", route) == pb.OK

    run(scenario, flow__client_calls_per_s="2", flow__topic_sends_per_s="1")


def test_a_refused_change_gives_the_handle_back() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (received,) = await world.receive()
        handle = handle_of(received)
        refused = await world.call("ChangeInvisibleDuration", change_request(handle, 20_000))
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert refused.receipt_handle == handle
        world.clocks.pass_ms(1_000)
        changed = await world.call("ChangeInvisibleDuration", change_request(handle, 20_000))
        assert changed.status.code == pb.OK

    run(scenario, flow__client_calls_per_s="2")


def test_calls_under_way_are_bounded_per_class_until_they_are_durable() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        (received,) = await world.receive()
        world.world.log.holding = True
        sends = [
            world.begin("SendMessage", rpc.SendMessageRequest(messages=[message()]))
            for _ in range(3)
        ]
        assert [call.ended is not None for call in sends] == [False, False, True]
        refused = rpc.SendMessageResponse.FromString(sends[2].messages[0]).status
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert refused.message == (
            "2 producer calls are under way (flow.calls_per_class); come back in 100 ms"
        )
        ack = world.begin("AckMessage", ack_request(handle_of(received)))
        assert ack.ended is None, "consumers have a lane of their own"
        await world.world.release()
        assert all(call.ended is not None for call in [*sends, ack])
        assert (await world.send(message())).status.code == pb.OK

    run(scenario, flow__calls_per_class="2")


def test_calls_that_went_away_are_under_way_no_longer() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.world.log.holding = True
        request = rpc.SendMessageRequest(messages=[message()])
        world.begin("SendMessage", request).cancel()
        await world.world.release()
        assert (await world.send(message())).status.code == pb.OK

    run(scenario, flow__calls_per_class="1")


def test_a_bucket_that_filled_up_is_forgotten_when_others_come() -> None:
    buckets = Buckets("{name} {rate}", "s", 2, "t", {})

    def ask(name: str, now_ms: int) -> None:
        bucket = buckets.admitting(name, 2, now_ms)
        assert bucket is not None
        bucket.take(2)

    for name in "abc":
        ask(name, 0)
    ask("d", 999)  # they lack a little still
    assert len(buckets) == 4
    ask("e", 1_000)
    ask("f", 1_000)
    assert len(buckets) == 3, "a, b and c went, two by two"


def test_a_bucket_goes_on_with_a_new_rate_and_what_it_owes() -> None:
    buckets = Buckets("{name} {rate}", "s", 1, "t", {})
    bucket = buckets.admitting("a", 10, 0)
    assert bucket is not None
    bucket.take(10)
    buckets.adopt(100, {})
    with pytest.raises(OverloadedError, match=r"a 100 \(s\); come back in 100 ms"):
        buckets.admitting("a", 1, 0)
    assert buckets.admitting("a", 1, 100) is not None
    buckets.adopt(0, {"a": 7})
    with pytest.raises(OverloadedError, match=r"a 7 \(t\)"):
        buckets.admitting("a", 8, 100)
    assert buckets.admitting("b", 1, 0) is None


def test_new_settings_are_taken_up_while_calls_come_in() -> None:
    async def scenario(world: ProxyWorld) -> None:
        for _ in range(5):
            assert (await world.send(message())).status.code == pb.OK
        assert world.context.flow is not None
        adopt = world.context.flow.adopt
        adopt(Flow(topic_sends_per_s=1, group_receives_per_s=1, client_calls_per_s=5))
        assert (await world.send(message())).status.code == pb.OK
        assert "(flow.topic_sends_per_s)" in (await world.send(message())).status.message
        adopt(Flow(client_calls_per_s=1))
        assert (await world.send(message(topic="mixed"))).status.code == pb.OK
        assert "(flow.client_calls_per_s)" in (await world.send(message())).status.message
        adopt(Flow(calls_per_class=1))
        world.world.log.holding = True
        request = rpc.SendMessageRequest(messages=[message()])
        held, refused = (world.begin("SendMessage", request) for _ in range(2))
        assert held.ended is None
        assert world.context.flow.under_way()["producer"] == 1
        assert b"flow.calls_per_class" in refused.messages[0]
        await world.world.release()

    run(scenario)


def test_every_refusal_is_counted_by_the_setting_that_holds_the_bound() -> None:
    async def scenario(world: ProxyWorld) -> None:
        refused: list[str] = []
        answered: list[tuple[str, int]] = []
        world.context.bounded = refused.append
        world.context.observe = lambda rpc_name, code: answered.append((rpc_name, code))
        await world.send(message(), message(), message())
        await world.send(message())
        assert len(await world.receive()) == 3
        world.begin("ReceiveMessage", receive_request())
        world.begin("ReceiveMessage", receive_request())
        await world.world.settle()
        world.begin("ReceiveMessage", receive_request())
        assert refused == [
            "flow.topic_sends_per_s",
            "delivery.waiters_per_group",
            "flow.group_receives_per_s",
        ]
        assert answered == [
            ("SendMessage", pb.OK),
            ("SendMessage", pb.TOO_MANY_REQUESTS),
            ("ReceiveMessage", pb.OK),
            ("ReceiveMessage", pb.TOO_MANY_REQUESTS),
            ("ReceiveMessage", pb.TOO_MANY_REQUESTS),
        ]

    run(
        scenario,
        flow__topic_sends_per_s="3",
        flow__group_receives_per_s="3",
        delivery__waiters_per_group="1",
    )
