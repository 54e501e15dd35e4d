"""`client` shows who is connected, as they said it."""

import json
from collections.abc import Iterator

import pytest

from cosmodrome import ConsumeResult, Filter
from cosmodrome.sync import PushConsumer
from cosmodrome.testing import TestBroker
from tests.server.cli.conftest import Cli


@pytest.fixture
def consumer(broker: TestBroker) -> Iterator[PushConsumer]:
    wanted: dict[str, Filter | str] = {"orders": "a || b", "bills": Filter.sql("amount > 5")}
    with PushConsumer(
        broker.endpoint,
        group="watched",
        subscriptions=wanted,
        listener=lambda _: ConsumeResult.SUCCESS,
    ) as consumer:
        yield consumer


def test_consumers_are_listed_by_group(cli: Cli, consumer: PushConsumer) -> None:
    (one,) = json.loads(cli("client", "list", "--group", "watched", "--json"))
    assert (one["client"], one["language"]) == (consumer.client_id, "python")
    assert one in json.loads(cli("client", "list", "--json"))


def test_a_group_without_consumers_is_an_empty_table_one_that_is_not_there_an_error(
    cli: Cli,
) -> None:
    cli("group", "create", "quiet")
    cli("group", "create", "quietly")
    assert json.loads(cli("client", "list", "--group", "quiet", "--json")) == []
    assert cli("client", "list", "--group", "quiet").split()[0] == "GROUP"
    for typo in ("quie", "quiett"):
        assert f"there is no consumer group {typo}" in cli(
            "client", "list", "--group", typo, code=1
        )


def test_a_consumer_is_shown_with_what_it_subscribes_to(cli: Cli, consumer: PushConsumer) -> None:
    told = cli("client", "show", consumer.client_id)
    assert "group               watched\n" in told
    assert "subscription bills  amount > 5 (sql)\n" in told
    (fields,) = json.loads(cli("client", "show", consumer.client_id, "--json"))
    assert fields["subscription orders"] == "a || b (tag)"
    assert "NOT_FOUND" in cli("client", "show", "nobody", code=1)


def test_a_consumer_answers_with_its_stacks(cli: Cli, consumer: PushConsumer) -> None:
    assert "MainThread" in cli("client", "stacks", consumer.client_id)
