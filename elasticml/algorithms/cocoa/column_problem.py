"""The problem of columns on the driver: slopes, curvatures, objective, line search, lower bounds.

``f(z) + a1 sum_j p(w_j) + a2/2 |w|^2`` with the margins ``z = X w + b``, b free or absent, and the
function p of :class:`.Penalty`, by default the absolute value, in units of the sum over examples:
the mean form of jobs is this divided by the sum S of the weights. Members'
columns are multiplied by the square roots of the sample weights; so are the margins z and residuals
r here, unless stated otherwise.

Source: the dual point is that of :mod:`elasticml.algorithms.linear.sparse_classifier`: minus the
slopes at the margins, the heavier class's scaled down if b is free, all of them scaled until every
column satisfies its constraint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.trainer import Step
from elasticml.algorithms.linear.duality import (
    Dual,
    dual_point,
    lower_bound,
    lower_bound_of_residual,
)
from elasticml.algorithms.linear.sparse_classifier import best_intercept, safe_curvature
from elasticml.algorithms.targets import ClassWeight, Targets, class_weights, label_text
from elasticml.arrays import F64
from elasticml.errors import DataError
from elasticml.objectives.links import check_targets
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.penalty_kernels import Penalty

#: Best step length from which the full step is taken, with more than four fifths of the gain: the
#: members' zeros then stay zeros.
WHOLE: Final = 0.7
#: Relative changes of the objective that are rounding error.
NOISE: Final = 8.0 * float(np.finfo(np.float64).eps)
#: Maximum steps of a line search, and the share of the first slope at which it ends.
SEARCHES_MAX: Final = 30
FLAT_ENOUGH: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """``sum_i s_i loss(z_i, y_i)`` of any smooth loss; s_i is sample weight times class weight.

    The intercept of the squared loss needs no search: it is the mean of the targets, which are
    centred, as the columns are.
    """

    loss: MarginLoss
    #: (n,) -1 and +1; in regression numbers.
    targets: F64
    #: What was subtracted from the targets.
    mean: float
    #: (n,) square roots of the sample weights, and their inverses or 0; None if all are one.
    root: F64 | None
    inverse: F64 | None
    #: (n,) sample weight times class weight; None if all are one.
    weights: F64 | None
    #: (2,) the labels, ascending; None in regression.
    classes: F64 | None
    #: It is free, and part of the margins.
    has_intercept: bool
    #: S, the sum of the weights, and the largest curvature of the loss over all examples.
    total: float
    smoothness: float
    penalty: Penalty

    @staticmethod
    def of(
        labels: F64,
        root: F64 | None,
        loss: MarginLoss,
        penalty: Penalty,
        *,
        class_weight: ClassWeight,
        intercept: bool,
    ) -> Problem:
        """Make the problem from raw labels (n,) and the penalty of the mean.

        Raises
        ------
        DataError
            When a classification has not exactly two labels, or a regression one outside of the
            loss's domain.
        ConfigError
            When ``class_weight`` names other labels.
        """
        here = np.ones(labels.size, bool) if root is None else root > 0.0
        classes, of_class, positive = None, None, None
        if loss.is_classification:
            classes = two_classes_of(loss.name, labels, root)
            counts = {label: int((labels[here] == label).sum()) for label in classes.tolist()}
            of_class = class_weights(class_weight, counts, [label_text(c) for c in counts])
            positive = float(classes[1])
        else:
            check_targets(loss.name, loss.terms.domain(), labels[here])
        inverse = None
        if root is not None:
            inverse = np.divide(1.0, root, out=np.zeros(root.size), where=root > 0.0)
        made = Targets(positive=positive, of_class=of_class)
        weights = made.weights(labels, None if root is None else root * root)
        total = float(labels.size if weights is None else weights.sum())
        targets, mean = made.of(labels), 0.0
        if loss.name == "squared" and intercept:
            mean = float(np.average(targets, weights=weights))
            targets = targets - mean
        return Problem(
            loss=loss,
            targets=targets,
            mean=mean,
            root=root,
            inverse=inverse,
            weights=weights,
            classes=classes,
            has_intercept=intercept and loss.name != "squared",
            total=total,
            smoothness=loss.smoothness * max((of_class or {}).values(), default=1.0),
            penalty=penalty.times(total),
        )

    @property
    def is_squared(self) -> bool:
        """Whether the loss is its own quadratic model."""
        return self.loss.name == "squared"

    @property
    def roots(self) -> dict[str, F64]:
        """The arrays of the weights in an exchange."""
        return {} if self.root is None else {"root": self.root}

    # --- margins ------------------------------------------------------------------------------

    def with_intercept(self, image: F64) -> tuple[F64, float]:
        """Return margins with the best free intercept, found by Newton steps, and the intercept."""
        if not self.has_intercept:
            return image, self.mean
        plain = np.array(self._plain(image))
        b = best_intercept(self.loss, plain, self.targets, self.weights, 0.0, is_free=True)[0]
        return image + (b if self.root is None else b * self.root), b

    def residual(self, z: F64) -> F64:
        """Return minus the slopes of the loss."""
        slopes = np.empty(z.size)
        self._value(self._plain(z), slopes)
        return -slopes if self.inverse is None else -slopes * self.inverse

    def dual_residual(self, z: F64) -> F64:
        """Return a residual for a dual point; with an intercept, both classes weigh the same."""
        slopes = np.empty(z.size)
        self._value(self._plain(z), slopes)
        rows = self.targets, self.weights
        factors = dual_point(self.loss, slopes, *rows, balanced=self.has_intercept)[1]
        return self._plain(factors)

    def curvature(self, z: F64) -> F64 | None:
        """Return the loss's curvatures, bounded away from zero; None if all are one."""
        if self.is_squared:
            return None
        plain = self._plain(z)
        slopes = np.empty(z.size)
        self._value(plain, slopes)
        curvatures = safe_curvature(self.loss, plain, self.targets, self.weights, slopes)
        return curvatures if self.inverse is None else curvatures * self.inverse**2

    @property
    def _y(self) -> F64:
        """The targets times the square roots of the weights."""
        return self.targets if self.root is None else self.targets * self.root

    def _plain(self, z: F64) -> F64:
        """Return margins without the square roots of the weights."""
        return z if self.inverse is None else z * self.inverse

    def _value(self, plain: F64, slopes: F64) -> float:
        return self.loss.value_and_slope(plain, self.targets, self.weights, slopes)

    # --- objectives ---------------------------------------------------------------------------

    def primal(self, w: F64, z: F64) -> float:
        """Return the objective of a model and its margins."""
        return self._value(self._plain(z), np.empty(z.size)) + self.penalty.of(w)

    def dual(self, w: F64, r: F64, slopes: F64, slack: F64 | None = None) -> Dual:
        """Return the lower bound that a dual residual and any model give.

        Parameters
        ----------
        w : ndarray (d,)
        r : ndarray (n,)
        slopes : ndarray (d,)
            ``X.T @ r`` up to an error of ``slack`` (d,) to either side.
        """
        if self.is_squared:  # any residual is a dual point, at its best scale
            return lower_bound_of_residual(self.penalty, w, r, self._y, slopes, slack=slack)
        slopes_of_rows = -r if self.root is None else -r * self.root
        # Division by the weights may round beyond the feasible interval.
        alpha = dual_point(self.loss, slopes_of_rows, self.targets, self.weights, balanced=False)[0]

        def minus(share: float) -> float:
            return self.loss.minus_conjugate(share * alpha, self.targets, self.weights)

        return lower_bound(self.penalty, w, slopes, minus, slack=slack)

    def search(self, z: F64, dz: F64, penalty: LineModel, size: float) -> Step:
        """Find the lowest point along a step of the margins, by Newton's method with bracketing.

        Parameters
        ----------
        z, dz : ndarray (n,)
        penalty : LineModel
            The penalty's decrease along the step, bounded from below.
        size : float
            The part of the penalty that is not a square.
        """
        plain, along = self._plain(z), self._plain(dz)
        slopes = np.empty(z.size)

        def look(t: float) -> tuple[float, float]:
            value = self._value(plain + t * along, slopes) - penalty.gain(t)
            return value, float(slopes @ along) - penalty.slope + t * penalty.curvature

        start, steep = look(0.0)
        curvature = self._curvature(plain, along) + penalty.curvature
        noise = NOISE * (start + size)
        if max(abs(steep), curvature) <= noise:
            return Step(along=LineModel(slope=1.0, curvature=1.0), length=1.0)
        if steep >= 0.0:
            return Step(along=LineModel(slope=-steep, curvature=max(curvature, steep)), length=0.0)
        low, high, t = 0.0, np.inf, 1.0
        whole = np.inf
        for _ in range(SEARCHES_MAX):
            value, slope = look(t)
            whole = value if t == 1.0 else whole
            if abs(slope) <= FLAT_ENOUGH * abs(steep):
                break
            low, high = (t, high) if slope < 0.0 else (low, t)
            rate = self._curvature(plain + t * along, along) + penalty.curvature
            t = t - slope / rate if rate > 0.0 else np.inf
            if not low < t < high:
                t = 0.5 * (low + high) if np.isfinite(high) else 2.0 * low
        else:
            value = look(t)[0]
        model = LineModel(slope=-steep, curvature=-steep / t)
        gain = start - value
        is_whole = t >= WHOLE and whole <= start - 0.5 * gain + noise
        return Step(along=model, length=1.0 if is_whole else min(t, 1.0))

    def _curvature(self, plain: F64, along: F64) -> float:
        return self.loss.curvature_along(plain, along, self.targets, self.weights)


def two_classes_of(loss: str, labels: F64, root: F64 | None) -> F64:
    """Return the two labels (n,) that count, ascending.

    A class may have no weight if there is one other class: one of the two classes of one against
    the rest may be empty. Further labels without weight do not count.

    Raises
    ------
    DataError
        When there are not exactly two.
    """
    weighted = np.unique(labels if root is None else labels[root > 0.0])
    classes: F64 = weighted if weighted.size > 1 else np.unique(labels)
    if classes.size != 2:
        shown = ", ".join(f"{label:g}" for label in classes[:5])
        raise DataError(
            f"loss: {loss} found {classes.size} distinct labels ({shown}"
            f"{', ...' if classes.size > 5 else ''}), wanted exactly 2; keep two classes in "
            "the data, or use loss: squared for regression"
        )
    return classes
