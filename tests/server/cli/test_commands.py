"""What the commands print, as text and as JSON, and how they fail, against a broker that runs."""

import contextlib
import errno
import io
import json
from pathlib import Path

import pytest
import typer

from cosmodrome import Message
from cosmodrome.sync import Producer, SimpleConsumer
from cosmodrome.testing import TestBroker
from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server.cli import dead_letters
from cosmodrome_server.cli.connect import refuse
from cosmodrome_server.cli.root import run
from tests.server.cli.conftest import Cli


def test_a_topic_is_created_listed_shown_and_deleted(cli: Cli) -> None:
    assert cli("topic", "create", "shown", "--queues", "2") == "topic shown: normal, 2 queues\n"
    assert "shown  normal  2       0" in cli("topic", "list", "--prefix", "shown")
    assert json.loads(cli("topic", "list", "--prefix", "shown", "--json")) == [
        {"topic": "shown", "type": "normal", "queues": 2, "messages": 0}
    ]
    assert [row["next"] for row in json.loads(cli("topic", "show", "shown", "--json"))] == [0, 0]
    cli("topic", "delete", "shown", "--yes")
    assert json.loads(cli("topic", "list", "--prefix", "shown", "--json")) == []
    assert "there is no topic shown" in cli("topic", "show", "shown", code=1)


def test_a_group_says_how_far_it_is_behind(cli: Cli) -> None:
    cli("group", "create", "late", "--max-attempts", "3", "--backoff", "1s,5s")
    (told,) = json.loads(cli("group", "list", "--prefix", "late", "--json"))
    assert (told["group"], told["attempts"], told["in_flight"]) == ("late", 3, 0)
    assert cli("group", "show", "late").startswith("late: standard, 3 attempts\n")
    cli("group", "create", "late", "--paused")
    assert cli("group", "show", "late").partition("\n")[0].endswith(" attempts, paused")
    assert "there is no consumer group never" in cli("group", "show", "never", code=1)


def test_a_change_leaves_what_it_does_not_name(cli: Cli) -> None:
    cli("topic", "create", "steps", "--type", "fifo", "--retention", "7d", "--queues", "2")
    assert cli("topic", "create", "steps", "--queues", "4") == "topic steps: fifo, 4 queues\n"
    cli("group", "create", "walker", "--fifo", "--max-attempts", "5")
    assert cli("group", "create", "walker", "--paused") == "group walker: fifo, 5 attempts\n"
    assert cli("group", "show", "walker").startswith("walker: fifo, 5 attempts, paused\n")
    cli("group", "create", "walker", "--no-paused")
    assert cli("group", "show", "walker").startswith("walker: fifo, 5 attempts\n")


def test_a_message_is_sent_found_and_shown_whole(cli: Cli) -> None:
    cli("message", "send", "notes", "Grüße", "--tag", "a", "--key", "k1", "--key", "k2")
    (found,) = json.loads(cli("message", "find", "notes", "--key", "k2", "--json"))
    shown = cli("message", "show", "notes", found["message"])
    assert "keys                k1 k2\n" in shown
    assert "body                Grüße\n" in shown
    assert "MESSAGE_NOT_FOUND" in cli("message", "show", "notes", "0" * 32, code=1)
    assert "give --id or --key" in cli("message", "find", "notes", code=2)


def test_a_body_that_was_packed_is_shown_unpacked_and_one_that_is_no_text_as_base64(
    cli: Cli, broker: TestBroker
) -> None:
    with Producer(broker.endpoint, topics=["bodies"], compress_above=10) as producer:
        packed = producer.send(Message("bodies", b"long " * 20, properties={"colour": "red"}))
        binary = producer.send(Message("bodies", b"\xff\x00"))
    (first,) = json.loads(cli("message", "show", "bodies", packed.message_id, "--json"))
    assert (first["body"], first["property colour"]) == ("long " * 20, "red")
    (second,) = json.loads(cli("message", "show", "bodies", binary.message_id, "--json"))
    assert second["body_base64"] == "/wA="


def test_a_body_of_any_size_is_shown(cli: Cli, broker: TestBroker) -> None:
    body = b"x" * (4 << 20)
    with Producer(broker.endpoint, topics=["bodies"], compress_above=2 * len(body)) as producer:
        large = producer.send(Message("bodies", body))
    (shown,) = json.loads(cli("message", "show", "bodies", large.message_id, "--json"))
    assert shown["body"] == body.decode()


def test_a_delayed_message_is_sent_listed_and_recalled(cli: Cli) -> None:
    cli("topic", "create", "later", "--type", "delay")
    cli("message", "send", "later", "x", "--delay", "2h")
    (waiting,) = json.loads(cli("scheduled", "list", "--topic", "later", "--json"))
    assert waiting["topic"] == "later"
    assert "is recalled" in cli("scheduled", "recall", "later", waiting["recall_handle"])
    assert "is no duration" in cli("message", "send", "later", "x", "--delay", "soon", code=2)


def test_dead_letters_are_listed_shown_and_sent_back(cli: Cli, broker: TestBroker) -> None:
    cli("group", "create", "strict", "--max-attempts", "1")
    cli("message", "send", "bills", "poison", "--key", "42")
    with SimpleConsumer(broker.endpoint, group="strict", subscriptions={"bills": "*"}) as consumer:
        (message,) = consumer.receive()
        # The last attempt is over: the broker moves it to the dead letters in the same frame.
        consumer.change_invisible_duration(message, 0)
    assert {"group": "strict", "dead_letters": 1} in json.loads(cli("dlq", "list", "--json"))
    (letter,) = json.loads(cli("dlq", "show", "strict", "--json"))
    assert (letter["body"], letter["origin_topic"]) == ("poison", "bills")
    assert "1 dead letters of strict would go back" in cli("dlq", "redrive", "strict", "--dry-run")
    assert "1 dead letters of strict went back, 0" in cli("dlq", "redrive", "strict")
    assert {row["group"] for row in json.loads(cli("dlq", "list", "--json"))}.isdisjoint({"strict"})
    assert json.loads(cli("dlq", "show", "nobody", "--json")) == []


def test_a_redrive_that_is_refused_half_way_tells_how_many_went_back(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [wire.RedriveResponse(moved=256, remaining=9, next_offset=256)]

    def answered(*_: object) -> wire.RedriveResponse:
        return answers.pop() if answers else refuse("TOPIC_NOT_FOUND: topic bills does not exist")

    monkeypatch.setattr(dead_letters, "control", answered)
    told = cli("dlq", "redrive", "strict", code=1)
    assert "256 dead letters of strict went back before that" in told
    assert "bills does not exist" in told


def test_a_reset_goes_to_a_beginning_a_moment_or_an_offset_of_a_queue(cli: Cli) -> None:
    cli("topic", "create", "moved", "--queues", "2")
    cli("group", "create", "moved")
    assert cli("offset", "reset", "moved", "moved", "--to", "last").count("\n") == 3
    one = cli("offset", "reset", "moved", "moved", "--queue", "1", "--offset", "0")
    assert one == "QUEUE  OFFSET\n1      0\n"
    assert "give --to, or" in cli("offset", "reset", "moved", "moved", code=2)
    both = ("--to", "first", "--offset", "0")
    assert "give --to, or" in cli("offset", "reset", "moved", "moved", *both, code=2)
    assert "give --queue, too" in cli("offset", "reset", "moved", "moved", "--offset=1", code=2)


def test_a_group_without_dead_letters_is_said_to_have_none(cli: Cli) -> None:
    assert cli("dlq", "show", "nobody") == "nobody has no dead letters\n"


def test_a_reset_creates_neither_the_topic_nor_the_group_it_does_not_find(cli: Cli) -> None:
    cli("topic", "create", "there")
    cli("group", "create", "there")
    assert "there is no topic tyop" in cli("offset", "reset", "there", "tyop", "--to=last", code=1)
    told = cli("offset", "reset", "tyop", "there", "--to", "last", code=1)
    assert "there is no consumer group tyop" in told
    assert json.loads(cli("topic", "list", "--prefix", "tyop", "--json")) == []
    assert json.loads(cli("group", "list", "--prefix", "tyop", "--json")) == []
    assert "0      0" in cli("offset", "reset", "there", "there", "--to", "first")


def test_users_need_a_secret_and_rules_are_explained(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "set COSMODROME_NEW_SECRET" in cli("user", "create", "clerk", code=2)
    monkeypatch.setenv("COSMODROME_NEW_SECRET", "s3cret")
    cli("user", "create", "clerk")
    assert {"user": "clerk", "type": "normal", "state": "enabled"} in json.loads(
        cli("user", "list", "--json")
    )
    cli("acl", "allow", "clerk", "sub", "Topic:orders")
    (rule,) = json.loads(cli("acl", "list", "--user", "clerk", "--json"))
    assert (rule["decision"], rule["from"]) == ("allow", "anywhere")


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("127.0.0.1:1", "nobody listens there"),
        ("no-such-host.invalid:8081", "there is no such host"),
    ],
)
def test_a_broker_that_is_not_there_is_said_in_plain_words(
    cli: Cli, endpoint: str, words: str
) -> None:
    assert words in cli("topic", "list", "--endpoint", endpoint, code=1)


def test_a_certificate_that_is_not_trusted_is_said_in_plain_words(
    cli: Cli, broker: TestBroker
) -> None:
    with TestBroker(settings={"tls.mode": "auto"}) as own:
        told = cli("topic", "list", "--endpoint", f"https://{own.endpoint}", code=1)
    assert "COSMODROME_CA" in told
    told = cli("topic", "list", "--endpoint", f"https://{broker.endpoint}", code=1)
    assert "leave https:// out" in told


def test_plaintext_where_tls_is_required_is_said_at_once(cli: Cli) -> None:
    pytest.importorskip("cosmodrome_gate")
    with TestBroker(settings={"tls.mode": "required", "server.front": "gate"}) as own:
        told = cli("topic", "list", "--endpoint", own.endpoint, code=1)
    assert "takes TLS only" in told
    assert "did not answer" not in told


def test_tls_with_the_brokers_own_certificate_works(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestBroker(settings={"tls.mode": "required"}, data=tmp_path) as own:
        where = ("--endpoint", f"https://{own.endpoint}", "--json")
        monkeypatch.setenv("COSMODROME_CA", str(tmp_path / "tls" / "development.crt"))
        assert json.loads(cli("topic", "list", *where)) == []
        monkeypatch.setenv("COSMODROME_CA", str(tmp_path / "nowhere"))
        assert "cannot read COSMODROME_CA" in cli("topic", "list", *where, code=1)


def test_a_call_that_is_not_signed_is_told_what_signs_it(cli: Cli) -> None:
    guarded = {
        "security.authentication": "true",
        "security.admin_user": "root",
        "security.admin_secret": "s3cret123",
    }
    with TestBroker(settings=guarded) as own:
        told = cli("topic", "list", "--endpoint", own.endpoint, code=1)
    assert "COSMODROME_ACCESS_KEY and COSMODROME_SECRET_KEY" in told


def test_a_command_that_does_not_exist_is_a_usage_error(cli: Cli) -> None:
    assert "no command topics" in cli("topics", code=2)


@pytest.mark.parametrize("command", ["check", "dump", "rebuild"])
def test_a_folder_that_is_no_brokers_is_neither_called_whole_nor_written_to(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    assert "holds no data of a broker" in cli("store", command, "--data", str(tmp_path), code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_redrive_moves_no_more_a_second_than_its_rate(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    slept: list[float] = []

    def answered(_endpoint: str, _name: str, request: wire.RedriveRequest, _: object) -> object:
        asked.append(request.max_messages)
        done = len(asked) == 3
        moved = min(request.max_messages, 256)
        return wire.RedriveResponse(moved=moved, next_offset=0 if done else len(asked))

    monkeypatch.setattr(dead_letters, "control", answered)
    monkeypatch.setattr("time.sleep", slept.append)
    assert "690 dead letters" in cli("dlq", "redrive", "strict", "--rate", "500", "--max", "690")
    assert asked == [500, 434, 178]
    assert slept == [256 / 500, 256 / 500]


def test_a_strict_broker_is_told_from_no_broker_of_ours(cli: Cli) -> None:
    with TestBroker(settings={"server.strict": "true"}) as strict:
        cli("topic", "create", "%DLQ%strict", "--endpoint", strict.endpoint)
        cli("message", "send", "%DLQ%strict", "x", "--endpoint", strict.endpoint)
        told = cli("dlq", "show", "strict", "--endpoint", strict.endpoint, code=1)
    assert "is strict (server.strict)" in told


def test_control_characters_of_others_do_not_reach_the_terminal(cli: Cli) -> None:
    cli("message", "send", "screens", "\x1b]0;mine\x07 b\u202eackwards\nline\ttwo 日本")
    (line,) = cli("message", "tail", "screens").splitlines()
    assert line.endswith("\\x1b]0;mine\\x07 b\\u202eackwards line two 日本")
    (message,) = map(json.loads, cli("message", "tail", "screens", "--json").splitlines())
    assert message["body"].startswith("\x1b]0;")
    shown = cli("message", "show", "screens", message["message"])
    assert shown.endswith("\\x1b]0;mine\\x07 b\\u202eackwards\nline\ttwo 日本\n")


def test_an_argument_that_is_no_text_is_refused(cli: Cli) -> None:
    assert r"b'x\xff' is not UTF-8" in cli("topic", "create", "x\udcff", code=2)


def test_output_that_cannot_be_written_is_said_in_a_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(typer, "echo", full)
    assert cli("topic", "list", code=1) == "cosmodrome: cannot write: No space left on device\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_terminal_of_another_encoding_gets_what_it_cannot_show_escaped(
    cli: Cli, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("message", "send", "words", "標 🚀", "--tag", encoding)
    for words, shown in (
        (("--help",), "usage: cosmodrome COMMAND"),
        (("message", "tail", "words"), "🚀" if encoding == "utf-8" else "\\U0001f680"),
    ):
        monkeypatch.setattr("sys.stdout", out := io.TextIOWrapper(io.BytesIO(), encoding))
        with contextlib.suppress(SystemExit):
            run(list(words))
        out.flush()
        assert shown in out.buffer.getvalue().decode(encoding)
    monkeypatch.setattr("sys.stdout", out := io.TextIOWrapper(io.BytesIO(), encoding))
    with pytest.raises(SystemExit):
        run(["message", "tail", "words", "--json", "--max", "1"])
    out.flush()
    assert json.loads(out.buffer.getvalue().decode(encoding))["body"] == "標 🚀"
