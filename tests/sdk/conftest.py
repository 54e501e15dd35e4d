"""SDK tests run against the real broker of the testing kit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cosmodrome.testing import TestBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[TestBroker]:
    """One broker on real time for all."""
    with TestBroker() as running:
        yield running


@pytest.fixture
def own_broker() -> Iterator[TestBroker]:
    """A broker that a test may break."""
    with TestBroker() as running:
        yield running


@pytest.fixture
def timeless() -> Iterator[TestBroker]:
    """A broker whose time only the test moves."""
    with TestBroker(virtual_time=True) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that are this test's alone."""
    digest = f"{abs(hash(request.node.nodeid)):x}"[:8]
    return lambda base: f"{base}-{digest}"


@pytest.fixture
def offsets(tmp_path: Path) -> Path:
    """Where a file offset store may write."""
    return tmp_path / "offsets.json"
