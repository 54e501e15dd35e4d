"""Whole brokers from a seed. `make simulation` runs thousands (tests/simulation/__main__.py)."""

import pytest

from tests.simulation.wider import WiderSimulation
from tests.simulation.world import Simulation


@pytest.mark.parametrize("seed", range(50))
def test_no_promise_is_broken_and_a_seed_gives_one_trace(seed: int) -> None:
    first = Simulation(seed).run(300)
    assert Simulation(seed).run(300) == first


@pytest.mark.parametrize("seed", range(30))
def test_nor_by_what_is_rarer(seed: int) -> None:
    first = WiderSimulation(seed).run(400)
    assert WiderSimulation(seed).run(400) == first


def test_simulations_do_what_they_are_for() -> None:
    simulation = Simulation(1)
    simulation.run(2_000)
    assert simulation.crashes > 10
    assert simulation.deliveries > 300
