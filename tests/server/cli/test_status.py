"""`status` says what is left where, and fails where a monitor asked it to."""

import json
from collections.abc import Iterator

import pytest

from cosmodrome.sync import SimpleConsumer
from cosmodrome.testing import TestBroker
from tests.server.cli.conftest import Cli


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


def test_a_broker_is_described_with_the_groups_that_are_behind(
    cli: Cli, broker: TestBroker
) -> None:
    broker.create_group("idle")
    broker.create_group("strict", max_attempts=1)
    for body in ("a", "b", "c"):
        cli("message", "send", "bills", body)
    with SimpleConsumer(broker.endpoint, group="strict", subscriptions={"bills": "*"}) as consumer:
        message, _ = consumer.receive(2)
        consumer.change_invisible_duration(message, 0)
        assert "consumers   1\n" in cli("status")
        (told,) = json.loads(cli("status", "--json"))
    behind = {"group": "strict", "ready": 1, "inflight": 1, "dead": 1}
    assert told["groups_behind"] == [behind]
    assert told["durability"] == "os"
    assert "1 dead letters, more than 0" in cli("status", "--json", "--dead-max", "0", code=1)
    cli("group", "delete", "strict", "--yes")
    (told,) = json.loads(cli("status", "--json"))
    assert told["groups_behind"] == [{**behind, "ready": 0, "inflight": 0}], "letters outlive it"


def test_what_was_sent_back_is_no_dead_letter(cli: Cli, broker: TestBroker) -> None:
    broker.create_group("strict", max_attempts=1)
    for body in ("a", "b"):
        cli("message", "send", "bills", body)
    with SimpleConsumer(broker.endpoint, group="strict", subscriptions={"bills": "*"}) as consumer:
        for _ in range(2):
            (message,) = consumer.receive(1)
            consumer.change_invisible_duration(message, 0)
    cli("dlq", "redrive", "strict", "--max", "1")
    (told,) = json.loads(cli("status", "--json"))
    assert told["groups_behind"] == [{"group": "strict", "ready": 1, "inflight": 0, "dead": 1}]
    cli("dlq", "redrive", "strict")
    cli("status", "--dead-max", "0")


def test_a_bound_that_is_passed_is_an_exit_code_and_a_sentence(
    cli: Cli, broker: TestBroker
) -> None:
    broker.create_group("slow")
    for body in ("a", "b"):
        cli("message", "send", "bills", body)
    cli("message", "receive", "bills", "--group", "slow")
    cli("status", "--ready-max", "1", "--dead-max", "0")
    told = cli("status", "--ready-max", "0", "--json", code=1)
    assert told == "cosmodrome: slow has 1 ready messages, more than 0\n"
