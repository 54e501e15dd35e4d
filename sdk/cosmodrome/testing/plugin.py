"""pytest fixtures: one broker per session (and per xdist worker), a namespace per test.

    def test_it(cosmodrome_broker, cosmodrome_names):
        topic = cosmodrome_names("orders")        # orders-3f2a…: no other test has it

When a test fails, what its topics and groups still hold is added to the report.
"""

import uuid
from collections.abc import Callable, Iterator

import pytest

from cosmodrome.testing.broker import Leftovers, TestBroker

_KEY = pytest.StashKey[tuple[TestBroker, str]]()


@pytest.fixture(scope="session")
def cosmodrome_session_broker() -> Iterator[TestBroker]:
    """The broker that all tests of this process share."""
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def cosmodrome_names(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names of topics and groups that belong to this test alone."""
    suffix = uuid.uuid4().hex[:8]
    request.node.user_properties.append(("cosmodrome_names", suffix))
    return lambda name: f"{name}-{suffix}"


@pytest.fixture
def cosmodrome_broker(
    request: pytest.FixtureRequest, cosmodrome_session_broker: TestBroker
) -> TestBroker:
    """The session's broker, watched for what this test leaves behind."""
    request.node.stash[_KEY] = (cosmodrome_session_broker, request.node.nodeid)
    return cosmodrome_session_broker


@pytest.fixture
def cosmodrome_virtual_broker(request: pytest.FixtureRequest) -> Iterator[TestBroker]:
    """A broker of this test's own whose time only `advance` moves."""
    with TestBroker(virtual_time=True) as broker:
        request.node.stash[_KEY] = (broker, request.node.nodeid)
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Iterator[None]:
    """Say what a failed test left in its broker."""
    report = yield
    watched = item.stash.get(_KEY, None)
    if watched is not None and call.when == "call" and report.failed:  # type: ignore[attr-defined]
        left = watched[0].leftovers()
        report.sections.append(("cosmodrome", _told(left)))  # type: ignore[attr-defined]
    return report


def _told(left: Leftovers) -> str:
    lines = [f"{n} ready for {group} on {topic}" for (group, topic), n in left.ready.items()]
    lines += [f"{n} in flight, {group} on {topic}" for (group, topic), n in left.in_flight.items()]
    lines += [f"{n} dead letters of {group}" for group, n in left.dead.items()]
    return "\n".join(lines) or "every message was consumed"
