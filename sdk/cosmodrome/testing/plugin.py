"""pytest fixtures: one broker per session (and per xdist worker), a namespace per test.

    def test_it(cosmodrome_broker, cosmodrome_names):
        topic = cosmodrome_names("orders")        # orders-3f2a…: no other test has it

When a test fails, what its topics and groups still hold is added to the report. pytest loads this
module in every run, so it loads the broker only for tests that use it.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from cosmodrome import testing

if TYPE_CHECKING:
    from cosmodrome.testing import Leftovers, TestBroker

_BROKER = pytest.StashKey["TestBroker"]()
_SUFFIX = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def cosmodrome_session_broker() -> "Iterator[TestBroker]":
    """The broker that all tests of this process share."""
    with testing.TestBroker() as broker:
        yield broker


@pytest.fixture
def cosmodrome_names(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names of topics and groups that belong to this test alone."""
    suffix = uuid.uuid4().hex[:8]
    request.node.stash[_SUFFIX] = suffix
    return lambda name: f"{name}-{suffix}"


@pytest.fixture
def cosmodrome_broker(
    request: pytest.FixtureRequest, cosmodrome_session_broker: "TestBroker"
) -> "TestBroker":
    """The session's broker, watched for what this test leaves behind."""
    request.node.stash[_BROKER] = cosmodrome_session_broker
    return cosmodrome_session_broker


@pytest.fixture
def cosmodrome_virtual_broker(request: pytest.FixtureRequest) -> "Iterator[TestBroker]":
    """A broker of this test's own whose time only `advance` moves."""
    with testing.TestBroker(virtual_time=True) as broker:
        request.node.stash[_BROKER] = broker
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Say what a failed test left in its broker."""
    report = yield
    broker = item.stash.get(_BROKER, None)
    is_told = broker is not None and broker.is_running and call.when == "call"
    if broker is not None and is_told and report.failed:  # type: ignore[attr-defined]  # a report
        told = _told(broker.leftovers(), item.stash.get(_SUFFIX, ""))
        report.sections.append(("cosmodrome", told))  # type: ignore[attr-defined]  # a report
    return report


def _told(left: "Leftovers", suffix: str) -> str:
    """What is left in topics and groups of this test; in all where it named none."""
    lines = [f"{n} ready for {group} on {topic}" for (group, topic), n in left.ready.items()]
    lines += [f"{n} in flight, {group} on {topic}" for (group, topic), n in left.in_flight.items()]
    lines += [f"{n} dead letters of {group}" for group, n in left.dead.items()]
    own = [line for line in lines if suffix in line]
    return "\n".join(own) or "every message was consumed"
