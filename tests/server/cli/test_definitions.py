"""`definitions apply` makes a broker as a file says, `export` says what a broker is."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cosmodrome.testing import TestBroker
from tests.server.cli.conftest import Cli

FILE = """
[[topic]]
name = "orders"
type = "fifo"
queues = 4
retention = "168h"
attributes = { "team.owner" = "shop" }

[[topic]]
name = "sessions"
type = "LITE"

[[group]]
name = "billing"
fifo = true
max_attempts = 5
backoff = ["1s", "60s"]
consume_from = "2026-11-21T04:00:00Z"
priority_factor = 0

[[group]]
name = "chat"
lite_topic_of = "sessions"
exponential_backoff = { initial = "1s", max = "1m", multiplier = 2 }
"""


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    """One of its own for each test: a file speaks of the whole broker."""
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(FILE)
    return path


def exported(cli: Cli) -> dict[str, Any]:
    return tomllib.loads(cli("definitions", "export"))


def test_a_file_is_made_once(cli: Cli, file: Path) -> None:
    would = cli("definitions", "apply", str(file), "--dry-run")
    assert would.startswith("topic orders: new\ntopic sessions: new\ngroup billing: new\n")
    assert would.endswith("4 to change, 0 as they are\n")
    assert exported(cli) == {}
    assert cli("definitions", "apply", str(file)).endswith("4 changed, 0 as they are\n")
    assert cli("definitions", "apply", str(file)) == "0 changed, 4 as they are\n"


def test_what_is_exported_makes_the_same_elsewhere(cli: Cli, file: Path, tmp_path: Path) -> None:
    cli("definitions", "apply", str(file))
    told = cli("definitions", "export")
    assert tomllib.loads(told)["topic"][0] == {
        "name": "orders",
        "type": "fifo",
        "queues": 4,
        "retention": "7d",
        "attributes": {"team.owner": "shop"},
    }
    copy = tmp_path / "copy.toml"
    copy.write_text(told)
    assert cli("definitions", "apply", str(copy)) == "0 changed, 4 as they are\n"
    with TestBroker() as elsewhere:
        where = ("--endpoint", elsewhere.endpoint)
        cli("definitions", "apply", str(copy), *where)
        assert cli("definitions", "export", *where) == told


def test_only_what_differs_changes_and_what_is_not_named_stays(cli: Cli, file: Path) -> None:
    cli("definitions", "apply", str(file))
    file.write_text(
        """
        topic = [{ name = "orders", queues = 8, attributes = { tier = "1" } }]
        group = [{ name = "billing", fifo = false, backoff = ["2s"] }, { name = "chat" }]
        """
    )
    assert cli("definitions", "apply", str(file)).splitlines() == [
        "topic orders: queues 4 → 8",
        "topic orders: attributes {'team.owner': 'shop'} → {'team.owner': 'shop', 'tier': '1'}",
        "group billing: fifo True → False",
        "group billing: backoff ['1s', '1m'] → ['2s']",
        "2 changed, 1 as they are",
    ]
    after = exported(cli)
    assert after["topic"][0]["retention"] == "7d"
    assert after["group"][0] == {
        "name": "billing",
        "max_attempts": 5,
        "backoff": ["2s"],
        "consume_from": "2026-11-21T04:00:00Z",
        "priority_factor": 0,
    }


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        ('[[topic]]\nname = "x"\nquees = 1', "unknown field `quees`", 2),
        ('[[topic]]\nname = ""', "name", 2),
        ('[[topic]]\nname = "x"\nqueues = 99999999999', "topic[0].queues", 2),
        ('[[group]]\nname = "x"\nmax_attempts = -1', "group[0].max_attempts", 2),
        ('topic = [{name = "x", queues = 1}, {name = "x"}]', "topic x is there twice", 2),
        ('group = [{name = "x"}, {name = "x"}]', "group x is there twice", 2),
        ("[[topic]]\nname = x", "line 2", 2),
        ('[[topic]]\nname = "new"\n[[group]]\nname = "g"\nbackoff = ["soon"]', "no duration", 2),
        ('[[topic]]\nname = "orders"\ntype = "normal"', "orders is fifo, and stays so", 1),
        ('[[topic]]\nname = "orders"\nqueues = 2', "has 4 queues, which cannot become fewer", 1),
    ],
)
def test_a_file_that_cannot_be_changes_nothing(
    cli: Cli, file: Path, text: str, words: str, code: int
) -> None:
    cli("definitions", "apply", str(file))
    before = exported(cli)
    file.write_text(text)
    assert words in cli("definitions", "apply", str(file), code=code)
    assert exported(cli) == before
    assert "cannot read" in cli("definitions", "apply", str(file.parent / "none"), code=2)


def test_what_a_broker_makes_for_itself_is_not_exported(cli: Cli, broker: TestBroker) -> None:
    broker.create_topic("%DLQ%billing")
    broker.create_topic("orders")
    broker.create_topic("%mine")
    assert [topic["name"] for topic in exported(cli)["topic"]] == ["%mine", "orders"]


def test_what_is_refused_half_way_says_how_much_was_changed(cli: Cli, file: Path) -> None:
    file.write_text('topic = [{ name = "a" }, { name = "b/c" }, { name = "d" }]')
    told = cli("definitions", "apply", str(file), code=1)
    assert "ILLEGAL_TOPIC" in told
    assert "1 of 3 changed before that" in told
    assert [topic["name"] for topic in exported(cli)["topic"]] == ["a"]


def test_a_beginning_is_exported_to_the_millisecond(cli: Cli) -> None:
    for said in ("2026-11-21T04:00:00.5Z", "1970-01-01T00:00:00.007Z"):
        cli("group", "create", "g", "--consume-from", said)
        assert exported(cli)["group"][0]["consume_from"] == said.replace(".5Z", ".500Z")
