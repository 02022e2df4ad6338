"""L-BFGS, TRON and Newton: steps over a set of examples that changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.serial_world import ExchangeRecord, Return, Run, Vanish, World, split_rows

RNG = np.random.default_rng(8)
N, D, L2 = 240, 6, 0.003
X = RNG.normal(size=(N, D)) * [1.0, 3.0, 0.2, 1.0, 1.0, 6.0]
SIGNAL = X @ [0.5, -0.4, 2.0, 0.0, 1.0, 0.1] + RNG.normal(size=N)
Y = np.where(SIGNAL > 0.5, 1.0, -1.0)
BOTH = pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])


def train(*schedule: Vanish | Return, rounds: int = 80, **given: Any) -> Run:
    kept = {key: given.pop(key) for key in ("absent", "watch") if key in given}
    world = World(
        settings={"l2": L2, "tolerance": 1e-9, "intercept": True, **given},
        parts=split_rows(X, given.pop("y", Y), 6, chunk_rows=10),
        schedule=schedule,
        **kept,
    )
    return world.run(rounds)


@BOTH
@pytest.mark.parametrize("absent", ["auto", "taylor", "ignore", "stall", "reload"])
def test_elasticity_costs_nothing_while_no_member_leaves(optimizer: str, absent: str) -> None:
    """Not a bit of any model or request depends on the absent rule."""
    runs = [train(optimizer=optimizer, absent=rule) for rule in ("ignore_rescaled", absent)]
    models = [[row.model["coef"].tobytes() for row in run.rows] for run in runs]
    assert models[0] == models[1]
    # The exception is sketches, which some rules request ahead of losses.
    requests = [[a.exchange.operation for a in run.exchanges] for run in runs]
    assert requests[0] == [
        operation for operation in requests[1] if operation not in ("survey", "sketch")
    ]


def test_a_change_at_an_estimated_optimum_wastes_no_rounds_with_a_tiny_radius() -> None:
    schedule = (Vanish(round=2, members=(1, 2)), Return(round=12))
    run = train(*schedule, optimizer="tron", absent="taylor", mode="paper", roll_back=0)
    assert run.rows[11].extra["gradient_norm"] < 1e-8
    assert len(run.rows) - 12 <= len(train(optimizer="tron").rows) + 2


@BOTH
def test_all_sums_of_a_step_are_over_one_set_of_examples(optimizer: str) -> None:
    """Sums of a round after its last gradient contain exactly that gradient's examples."""
    requests: list[tuple[int, str, int]] = []

    def watch(world: World, one: ExchangeRecord) -> None:
        requests.append((one.round, one.phase, one.outcome.examples))

    schedule = (
        Vanish(round=2, members=(1,), during="probe"),
        Vanish(round=3, members=(2,), during="product" if optimizer == "tron" else "probe"),
        Return(round=6),
        Return(round=7),
    )
    train(*schedule, optimizer=optimizer, absent="ignore", watch=watch)
    for round in {r for r, _, _ in requests}:
        of_round = [(phase, n) for r, phase, n in requests if r == round]
        last = max(k for k, (phase, _) in enumerate(of_round) if phase == "gradient")
        assert len({n for _, n in of_round[last:]}) == 1


def test_the_pair_that_straddles_a_change_is_skipped_and_older_ones_stay() -> None:
    run = train(Vanish(round=5, members=(2,)), Return(round=9), optimizer="lbfgs", absent="taylor")
    extra = [row.extra for row in run.rows]
    assert [row["skipped_pairs"] for row in extra[:12]] == [0] * 5 + [1] + [0] * 3 + [1] + [0] * 2
    assert [row["pairs"] for row in extra[:12]] == [0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9]


def test_the_radius_after_a_change_is_the_last_steps_length() -> None:
    radii: list[float] = []

    def run(*schedule: Vanish | Return) -> Run:
        return train(*schedule, optimizer="tron", absent="taylor", rounds=6, l2=1e-5)

    lost = run(Vanish(round=4, members=(0, 1)))
    steps = [np.linalg.norm(lost.w(r + 1) - lost.w(r)) for r in range(5)]
    radii = [float(row.extra["radius"] or 0.0) for row in lost.rows]
    # It may shrink by the round's own ratio, or grow four times, but from there.
    assert radii[4] <= 4.0 * steps[3] * (1 + 1e-12)
    assert run().rows[4].extra["radius"] != radii[4]
