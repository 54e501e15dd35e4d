"""Whole brokers from a seed. `make simulation` runs thousands (tests/simulation/__main__.py)."""

import pytest

from tests.simulation.wider import WiderSimulation
from tests.simulation.world import Simulation


@pytest.mark.parametrize("seed", range(50))
def test_no_promise_is_broken_and_a_seed_gives_one_trace(seed: int) -> None:
    first = Simulation(seed).run(300)
    assert Simulation(seed, is_repeat=True).run(300) == first


@pytest.mark.parametrize("seed", range(30))
def test_nor_by_what_is_rarer(seed: int) -> None:
    first = WiderSimulation(seed).run(400)
    assert WiderSimulation(seed, is_repeat=True).run(400) == first


def test_simulations_do_what_they_are_for() -> None:
    simulation = Simulation(1)
    simulation.run(2_000)
    assert simulation.crashes > 10
    assert simulation.deliveries > 300


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_the_wider_ones_do_all_that_is_rarer(seed: int) -> None:
    simulation = WiderSimulation(seed)
    simulation.run(2_000)
    expected = {
        "ack many": 40, "redrive": 5, "commit": 10, "topic again": 5, "group again": 2,
        "renewed": 10, "lite": 20, "attempt": 10, "repeat": 5, "full": 5, "crash": 10,
    }  # fmt: skip
    done = {kind: min(count, simulation.done[kind]) for kind, count in expected.items()}
    assert done == expected
