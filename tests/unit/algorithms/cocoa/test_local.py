"""The local solver: its sums are true, its fixed point is the optimum, its order repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.objectives.conjugates import DUAL_LOSSES
from tests.unit.algorithms.cocoa.local_problem import KINDS, InTurn, problem

LOSSES = list(DUAL_LOSSES)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_pass_says_what_it_did(kind: str, loss: str, threads: int) -> None:
    p = problem(kind, loss)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(3):
        before, dual = p.alpha, p.dual() + 0.5 * p.l2 * float(v @ v)
        update = p.run(solver, v, serial, parallel=InTurn(threads), epochs=2)
        v = v + update.dv
        np.testing.assert_allclose(v, p.image(), rtol=0, atol=1e-13 * np.abs(v).max())
        after = p.dual() + 0.5 * p.l2 * float(p.image() @ p.image())
        np.testing.assert_allclose(update.dual / p.s.sum(), after - dual, rtol=1e-9, atol=1e-13)
        if threads == 1 and serial == 0:
            step = p.alpha - before
            bound = 0.5 * DUAL_LOSSES[loss].curvature * float(p.s @ (step * step))
            # Over two epochs the curvature of the parts is not that of their sum.
            assert update.curvature >= 0.4 * bound


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_gap_closes(kind: str, loss: str, dtype: str) -> None:
    p = problem(kind, loss, dtype)
    solver, v = p.solver(), np.zeros(p.X.shape[1])
    for serial in range(400):
        v = v + p.run(solver, v, serial).dv
    gap = p.primal(v) - p.dual()
    assert -1e-12 <= gap <= 2e-6
    assert np.abs(v - p.image()).max() <= (1e-4 if dtype == "float32" else 1e-12)
