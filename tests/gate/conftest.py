"""Nothing here runs without the gate."""

from collections.abc import Iterator

import pytest

pytest.importorskip("cosmodrome_gate", reason="the gate is not built here: make gate")

from tests.gate.world import World


@pytest.fixture
def world() -> Iterator[World]:
    """A gate with default limits, plaintext."""
    with World() as made:
        yield made
