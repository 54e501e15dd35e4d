"""`message receive` acknowledges what it prints; `message tail` looks on."""

import io
import json
import os

import pytest

from cosmodrome import Message
from cosmodrome.sync import Producer
from cosmodrome.testing import TestBroker
from cosmodrome.testing.clock import VirtualClock
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.cli import reading
from tests.server.cli.conftest import Cli


def bodies(lines: str) -> list[str]:
    return [json.loads(line)["body"] for line in lines.splitlines()]


def left_of(broker: TestBroker, topic: str, group: str) -> tuple[int, int]:
    """Ready and in flight."""
    left = broker.leftovers()
    return left.ready.get((group, topic), 0), left.in_flight.get((group, topic), 0)


def test_what_is_received_is_acknowledged(cli: Cli, broker: TestBroker) -> None:
    cli("message", "send", "post", "first")
    assert "body                first\n" in cli("message", "receive", "post", "--group", "p")
    cli("message", "send", "post", "not wanted")
    cli("message", "send", "post", "second", "--tag", "b")
    (second,) = json.loads(cli("message", "receive", "post", "--group", "p", "--tags=b", "--json"))
    assert (second["body"], second["attempt"]) == ("second", 1)
    assert left_of(broker, "post", "p") == (0, 0)


def test_what_is_kept_is_only_hidden(cli: Cli, broker: TestBroker) -> None:
    cli("message", "send", "kept", "x", "--property", "amount=200")
    condition = ("--sql", "amount > 100")
    told = cli("message", "receive", "kept", "--group", "k", "--keep", "10m", *condition)
    assert "property amount     200\n" in told
    assert left_of(broker, "kept", "k") == (0, 1)


def test_a_receive_that_finds_nothing_says_so(cli: Cli) -> None:
    cli("topic", "create", "empty")
    told = cli("message", "receive", "empty", "--group", "e", "--wait", "0s")
    assert told == "nothing came for e within 0s\n"
    assert cli("message", "receive", "empty", "--group", "e", "--wait=0s", "--json") == "[]\n"


def test_a_receive_waits_as_long_as_it_is_told_though_a_broker_waits_less_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, asked = VirtualClock(), list[int]()
    answers: list[list[pb.Message]] = [[], [], [pb.Message(body=b"late")]]

    def read(_: str, request: rpc.ReceiveMessageRequest, wait_ms: int) -> tuple[object, int]:
        assert request.long_polling_timeout.ToMilliseconds() == wait_ms
        asked.append(wait_ms)
        clock.advance(min(wait_ms, 20_000))
        return answers.pop(0), 0

    monkeypatch.setattr(reading, "read", read)
    request = rpc.ReceiveMessageRequest()
    (came,) = reading._first_of("", request, 3_600_000, clock)
    assert (came.body, asked) == (b"late", [20_000] * 3)
    answers[:], asked[:] = [[], []], []
    assert reading._first_of("", request, 20_500, clock) == []
    assert asked == [20_000]


def test_each_line_is_a_message(cli: Cli) -> None:
    assert cli("message", "send", "lines", "a\n\nb\n", "--lines", "--tag", "t") == (
        "messages sent: 2\n"
    )
    assert bodies(cli("message", "tail", "lines", "--json")) == ["a", "b"]


def test_many_large_lines_go_in_several_requests_and_a_refusal_tells_how_many_went(
    cli: Cli, broker: TestBroker
) -> None:
    sizes = (3 << 20, 3 << 20, 1, 5 << 20)
    lines = "\n".join("x" * size for size in sizes)
    with broker.recording() as calls:
        told = cli("message", "send", "large", lines, "--lines", code=1)
    assert calls.count("SendMessage") == 3
    assert "MESSAGE_BODY_TOO_LARGE" in told
    assert "messages sent before that: 3" in told


def test_lines_are_sent_as_they_come(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes them may pause in the middle of one, or never end."""
    seen: list[str] = []
    parts = [b"one\r\ntw", b"o\n\nthr", b"ee"]

    class Pipe(io.BytesIO):
        def read1(self, _: int | None = -1) -> bytes:
            seen.append(cli("topic", "list", "--prefix", "piped", "--json"))
            return parts.pop(0) if parts else b""

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Pipe()))
    assert cli("message", "send", "piped", "-", "--lines") == "messages sent: 3\n"
    assert [sum(row["messages"] for row in json.loads(text)) for text in seen] == [0, 1, 2, 2]
    assert bodies(cli("message", "tail", "piped", "--json")) == ["one", "two", "three"]


def test_a_body_is_any_bytes(cli: Cli) -> None:
    cli("message", "send", "bytes", os.fsdecode(b"\xff\xfe"))
    (message,) = map(json.loads, cli("message", "tail", "bytes", "--json").splitlines())
    assert message["body_base64"] == "//4="


def test_counts_that_make_no_sense_are_refused(cli: Cli) -> None:
    for words, option, value in (
        (("receive", "post", "--group", "p"), "--max", "0"),
        (("tail", "post"), "--max", "-1"),
        (("send", "post", "x"), "--priority", "-5"),
        (("find", "post", "--key", "k"), "--max", "99999999999"),
    ):
        assert f"'{option}'" in cli("message", *words, option, value, code=2)


def test_a_message_with_a_moment_tells_the_handle_that_recalls_it(cli: Cli) -> None:
    cli("topic", "create", "alarms", "--type", "delay")
    told = cli("message", "send", "alarms", "x", "--delay", "1h")
    handle = told.split()[-1]
    assert "is recalled" in cli("scheduled", "recall", "alarms", handle)
    twice = ("--delay", "1h", "--at", "2099-01-01T00:00:00Z")
    assert "--delay or --at" in cli("message", "send", "alarms", "x", *twice, code=2)
    assert "NAME=VALUE" in cli("message", "send", "alarms", "x", "--property", "a", code=2)


def test_a_tail_is_the_last_of_all_queues_in_their_order(cli: Cli) -> None:
    cli("topic", "create", "river", "--queues", "3")
    for number in range(7):
        cli("message", "send", "river", str(number))
    assert bodies(cli("message", "tail", "river", "--json", "--max", "3")) == ["4", "5", "6"]
    assert bodies(cli("message", "tail", "river", "--json", "--max", "0")) == []
    every = [str(number) for number in range(7)]
    assert bodies(cli("message", "tail", "river", "--json", "--since", "first")) == every
    later = cli("message", "tail", "river", "--since", "2099-01-01T00:00:00Z")
    assert later == ""
    assert "there is no topic nowhere" in cli("message", "tail", "nowhere", code=1)


def test_a_lite_topic_has_no_queues_to_look_at(cli: Cli) -> None:
    cli("topic", "create", "sessions", "--type", "lite")
    cli("message", "send", "sessions", "x", "--lite-topic", "s1")
    assert "sessions is a LITE topic" in cli("message", "tail", "sessions", code=1)
    cli("group", "create", "chat", "--lite-topic-of", "sessions")
    receive = ("message", "receive", "sessions", "--group", "chat", "--wait=0s")
    told = cli(*receive, code=1)
    assert "nothing came for chat: sessions is a LITE topic" in told
    assert cli(*receive, "--json", code=1) == told


def test_a_line_of_a_tail_is_one_line(cli: Cli) -> None:
    cli("message", "send", "words", "a\nb  " + "c" * 200, "--tag", "t", "--key", "k")
    (line,) = cli("message", "tail", "words").splitlines()
    assert line.endswith("c…")
    assert "/0  t  k  a b c" in line


def test_a_tail_that_follows_prints_what_comes_until_it_is_interrupted(
    cli: Cli, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("stream", queues=2)
    looks = iter(range(3))

    def rest(_: float) -> None:
        number = next(looks, None)
        if number is None:
            raise KeyboardInterrupt
        producer.send(Message("stream", str(number).encode()))

    monkeypatch.setattr("time.sleep", rest)
    with Producer(broker.endpoint) as producer:
        assert bodies(cli("message", "tail", "stream", "-f", "--json")) == ["0", "1", "2"]


def test_more_than_one_pull_takes_is_read_in_several(cli: Cli) -> None:
    cli("topic", "create", "long", "--queues", "1")
    text = "\n".join(map(str, range(250)))
    assert cli("message", "send", "long", text, "--lines") == "messages sent: 250\n"
    assert len(bodies(cli("message", "tail", "long", "--max", "240", "--json"))) == 240


def test_who_may_read_a_topic_may_look_at_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "security.authentication": "true",
        "security.authorization": "true",
        "security.admin_user": "root",
        "security.admin_secret": "s3cret123",
    }
    with TestBroker(settings=settings) as guarded:
        where = ("--endpoint", f"rocketmq://root:s3cret123@{guarded.endpoint}")
        cli("topic", "create", "orders", "--queues", "2", *where)
        cli("message", "send", "orders", "a", *where)
        monkeypatch.setenv("COSMODROME_NEW_SECRET", "cl3rksecret")
        cli("user", "create", "clerk", *where)
        cli("acl", "allow", "clerk", "sub", "Topic:orders", *where)
        cli("acl", "allow", "clerk", "sub", "Group:audit", *where)
        as_clerk = ("--json", "--endpoint", f"rocketmq://clerk:cl3rksecret@{guarded.endpoint}")
        tail = ("message", "tail", "orders", "--group", "audit")
        assert bodies(cli(*tail, *as_clerk)) == ["a"]
        assert bodies(cli(*tail, "--since", "first", *as_clerk)) == ["a"]
        assert "UNAUTHORIZED" in cli("message", "tail", "other", *as_clerk, code=1)


def test_a_long_topic_is_printed_as_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pulled: list[tuple[int, int]] = []

    def read(_: str, request: rpc.PullMessageRequest) -> tuple[list[pb.Message], int]:
        queue, offset = request.message_queue.id, request.offset
        pulled.append((queue, offset))
        message = pb.Message()
        message.system_properties.queue_id = queue
        message.system_properties.store_timestamp.seconds = 2 * offset + queue
        return [message], offset + 1

    monkeypatch.setattr(reading, "read", read)
    held = {queue: reading._Bounds(0, 1_000_000) for queue in (0, 1)}
    found = reading._between(reading._Reader("", "t", "g"), {}, held)
    ages = [next(found).system_properties.store_timestamp.seconds for _ in range(4)]
    assert (ages, len(pulled)) == ([0, 1, 2, 3], 5)
