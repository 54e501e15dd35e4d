"""Sessions: pushes, restarts, the newest stream, questions to clients."""

import asyncio
from typing import NoReturn

import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BrokerError, ClientTimeout, NotFound, StoreFull
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.message import StoredMessage
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy.activities.telemetry import SETTINGS_BYTES_MAX
from cosmodrome_server.proxy.front import GrpcStatus
from tests.support.proxy_world import (
    ProxyWorld,
    consumer_settings,
    message,
    producer_settings,
    resource,
    run,
)

BEAT = rpc.HeartbeatRequest(group=resource("billing"))


def test_members_of_a_changed_group_learn_at_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        member = world.telemetry(consumer_settings(), client_id="member")
        other = world.telemetry(consumer_settings("ledger"), client_id="other")
        world.world.broker.create_group(Group("billing", max_attempts=7, is_fifo=True))
        pushed = member.commands()[-1]
        assert len(member.messages) == 2
        assert pushed.settings.backoff_policy.max_attempts == 7
        assert pushed.settings.subscription.fifo
        assert len(other.messages) == 1

    run(scenario)


def test_those_who_use_a_changed_topic_learn_at_once() -> None:
    async def scenario(world: ProxyWorld) -> None:
        producer = world.telemetry(producer_settings("normal"), client_id="p")
        world.world.broker.create_topic(Topic("normal", queues=4))
        assert len(producer.messages) == 2

    run(scenario)


def test_a_thousand_members_learn_in_turns_of_the_loop() -> None:
    async def scenario(world: ProxyWorld) -> None:
        members = [world.telemetry(consumer_settings(), client_id=str(n)) for n in range(1_000)]
        world.world.broker.create_group(Group("billing", max_attempts=7))
        assert 0 < sum(len(member.messages) == 2 for member in members) < 500
        members[-1].cancel()
        changed = consumer_settings("ledger")
        members[-2].say(rpc.TelemetryCommand(settings=changed))
        for _ in range(8):
            await asyncio.sleep(0)
        assert all(len(member.messages) == 2 for member in members[:-2])
        assert [len(member.messages) for member in members[-2:]] == [3, 1]
        assert members[-2].commands()[-1].settings.subscription.group.name == "ledger"

    run(scenario)


def test_a_client_that_is_deaf_at_first_is_told_its_settings_again() -> None:
    """Of several topics the official Node.js client would not start: it does not listen yet."""

    async def scenario(world: ProxyWorld) -> None:
        settings = producer_settings("normal")
        others = world.telemetry(settings, client_id="java")
        settings.user_agent.language = pb.NODE_JS
        node = world.telemetry(settings, client_id="node")
        gone = world.telemetry(settings, client_id="gone")
        gone.cancel()
        counts = []
        for _ in range(30):
            await world.later(1_000)
            counts.append(len(node.messages))
        assert counts[:6] == [2, 2, 2, 2, 3, 3]
        assert counts[19:22] == [3, 4, 4]
        assert counts[-1] == 4
        assert len(set(node.messages)) == 1
        assert len(others.messages) == len(gone.messages) == 1
        node.say(rpc.TelemetryCommand(settings=settings))
        await world.later(2_000)
        assert len(node.messages) == 5, "the answer, and no more"

    run(scenario)


def test_at_the_end_every_stream_ends_also_an_older_one_and_one_that_said_nothing() -> None:
    async def scenario(world: ProxyWorld) -> None:
        older, newer, silent = (
            world.telemetry(producer_settings("normal"), client_id="p"),
            world.telemetry(producer_settings("normal"), client_id="p"),
            world.telemetry(),
        )
        gone = world.telemetry(producer_settings("normal"), client_id="gone")
        gone.cancel()
        assert world.sessions.has_streams
        world.sessions.reconnect_all()
        world.sessions.close()
        late = world.telemetry()
        assert not world.sessions.has_streams
        for call in (older, newer, silent, late):
            assert call.ended == (GrpcStatus.OK, "")
        for call in (older, newer, silent):
            assert call.commands()[-1].HasField("reconnect_endpoints_command")
        assert gone.ended is None

    run(scenario)


def test_a_stream_that_ended_is_known_no_longer() -> None:
    async def scenario(world: ProxyWorld) -> None:
        refused = world.telemetry(pb.Settings())
        assert refused.ended is not None
        done = world.telemetry(producer_settings("normal"))
        done.say(None)
        assert not world.sessions.has_streams

    run(scenario)


def test_a_stream_that_met_a_bug_is_known_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError

    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry()
        monkeypatch.setattr(world.sessions, "register", fail)
        with pytest.raises(ZeroDivisionError):
            call.say(rpc.TelemetryCommand(settings=producer_settings("normal")))
        assert not world.sessions.has_streams

    run(scenario)


def test_settings_larger_than_is_kept_of_a_client_are_refused() -> None:
    async def scenario(world: ProxyWorld) -> None:
        settings = producer_settings("normal")
        settings.user_agent.hostname = "x" * (SETTINGS_BYTES_MAX - 100)
        assert world.telemetry(settings, client_id="fits").ended is None
        settings.user_agent.hostname = "x" * SETTINGS_BYTES_MAX
        call = world.telemetry(settings, client_id="too large")
        assert call.ended is not None
        assert call.ended[0] is GrpcStatus.INVALID_ARGUMENT
        assert world.sessions.known.get("too large") is None

    run(scenario)


def test_a_command_too_large_to_be_one_is_not_read() -> None:
    async def scenario(world: ProxyWorld) -> None:
        call = world.telemetry(consumer_settings(), client_id="c")
        trace = rpc.ThreadStackTrace(nonce="n", thread_stack_trace="x" * (3 << 20))
        call.say(rpc.TelemetryCommand(thread_stack_trace=trace))
        assert call.ended is None
        trace.thread_stack_trace *= 2
        call.say(rpc.TelemetryCommand(thread_stack_trace=trace))
        assert call.ended is not None
        assert call.ended[0] is GrpcStatus.INVALID_ARGUMENT
        assert "6291" in call.ended[1]

    run(scenario)


def test_a_deleted_group_pushes_nothing() -> None:
    async def scenario(world: ProxyWorld) -> None:
        member = world.telemetry(consumer_settings())
        world.world.broker.delete_group("billing")
        assert len(member.messages) == 1

    run(scenario)


def test_after_a_restart_a_client_that_does_not_re_sync_still_works() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings())
        await world.world.settle()
        await world.restart()
        assert await world.code("Heartbeat", BEAT) == pb.OK
        await world.send(message())
        assert len(await world.receive(auto_renew=True)) == 1

    run(scenario)


def test_a_client_that_left_before_the_restart_is_not_known_after_it() -> None:
    async def scenario(world: ProxyWorld) -> None:
        world.telemetry(consumer_settings())
        await world.call(
            "NotifyClientTermination", rpc.NotifyClientTerminationRequest(group=resource("billing"))
        )
        await world.restart()
        assert await world.code("Heartbeat", BEAT) == pb.UNRECOGNIZED_CLIENT_TYPE
        assert world.world.broker.kept("client/") == {}

    run(scenario)


def test_the_newest_stream_of_a_client_is_the_one_written_to() -> None:
    async def scenario(world: ProxyWorld) -> None:
        old = world.telemetry(consumer_settings())
        new = world.telemetry(consumer_settings())
        world.world.broker.create_group(Group("billing", max_attempts=7))
        assert (len(old.messages), len(new.messages)) == (1, 2)
        old.cancel()
        world.world.broker.create_group(Group("billing", max_attempts=8))
        assert len(new.messages) == 3

    run(scenario)


def test_a_client_whose_stream_closed_and_that_is_silent_holds_messages_no_longer() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        stream = world.telemetry(consumer_settings())
        assert len(await world.receive(auto_renew=True)) == 1
        stream.cancel()
        for _ in range(6):
            await world.later(10_000)
            assert await world.code("Heartbeat", BEAT) == pb.OK
        assert await world.receive_nothing(), "it heartbeats, so it lives"
        for _ in range(3):
            await world.later(10_000)
        await world.later(1_100)
        (again,) = await world.receive()
        assert again.system_properties.delivery_attempt == 2
        assert await world.code("Heartbeat", BEAT) == pb.OK, "it is known still"

    run(scenario)


def test_a_client_that_opens_a_new_stream_keeps_its_messages() -> None:
    async def scenario(world: ProxyWorld) -> None:
        await world.send(message())
        stream = world.telemetry(consumer_settings())
        assert len(await world.receive(auto_renew=True)) == 1
        stream.cancel()
        await world.later(20_000)
        world.telemetry(consumer_settings())
        for _ in range(5):
            await world.later(10_000)
        assert await world.receive_nothing()

    run(scenario)


def half(topic: str) -> StoredMessage:
    system = pb.SystemProperties(message_id="id1", message_type=pb.TRANSACTION)
    return StoredMessage(topic, 0, 0, 1, system.SerializeToString(), b"", b"half")


def test_an_orphaned_transaction_is_put_to_a_live_producer_of_its_topic() -> None:
    async def scenario(world: ProxyWorld) -> None:
        assert not world.events.check_transaction(half("transaction"), "tx1")
        gone = world.telemetry(producer_settings("transaction"), client_id="gone")
        gone.cancel()
        world.telemetry(producer_settings("normal"), client_id="other")
        live = world.telemetry(producer_settings("transaction"), client_id="live")
        assert world.events.check_transaction(half("transaction"), "tx1")
        asked = live.commands()[-1].recover_orphaned_transaction_command
        assert asked.transaction_id == "tx1"
        assert asked.message.body == b"half"
        assert asked.message.system_properties.message_id == "id1"

    run(scenario)


def test_producers_are_asked_in_turn() -> None:
    async def scenario(world: ProxyWorld) -> None:
        producers = [
            world.telemetry(producer_settings("transaction"), client_id=f"p{n}") for n in range(3)
        ]
        for _ in range(6):
            assert world.events.check_transaction(half("transaction"), "tx1")
        assert [len(one.messages) for one in producers] == [3, 3, 3]

    run(scenario)


def trace_question(nonce: str) -> rpc.TelemetryCommand:
    ask = rpc.PrintThreadStackTraceCommand(nonce=nonce)
    return rpc.TelemetryCommand(print_thread_stack_trace_command=ask)


def test_a_question_is_answered_by_its_nonce_once_and_by_its_client_alone() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answers: list[rpc.TelemetryCommand | BrokerError] = []
        stream = world.telemetry(consumer_settings())
        stranger = world.telemetry(consumer_settings(), client_id="stranger")
        world.sessions.ask("client", trace_question, answers.append)
        nonce = stream.commands()[-1].print_thread_stack_trace_command.nonce
        trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: asleep")
        said = rpc.TelemetryCommand(thread_stack_trace=trace)
        stranger.say(said)
        assert answers == []
        stream.say(said)
        stream.say(said)
        assert answers == [said]

    run(scenario)


def test_a_question_nobody_answers_times_out_after_5_s() -> None:
    async def scenario(world: ProxyWorld) -> None:
        answers: list[rpc.TelemetryCommand | BrokerError] = []
        world.telemetry(consumer_settings())
        world.sessions.ask("client", trace_question, answers.append)
        await world.later(4_999)
        assert answers == []
        await world.later(1)
        assert isinstance(answers[0], ClientTimeout)
        with pytest.raises(NotFound):
            world.sessions.ask("nobody", trace_question, answers.append)

    run(scenario)


@pytest.mark.parametrize("stuck", [{0}, {1}, {0, 2}, {1, 2}, {0, 1}])
@pytest.mark.parametrize("producers", [2, 3])
def test_a_producer_that_takes_nothing_does_not_keep_the_others_from_being_asked(
    stuck: set[int], producers: int
) -> None:
    async def scenario(world: ProxyWorld) -> None:
        calls = [
            world.telemetry(producer_settings("transaction"), client_id=f"p{number}")
            for number in range(producers)
        ]
        well = [call for number, call in enumerate(calls) if number not in stuck]
        for number, call in enumerate(calls):
            call.is_gone = number in stuck
        for _ in range(6):
            is_asked = world.sessions.ask_producer("transaction", rpc.TelemetryCommand())
            assert is_asked == bool(well)
        assert all(len(call.messages) > 1 for call in well)

    run(scenario)


def test_a_lite_topic_taken_over_is_told_to_the_one_who_lost_it() -> None:
    async def scenario(world: ProxyWorld) -> None:
        stream = world.telemetry(consumer_settings())
        world.events.lite_unsubscribed("client", "billing", "chat-1")
        command = stream.commands()[-1].notify_unsubscribe_lite_command
        assert command.lite_topic == "chat-1"

    run(scenario)


def test_before_a_stop_every_client_is_asked_to_connect_anew() -> None:
    async def scenario(world: ProxyWorld) -> None:
        streams = [world.telemetry(consumer_settings(), client_id=f"c{n}") for n in range(2)]
        world.sessions.reconnect_all()
        world.sessions.close()
        for stream in streams:
            assert stream.commands()[-1].reconnect_endpoints_command.nonce
            assert stream.ended is not None

    run(scenario)


def test_clients_that_fell_silent_while_the_disk_was_full_are_forgotten_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> NoReturn:
        raise StoreFull("no space even for this: the test says so")

    async def scenario(world: ProxyWorld) -> None:
        for client_id in ("a", "b"):
            world.telemetry(consumer_settings(), client_id=client_id)
        await world.world.settle()
        sessions = world.context.sessions
        with monkeypatch.context() as patch:
            patch.setattr(world.world.log, "stage", refused)
            world.clocks.pass_ms(120_000)
            sessions.tick()
        world.clocks.pass_ms(120_000)
        sessions.tick()
        assert len(sessions.known) == 0
        assert world.world.broker.kept("client/") == {}

    run(scenario)
