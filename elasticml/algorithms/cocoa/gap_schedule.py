"""Certificates of the duality gap, and when one is worth its pass over the data.

The primal objective at *any* model and the dual objective at *any* feasible dual variables enclose
the optimum; they need not come from the same iterate. The lowest primal and the highest dual
objective certified so far therefore give a gap that never grows, and stays valid when examples
vanish or iterates are rebuilt.

Work is counted in visited rows. A certificate's products with all rows cost about half of a pass
over them; a pass that visits few rows still costs a round. A pass earns a quarter of its work for
certificates, so that these take about a fifth of all work.

With a known target, passes estimate the gap: each row's contribution as it is visited, which comes
close to the gap of a certificate. A certificate is then due when the estimate reaches the target,
and else only when more work has been earned. Its work may be paid for by later passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.arrays import F64
from elasticml.objectives.losses import Loss

#: For a loss with a kink: weight of the model before the last pass in the certified model.
SMOOTHING: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Primal and dual objective, in the mean form with the penalty."""

    primal: float
    #: Minus infinity if the problem has none: a user's penalty without a conjugate.
    dual: float
    #: Model of the primal objective, in trained coordinates.
    v: F64
    #: The primal objective is an upper bound because examples were absent.
    is_bound: bool = False

    @property
    def gap(self) -> float:
        """The duality gap; negative rounding errors are set to zero."""
        return max(self.primal - self.dual, 0.0)

    @property
    def known_gap(self) -> float | None:
        """The gap as it is reported: None if there is no dual objective."""
        return self.gap if math.isfinite(self.dual) else None

    @property
    def is_at_float64_precision(self) -> bool:
        """Whether the remaining gap is rounding error."""
        return self.gap <= 8.0 * float(np.finfo(np.float64).eps) * abs(self.primal)

    def better(self, other: Certificate) -> Certificate:
        """Return the lower primal objective of both, with its model, and the higher dual one."""
        lower = self if self.primal <= other.primal else other
        return Certificate(
            primal=lower.primal,
            dual=max(self.dual, other.dual),
            v=lower.v,
            is_bound=lower.is_bound,
        )

    def columns(self) -> Mapping[str, float | None]:
        """Return the history columns."""
        return {"primal": self.primal, "dual": self.dual if math.isfinite(self.dual) else None}


def smoothed_model(loss: Loss, v: F64, before: F64 | None) -> F64:
    """Return the model at which to take the primal objective: any is valid, some are better.

    Margins near the kink of the hinge or the quantile loss oscillate around it from pass to pass.
    The mean of two models is as good as the model of one or two passes later. For other losses the
    last is best.

    Parameters
    ----------
    v, before : ndarray (D,)
        The models after and before the last pass; ``before`` is None where it is not known.
    """
    if loss.is_smooth() or before is None:
        return v
    return (1.0 - SMOOTHING) * v + SMOOTHING * before


#: Share of a pass's work that it earns for certificates.
EARNED: Final = 0.25
#: Work of a certificate, and the minimum that a pass counts for, as shares of all rows.
CERTIFICATE_WORK: Final = 0.5
PASS_MIN: Final = 0.25
#: Earned certificates from which one is taken although the target is not near: where intermediate
#: gaps are used, and where they are not.
SAVED: Final = 2.0
SELDOM: Final = 4.0
#: Limit of the ratio between a certified gap and the passes' estimate, either way.
RATIO_MAX: Final = 4.0


@dataclass(slots=True, kw_only=True)
class GapSchedule:
    """Counts the work of passes and certificates, and decides when a certificate is due."""

    #: Rounds from one certificate to the next; None: by work, as the module says.
    every: int | None
    #: The gap that the job must reach; 0 when it is not known, or not known yet.
    target: float
    #: Number of rows of the data set.
    rows: int
    #: Gaps are not used before the target is reached.
    is_seldom: bool = False
    credit: float = 0.0
    #: Number of passes so far, and at the last certificate.
    passes: int = 0
    certified_at: int = 0
    #: The last pass's estimate of the gap.
    gap_estimate: float = math.nan
    #: The gap expected after the last pass; the last certified gap divided by the expected one.
    expected: float = math.nan
    ratio: float = 1.0

    def state(self) -> dict[str, Any]:
        """Return the counters, as JSON values."""
        return {k: getattr(self, k) for k in ("credit", "passes", "certified_at", "ratio")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the counters of a former process."""
        for name, value in state.items():
            setattr(self, name, value)

    def passed(self, visited: float, gap_estimate: float = math.nan) -> None:
        """Record a pass: the rows that it visited, and its estimate of the gap."""
        self.passes += 1
        # Rows are visited half a pass before its end, on average.
        pace = gap_estimate / self.gap_estimate if 0.0 < gap_estimate < self.gap_estimate else 1.0
        self.gap_estimate, self.expected = gap_estimate, gap_estimate * math.sqrt(pace)
        self.credit += EARNED * max(visited, PASS_MIN * self.rows)

    def certified(self, gap: float) -> None:
        """Record a certificate and the best gap so far."""
        if self.passes > self.certified_at and self.expected > 0.0:
            self.ratio = min(max(gap / self.expected, 1.0 / RATIO_MAX), RATIO_MAX)
        # Credit beyond two certificates is lost, and so is debt: estimates lack absent rows, and
        # may ask for a certificate every round.
        cost = CERTIFICATE_WORK * self.rows
        earned = min(self.credit, SAVED * cost) - cost
        self.credit = max(earned, -SAVED * cost) if self.passes else 0.0
        self.certified_at = self.passes

    def is_due(self) -> bool:
        """Whether a certificate is due after the last pass."""
        since = self.passes - self.certified_at
        if self.every is not None:
            return since >= self.every
        cost = CERTIFICATE_WORK * self.rows
        if self.target <= 0.0 or math.isnan(self.expected):
            return self.passes == 1 or self.credit >= cost
        if self.ratio * self.expected <= self.target:
            return True
        if self.is_seldom:
            return self.credit >= SELDOM * cost
        # Part of the credit is saved for the round that reaches the target.
        return self.passes == 1 or self.credit >= SAVED * cost
