"""A broker that runs, and the commands as they are typed."""

from collections.abc import Callable, Iterator

import pytest

from cosmodrome.testing import TestBroker
from cosmodrome_server.cli.root import run

Cli = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def cli(
    broker: TestBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Runs a command; returns what it printed, or fails where its exit code is another."""
    monkeypatch.setenv("COSMODROME_ENDPOINT", broker.endpoint)

    def command(*words: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            run(list(words))
        told = capsys.readouterr()
        assert (ended.value.code or 0) == code, told
        assert bool(told.err) == bool(code), told
        return told.err if code else told.out

    return command
