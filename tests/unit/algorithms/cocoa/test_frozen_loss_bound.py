"""The bound on the loss of absent examples is never below the true loss, whatever the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.algorithms.cocoa.bound_statistics import add_statistics, row_maxima
from elasticml.algorithms.cocoa.frozen_loss_bound import (
    BoundPlan,
    FrozenLoss,
    plan_statistics,
    trivial_bound,
)
from elasticml.algorithms.scaling import Columns
from elasticml.data.chunks.ngrams import cut_letters, sequence_layout
from elasticml.errors import ConfigError
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.losses import LOSSES
from tests.reference import LOSSES as BY_NUMPY
from tests.unit.data.rows import chunk_of

ID = ChunkId("0" * 16, 0, 0)
KINDS = ("dense", "csr", "binary_csr", "sequence")
FORMS = ("matrix", "diagonal")
BOUNDED = [name for name, terms in LOSSES.items() if terms.bound_edges()]
REGRESSION = ("squared", "huber")


class Case:
    """Random rows of one kind in two parts, as chunks and as a dense matrix ``seen`` by a model."""

    def __init__(
        self, seed, kind, loss, *, weighted=False, mapped="plain", n=40, scale=1.0, kept_scale=1.0
    ):
        rng = np.random.default_rng(seed)
        d = 24 if kind == "sequence" else 7
        dense = rng.standard_normal((n, d)) * scale * (rng.random((n, d)) < 0.6)
        dense[: n // 3] *= kept_scale
        letters = rng.integers(0, 2, (n, 4)).astype(np.uint8)
        if kind == "sequence":
            layout = sequence_layout("AC", 4, (1, 2))
            d = layout.n_columns
        elif kind == "binary_csr":
            dense = (dense != 0.0).astype(float)
        y = rng.standard_normal(n) if loss in REGRESSION else np.where(rng.random(n) < 0.5, 1.0, -1)
        self.chunks = []
        for rows in (slice(0, n // 3), slice(n // 3, n)):
            if kind == "sequence":
                self.chunks += cut_letters(letters[rows], y[rows], "AC", (1, 2), ID, 10**6)
            else:
                self.chunks.append(chunk_of(kind, dense[rows], y[rows]))
        if kind == "sequence":
            dense = np.zeros((n, d))
            for i, word in enumerate(letters.astype(int)):
                dense[i, np.arange(4) * 2 + word] = 1.0
                dense[i, 8 + np.arange(3) * 4 + word[:-1] * 2 + word[1:]] = 1.0
        factor = np.exp(rng.standard_normal(d)) if mapped != "plain" else None
        shift = rng.standard_normal(d) if mapped == "shifted" else None
        has = mapped in ("shifted", "intercept")  # columns are shifted only with one
        self.rows = Columns(n_columns=d, intercept=has, factor=factor, shift=shift, constant=0.7)
        f = np.ones(d) if factor is None else factor
        m = np.zeros(d) if shift is None else shift
        self.seen = (dense - m) * f
        if has:
            self.seen = np.hstack([self.seen, np.full((n, 1), 0.7)])
        self.y, self.loss, self.rng = y, loss, rng
        self.weights = rng.exponential(size=n) if weighted else None

    def statistics(self, plan, v0, chunk):
        out = plan.zeros()
        part = self.part(chunk)
        sign = 1.0 if self.loss in REGRESSION else self.y[part]
        margins = sign * (self.seen[part] @ v0)
        s = None if self.weights is None else self.weights[part]
        sent, own = self.rows.down(v0), self.chunks[chunk]
        add_statistics(plan, self.rows, sent, own, self.y[part], s, margins, out)
        return out

    def part(self, chunk):
        first = self.chunks[0].n_rows
        return slice(0, first) if chunk == 0 else slice(first, None)

    def truth(self, v, part):
        z = self.seen[part] @ v
        s = np.ones(len(z)) if self.weights is None else self.weights[part]
        return math.fsum(s * BY_NUMPY[self.loss][0](z, self.y[part]))

    def maxima(self):
        return np.max([row_maxima(chunk, self.rows) for chunk in self.chunks], axis=0)


def plan_of(loss, form, n_sent):
    """Return the finest plan of this form."""
    best = plan_statistics(loss_named(loss), n_sent)
    return BoundPlan(loss=best.loss, n_sent=n_sent, form=form, edges=best.edges)


def frozen(case, plan, v0, *, has_allowance=True):
    """Make the second chunk absent: its statistics are the total less the rest."""
    kept, lost = (case.statistics(plan, v0, chunk) for chunk in (0, 1))
    whole = {name: kept[name] + lost[name] for name in plan.shapes}
    absent = {name: whole[name] - kept[name] for name in whole}
    total = whole if has_allowance else lost
    return FrozenLoss(plan, v0, absent, total, case.maxima(), case.rows.down)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    loss=st.sampled_from(BOUNDED),
    form=st.sampled_from(FORMS),
    mapped=st.sampled_from(("plain", "scaled", "shifted", "intercept")),
    weighted=st.booleans(),
    away=st.sampled_from((0.0, 1e-12, 1e-6, 1e-3, 0.03, 0.3, 3.0, 1e3)),
    scale=st.sampled_from((1e-3, 1.0, 30.0)),
    size=st.sampled_from((0.0, 0.3, 10.0)),
)
def test_the_bound_is_never_below_the_true_loss(
    seed, kind, loss, form, mapped, weighted, away, scale, size
):
    case = Case(seed, kind, loss, weighted=weighted, mapped=mapped, scale=scale)
    d = case.seen.shape[1]
    plan = plan_of(loss, form, case.rows.n_sent)
    v0 = size * case.rng.standard_normal(d)
    v = v0 + away * case.rng.standard_normal(d)
    truth = case.truth(v, case.part(1))
    bound = frozen(case, plan, v0).upper(v)
    # The true loss is itself rounded, by a few units a row.
    assert bound >= truth * (1.0 - 1e-14)
    weight = float(np.sum(case.weights[case.part(1)])) if weighted else case.chunks[1].n_rows
    norm = case.maxima()[0]
    y_max = float(np.abs(case.y).max())
    assert trivial_bound(loss_named(loss), weight, v, norm, y_max) >= truth * (1.0 - 1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", ["plain", "shifted", "intercept"])
def test_ridge_is_exact_with_second_moments(kind, mapped):
    case = Case(3, kind, "squared", weighted=True, mapped=mapped)
    d = case.seen.shape[1]
    v0, v = case.rng.standard_normal((2, d))
    truth = case.truth(v, case.part(1))
    bound = frozen(case, plan_of("squared", "matrix", case.rows.n_sent), v0).upper(v)
    # Shifts larger than the spread of the columns cost digits.
    assert bound == pytest.approx(truth, rel=1e-8 if mapped == "shifted" else 1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", BOUNDED)
def test_the_bound_is_exact_where_the_model_has_not_moved(loss, form):
    case = Case(4, "csr", loss)
    v0 = case.rng.standard_normal(7)
    bound = frozen(case, plan_of(loss, form, 7), v0).upper(v0)
    # Only rows within rounding of the hinge cannot be classified.
    assert bound == pytest.approx(case.truth(v0, case.part(1)), rel=1e-9)


def test_a_loss_without_a_bound_is_refused():
    with pytest.raises(ConfigError, match="'quantile'"):
        plan_statistics(loss_named("quantile"), 3)


def test_a_model_too_wide_for_the_smallest_statistics_is_refused():
    assert plan_statistics(loss_named("hinge"), 2_000_000).size < 2**25
    with pytest.raises(ConfigError, match="needs 1831 MiB from each member for 20000000 columns"):
        plan_statistics(loss_named("hinge"), 20_000_000)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", BOUNDED)
def test_the_bound_holds_when_subtraction_cancels_nearly_all_digits(loss, form):
    # The remaining members have rows 1e7 times as long: subtraction leaves hardly a digit of the
    # absent members' share.
    too_low_without_allowance = 0
    for seed in range(20):
        case = Case(seed, "dense", loss, n=60, kept_scale=1e7)
        v0 = 1e-7 * case.rng.standard_normal(7)
        v = v0 + case.rng.standard_normal(7)
        plan = plan_of(loss, form, case.rows.n_sent)
        truth = case.truth(v, case.part(1))
        assert frozen(case, plan, v0).upper(v) >= truth
        # Without the error of the total the subtracted statistics may be too low.
        without = frozen(case, plan, v0, has_allowance=False)
        too_low_without_allowance += without.upper(v) < truth
    if form == "matrix" and loss == "squared":
        assert too_low_without_allowance > 0
