"""A simulated run equals itself, the static run, and the serial computation."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.sim.simulation import Simulation
from tests.serial_world import Vanish
from tests.serial_world import World as SerialWorld
from tests.sim.small_jobs import VirtualJob, column, model, play, points, record


@pytest.mark.parametrize(
    ("topology", "world"),
    [
        ("tree", {"latency_s": 0.5}),
        ("star", {"bandwidth": 1e4}),
        ("tree", {"jitter": 2.0, "seed": 2, "compute_s": 1e-4}),
        ("star", {"slow": {0: 1e4, 3: 1e5}}),
        ("tree", {"compute_s": "measured"}),
    ],
)
def test_timing_does_not_change_a_bit_of_the_model(topology, world):
    settings = {"collective": {"topology": topology, "deadline": 1e6}, "stop": {"rounds": 12}}
    result, quick = play(world, **settings), play(**settings)
    assert model(result) == model(quick)
    assert column(result, "objective") == column(quick, "objective")


def test_the_model_is_that_of_the_serial_computation_when_members_are_lost():
    star = {"collective": {"topology": "star"}, "stop": {"rounds": 20}}
    faults = [{"round": 8, "lose": [3, 5], "phase": "compute"}]
    simulation = VirtualJob(record(faults=faults, **star), points()).end()
    settings = {k: v for k, v in record()["algorithm"].items() if k != "name"}
    calm = VirtualJob(record(**star), points())
    calm.until(lambda: calm.agent.ended.is_set())  # its members are there yet
    workers = calm.world.workers.by_address.values()
    serial = SerialWorld(
        settings=settings,
        parts=[worker.computed_on for worker in sorted(workers, key=lambda w: w.slot)],
        facts=simulation.world.session.facts,
        schedule=[Vanish(round=8, members=(3, 5))],
    ).run(20)
    np.testing.assert_array_equal(
        simulation.result().arrays["coef"], serial.model.arrays["coef"], strict=True
    )
    assert column(simulation.result(), "objective") == [row.objective for row in serial.rows]


def test_snapshots_are_the_models_at_the_beginning_of_rounds():
    long, short = play(stop={"rounds": 20}), play(stop={"rounds": 9})
    np.testing.assert_array_equal(long.snapshots[9]["coef"], short.arrays["coef"])
    assert not long.snapshots[0]["coef"].any()


def test_a_cancelled_simulation_keeps_what_it_had_reached():
    simulation = Simulation(record(), points())
    story = []
    for batch in simulation.run():
        story += batch
        if story[-1]["event"] == "RoundEnded" and story[-1]["round"] == 4:
            break
    simulation.cancel()
    for batch in simulation.run(since=len(story)):
        story += batch
    result = simulation.result()
    assert (result.state, result.summary["rounds"], story) == ("cancelled", 5, result.story)
    np.testing.assert_array_equal(
        result.arrays["coef"], play(stop={"rounds": 5}).arrays["coef"], strict=True
    )
