"""Absent examples whose dual variables are frozen, and an upper bound of their loss.

With ``absent: freeze`` the model keeps the contribution of vanished examples from the last
certificate that they took part in. The dual objective stays exact. Their loss at the current model
is bounded by the statistics kept with that certificate. If no member has those any more, it is
bounded by the longest row, and their dual variables are zero from then on.

The statistics are sums over bins of rows. Rows are sorted into bins by their deficit ``1 - z_i``
(hinge losses), or by ``-|z_i|`` (logistic), at the model v0 at which the statistics are taken.
Because they are sums over rows, those of chunks add up to a member's, and the reduce tree adds
those of all members.

Letters: ``s_i`` weight, ``x_i`` row with the label folded in (classification), ``z_i`` its margin
at v0, ``a_i`` the deficit for the hinge; for smooth losses the derivative by the margin.

With ``t_i = x_i.(v - v0)`` the deficit of row i at v is ``u_i = a_i - t_i``. The sums kept at v0
give the sum of u over a bin exactly, and an upper bound of its sum of squares:

    ``lin = S1 - G.(v - v0)``,  ``sq = S2 - 2 q.(v - v0) + (v - v0)^T M (v - v0)``.

Hinge: ``max(0, u) = (u + |u|) / 2`` and ``sum s |u| <= sqrt(n sq)``; the bound is tighter where the
bin and ``|t| <= max|x| |v - v0|`` limit u (:func:`_confined`). Smooth losses: value and slope at
v0, plus the largest curvature that the bin's rows can meet on the way; exact for the squared loss.

Every step errs to one side: an inaccurate parameter, or a norm that is too large, makes the bound
looser, never wrong. The rounding error, including the cancellation when kept sums are subtracted,
is added by the textbook bound for n additions in any order, ``gamma_n = n u / (1 - n u)``.

Source: our study of both CoCoA papers, neither of which continues without examples; the two-moment
bound is Scarf's (1958).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from elasticml.algorithms.base import Anchor, Arrays, Outcome
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.errors import ConfigError
from elasticml.ids import ExchangeId, GroupId
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.losses import LOSSES
from elasticml.specification.algorithms import DUAL_LOSSES

#: "matrix": second moments of every bin. "diagonal": an upper bound of them.
Form = Literal["matrix", "diagonal"]

#: Maximum doubles of the statistics, if the width allows it.
BUDGET: Final = 1_000_000
#: Most bytes of them, whatever the width: a member needs a few times as much.
BYTES_MAX: Final = 2**28

#: Array of sums per bin, with these columns.
MOMENTS: Final = "bound_moments"
#: Sums of rows, see ``BoundPlan.n_vectors``, in sent coordinates.
VECTORS: Final = "bound_vectors"
#: Second moments: packed lower triangles, or diagonals.
PRODUCTS: Final = "bound_products"

#: Columns of the sums per bin:
#:
#: * ``sum s_i``;
#: * hinge: ``sum s_i a_i``; smooth losses: the sum of the losses;
#: * ``sum s_i a_i^2``;
#: * ``sum s_i |x_i|^2``, the trace of the second moments;
#: * ``sum s_i r_i^2`` where ``r_i |w|`` bounds the terms of ``x_i.w`` in any order of summation;
#: * the number of rows.
WEIGHT, FIRST, SECOND, TRACE, REACH, ROWS = range(6)
N_MOMENTS: Final = 6

#: Edges of the hinge's bins for models that are too wide for finer ones: with the kink alone,
#: bounds were up to twenty times as loose.
_WIDEST: Final = (-0.1, 0.0, 0.1)
#: With fewer edges than this, a coarser second moment is the better choice.
_MATRIX_EDGES_MIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPlan:
    """The statistics to keep; the same on every member and on the driver."""

    loss: MarginLoss
    #: Length of a sent model: the columns, plus one with an intercept or shifted columns.
    n_sent: int
    form: Form
    #: Bin b holds the keys in ``[edges[b - 1], edges[b])``; the outer two are unbounded.
    edges: tuple[float, ...]

    @property
    def has_kink(self) -> bool:
        """Whether rows are described by their deficits, as those of the hinge."""
        return not self.loss.terms.is_smooth()

    @property
    def n_bins(self) -> int:
        """Number of bins, one more than edges."""
        return len(self.edges) + 1

    @property
    def n_vectors(self) -> int:
        """Number of vectors.

        Hinge: ``sum s_i x_i`` of every bin, then ``sum s_i a_i x_i`` of every bin. Smooth losses:
        the gradient.
        """
        return 2 * self.n_bins if self.has_kink else 1

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the arrays, by name."""
        products = self.n_sent if self.form == "diagonal" else self.n_sent * (self.n_sent + 1) // 2
        return {
            MOMENTS: (self.n_bins, N_MOMENTS),
            VECTORS: (self.n_vectors, self.n_sent),
            PRODUCTS: (self.n_bins, products),
        }

    @property
    def size(self) -> int:
        """Doubles in all arrays."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def additions(self, moments: F64) -> float:
        """Bound the number of additions in the sums of these moments: no chunk is empty."""
        return 2.0 * float(moments[:, ROWS].sum()) + 4.0 * self.n_sent + 20.0

    def zeros(self) -> dict[str, F64]:
        """Return zeroed sums."""
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}

    def bounds(self) -> tuple[F64, F64]:
        """Return the lower and upper edges of the bins, (n_bins,) each, with infinities."""
        edges = np.array(self.edges)
        return np.append(-np.inf, edges), np.append(edges, np.inf)


def plan_statistics(loss: MarginLoss, n_sent: int) -> BoundPlan:
    """Choose the tightest statistics of at most :data:`BUDGET` doubles, else the smallest ones.

    Parameters
    ----------
    loss : MarginLoss
    n_sent : int
        Length of a sent model, at least 1.

    Raises
    ------
    ConfigError
        When there is no bound for the loss, or the smallest statistics exceed :data:`BYTES_MAX`.
    """
    all_edges = loss.terms.bound_edges()
    if not all_edges:
        bounded = [name for name in DUAL_LOSSES if LOSSES[name].bound_edges()]
        raise ConfigError(
            f"algorithm.loss is {loss.name!r}, whose absent examples cannot be bounded; wanted one "
            f"of {', '.join(bounded)}, or absent: reload"
        )
    if not loss.terms.is_smooth():
        all_edges = (*all_edges, _WIDEST)
    forms: tuple[Form, ...] = ("matrix", "diagonal")
    plans = [
        BoundPlan(loss=loss, n_sent=n_sent, form=form, edges=edges)
        for form, edges in itertools.product(forms, all_edges)
        if form != "matrix" or loss.terms.is_smooth() or len(edges) >= _MATRIX_EDGES_MIN
    ]
    chosen = next((plan for plan in plans if plan.size <= BUDGET), plans[-1])
    if 8 * chosen.size > BYTES_MAX:
        raise ConfigError(
            f"absent: got freeze, which needs {8 * chosen.size >> 20} MiB from each member for "
            f"{n_sent} columns, wanted at most {BYTES_MAX // 2**20}; use absent: reload or stall"
        )
    return chosen


#: Half of the distance from 1 to the next double.
UNIT: Final = 2.0**-53
#: The rounding error of a difference of kept sums is at most that of this many sums of the full
#: size: twice the depth of a binary tree of 2**15 members.
_KEPT_SUMS: Final = 32
#: Covers the rounding error of the few operations that compute a single number.
_ROUND_UP: Final = 1.0 + 1e-13


def trivial_bound(
    loss: MarginLoss, weight: float, v: F64, row_norm_max: float, target_max: float = 0.0
) -> float:
    """Bound the loss of examples from their weight and the largest row norm alone.

    Parameters
    ----------
    weight : float
        Total weight of these examples.
    v : ndarray (d,)
        Model in trained coordinates.
    row_norm_max : float
        First entry of ``row_maxima``.
    target_max : float
        Largest absolute target, in regression.
    """
    reach = row_norm_max * float(np.linalg.norm(v)) * _ROUND_UP
    targets = (1.0,) if loss.is_classification else (-target_max, target_max)
    # Convex in the margin and the target: largest in a corner.
    each = [loss.value(z, y) for z in (-reach, reach) for y in targets]
    return weight * max(each) * _ROUND_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One evaluation of the bound: the distance of v from v0, and the bins' sums at v."""

    #: ``|v - v0|`` and ``max|x| |v - v0|``.
    length: float
    radius: float
    #: ``v - v0`` in sent coordinates.
    sent: F64
    #: Upper bounds of ``sum s t^2``, (bins,).
    squares: F64


class FrozenLoss:
    """Upper bound of the absent examples' loss, from their statistics at ``v0``."""

    def __init__(
        self,
        plan: BoundPlan,
        v0: F64,
        absent: Mapping[str, F64],
        whole: Mapping[str, F64],
        row_maxima: F64,
        down: Callable[[F64], F64] = lambda v: v,
    ) -> None:
        """Take the statistics of the absent examples, and those of all at the same exchange.

        Parameters
        ----------
        v0 : ndarray (d,)
            Model at which the statistics were taken, in trained coordinates.
        absent, whole : mapping of ndarray
            Shapes as in ``plan.shapes``. ``absent`` may be a signed sum of kept partials; its
            rounding error is measured against ``whole``.
        row_maxima : ndarray (2,)
            See :func:`elasticml.algorithms.cocoa.bound_statistics.row_maxima`.
        down : callable
            Maps a model (d,) to sent coordinates (n_sent,); linear.
        """
        self._plan, self._v0, self._down = plan, v0.copy(), down
        self._row_norm, self._row_reach = (float(value) for value in row_maxima)
        all_moments = whole[MOMENTS]
        # Relative rounding error of the sums, and of a single margin.
        self._gamma = _gamma(_KEPT_SUMS * plan.additions(all_moments))
        self._gamma_row = _gamma(4.0 * plan.n_sent + 20.0)
        self._moments = absent[MOMENTS].copy()
        self._vectors = absent[VECTORS].copy()
        self._products = absent[PRODUCTS].copy()
        if plan.form == "diagonal":
            self._products += self._gamma * whole[PRODUCTS]
        self._whole = np.maximum(all_moments, 0.0)
        # Upper bounds of the sums whose terms are nonnegative.
        for column in (WEIGHT, SECOND, TRACE, REACH):
            raised = self._moments[:, column] + self._gamma * self._whole[:, column]
            self._moments[:, column] = np.maximum(raised, 0.0)

    @property
    def weight(self) -> float:
        """Upper bound of the absent examples' weight."""
        return float(self._moments[:, WEIGHT].sum()) * _ROUND_UP

    def upper(self, v: F64) -> float:
        """Return an upper bound of ``sum_i s_i loss_i(v)`` over the absent examples.

        Parameters
        ----------
        v : ndarray (d,)
            Model in trained coordinates.
        """
        step = self._step(v)
        bound = self._hinge(step) if self._plan.has_kink else self._smooth(step)
        if self._plan.loss.is_classification:
            trivial = trivial_bound(self._plan.loss, self.weight, v, self._row_norm)
            bound = min(bound, trivial)
        return max(bound, 0.0) * _ROUND_UP

    def _step(self, v: F64) -> _Step:
        delta = v - self._v0
        sent = np.ascontiguousarray(self._down(delta), np.float64)
        length = float(np.linalg.norm(delta)) * _ROUND_UP
        squares = self._moments[:, TRACE] * length**2
        slack = self._gamma * self._whole[:, REACH] * length**2
        pairs = sent * sent
        if self._plan.form == "matrix":
            rows, columns = np.tril_indices(sent.size)
            pairs = sent[rows] * sent[columns] * np.where(rows == columns, 1.0, 2.0)
        np.minimum(squares, np.maximum(self._products @ pairs, 0.0) + slack, out=squares)
        return _Step(
            length=length,
            radius=self._row_norm * length * _ROUND_UP,
            sent=sent,
            squares=squares * _ROUND_UP,
        )

    def _smooth(self, step: _Step) -> float:
        """Value, slope and curvature: ``L + g.(v - v0) + sum_b c_b (v - v0)^T M_b (v - v0)``."""
        first = float(self._moments[:, FIRST].sum())
        slope = float(self._vectors[0] @ step.sent)
        curved = float(self._curvatures(step.radius) @ step.squares)
        total = self._whole.sum(axis=0)
        weight, second, reach = (total[c] for c in (WEIGHT, SECOND, REACH))
        length, off = step.length, float(self._margin_error(weight, reach))
        slack = self._gamma * (total[FIRST] + math.sqrt(second * reach) * length)
        # Errors of the margins change losses by the slope, and slopes by the curvature, <= 2.
        slack += off * math.sqrt(second) + off * off + 2.0 * off * math.sqrt(reach) * length
        return float(first + slope + curved + slack)

    def _curvatures(self, radius: float) -> F64:
        """Half of the largest second derivative that each bin's rows can meet within the radius."""
        upper = self._edges()[1]
        bound = self._plan.loss.terms.bound_curvature
        return np.array([bound(float(edge), radius) for edge in upper])

    def _edges(self) -> tuple[F64, F64]:
        """Edges of the bins, moved outwards by the error of a margin."""
        lower, upper = self._plan.bounds()
        off = self._gamma_row * (2.0 + self._row_reach * float(np.linalg.norm(self._v0)))
        return lower - off, upper + off

    def _margin_error(self, weight: F64, reach: F64) -> F64:
        """Bound ``sqrt(sum s e^2)`` where e is the rounding error of a margin."""
        return self._gamma_row * np.sqrt(2.0 * (weight + reach * float(self._v0 @ self._v0)))

    def _hinge(self, step: _Step) -> float:
        """Bound ``sum s max(0, u)`` by the sums of each bin, and the limits of u in it."""
        lin, q = (self._vectors @ step.sent).reshape(2, -1)
        lower, upper = self._edges()
        least, most = lower - step.radius, upper + step.radius
        own, (weight, _, second, _, reach, rows) = self._moments, self._whole.T
        off, moved = self._margin_error(weight, reach), np.sqrt(reach) * step.length
        # By Cauchy's inequality: the sizes of the terms, times their relative rounding error.
        size = np.sqrt(second) + moved
        slack = np.sqrt(weight) * (self._gamma * size + off)
        squares = np.maximum(own[:, SECOND] - 2.0 * q + step.squares, 0.0)
        squares += self._gamma * size**2 + off * (2.0 * size + off)
        high, low = own[:, FIRST] - lin + slack, own[:, FIRST] - lin - slack
        best = np.minimum(
            0.5 * (high + np.sqrt(own[:, WEIGHT] * squares)),
            _confined(own[:, WEIGHT], high, squares, -least),
        )
        # max(0, u) = u + max(0, -u), and -u >= -most.
        best = np.minimum(best, high + _confined(own[:, WEIGHT], -low, squares, most))
        best = np.maximum(np.where(least >= 0.0, high, best), 0.0)
        return float(best[(rows > 0.0) & (most > 0.0)].sum())


def _confined(weight: F64, lin: F64, squares: F64, depth: F64) -> F64:
    """Bound ``sum s max(0, u)`` of each bin where ``u >= -depth``, from upper bounds of the sums.

    With ``t = u + depth >= 0``, the parabola ``(1 - 2 depth / p) t + (depth / p^2) t^2`` touches
    ``t - depth`` at p. For ``p >= 2 depth`` it is nonnegative, hence never below ``max(0, u)``.
    Infinite where the depth is.
    """
    is_known = np.isfinite(depth)
    depth = np.where(is_known, np.maximum(depth, 0.0), 0.0)
    # Add the rounding error of these sums themselves.
    size = np.abs(lin) + depth * weight
    first = lin + depth * weight + 4.0 * UNIT * size
    second = squares + 2.0 * depth * lin + depth * depth * weight
    second += 8.0 * UNIT * (squares + 2.0 * depth * size)
    is_some = (first > 0.0) & (second > 0.0)
    touch = np.maximum(2.0 * depth, np.divide(second, first, out=np.ones_like(lin), where=is_some))
    share = depth / np.where(touch > 0.0, touch, 1.0)
    bound = (1.0 - 2.0 * share) * first + share / np.where(touch > 0.0, touch, 1.0) * second
    return np.where(is_known, np.where(is_some, np.maximum(bound, 0.0), 0.0), np.inf)


def _gamma(n: float) -> float:
    """Return the relative error of n additions in any order, against the sum of absolute terms."""
    return n * UNIT / (1.0 - min(n * UNIT, 0.5))


#: Certificates whose sums are kept, as many as members keep.
KEPT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLimits:
    """Upper bounds for all rows and targets."""

    #: (2,), see :func:`elasticml.algorithms.cocoa.bound_statistics.row_maxima`.
    rows: F64
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenGroup:
    """The contribution of one absent group."""

    #: ``sum s_i (-loss*)`` of its frozen dual variables.
    dual: float
    #: ``sum s_i alpha_i x_i`` in sent coordinates.
    image: F64
    weight: float
    loss: FrozenLoss


@dataclass(slots=True, kw_only=True)
class FrozenGroups:
    """All absent groups by id, as the outcomes report them."""

    loss: MarginLoss
    columns: Columns
    #: None if the job waits for absent examples.
    plan: BoundPlan | None
    limits: RowLimits | None = None
    #: None: no member has kept anything of it, and its dual variables are zero.
    groups: dict[GroupId, FrozenGroup | None] = field(default_factory=dict)
    #: Of the last certificates: model, sums, and the factor of the dual variables after it.
    kept: dict[ExchangeId, tuple[F64, Arrays, float]] = field(default_factory=dict)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Statistics that certificates must return."""
        return {} if self.plan is None else self.plan.shapes

    def keep(self, exchange: ExchangeId, v: F64, arrays: Arrays, scale: float) -> None:
        """Store a certificate's model and sums, and the factor of its dual variables."""
        if self.plan is not None:
            self.kept[exchange] = (v, arrays, scale)
            for old in sorted(self.kept)[:-KEPT]:
                del self.kept[old]

    def note(self, outcome: Outcome) -> bool:
        """Update the absent groups from an outcome; return whether they have changed."""
        before = set(self.groups)
        for group in before - set(outcome.absent):
            del self.groups[group]
        for group in outcome.absent:
            self.groups.setdefault(group, None)
        if outcome.opened is not None:
            self.groups[outcome.opened] = self._frozen(outcome.anchor)
        return set(self.groups) != before

    def _frozen(self, anchor: Anchor | None) -> FrozenGroup | None:
        if self.plan is None or anchor is None or anchor.exchange not in self.kept:
            return None
        assert self.limits is not None
        v0, whole, scale = self.kept[anchor.exchange]
        names = self.plan.shapes
        return FrozenGroup(
            # -loss* is concave and zero at zero: its chord from there is a lower bound.
            dual=scale * float(anchor.arrays["dual"]),
            image=scale * np.asarray(anchor.arrays["image"]),
            weight=float(anchor.arrays["weight"]),
            loss=FrozenLoss(
                self.plan,
                v0,
                {name: anchor.arrays[name] for name in names},
                {name: whole[name] for name in names},
                self.limits.rows,
                self.columns.down,
            ),
        )

    @property
    def known(self) -> list[FrozenGroup]:
        """The groups of which something was kept."""
        return [group for group in self.groups.values() if group is not None]

    def dual(self) -> float:
        """Return the sum of ``s_i (-loss*)`` over all absent examples."""
        return sum(group.dual for group in self.known)

    def add_image(self, image: F64) -> F64:
        """Return ``image`` plus that of the absent examples."""
        total: F64 = np.sum([image, *(group.image for group in self.known)], axis=0)
        return total

    def upper(self, v: F64, weight: float) -> float:
        """Bound the sum of the absent examples' losses at a model.

        Parameters
        ----------
        v : ndarray (D,)
            Model in trained coordinates.
        weight : float
            Total weight of the absent examples.
        """
        total = sum(group.loss.upper(v) for group in self.known)
        if len(self.known) < len(self.groups):
            assert self.limits is not None
            rest = max(weight - sum(group.weight for group in self.known), 0.0)
            norm, target = float(self.limits.rows[0]), self.limits.target
            total += trivial_bound(self.loss, rest, v, norm, target)
        return total
