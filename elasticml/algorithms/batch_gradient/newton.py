"""Newton's method: the Hessian as d x d sums in one exchange, its factors on the driver.

With few columns every step has a Hessian of its own and solves with its factors. With more, or
many classes, a Hessian costs many products with a vector: then it is computed from a share of the
rows, of several classes only each one's own block, and its factors precondition conjugate
gradients, whose products are exchanges. The same is done while examples are absent: the products
include their stand-ins, and the factors are the last ones.

Source: as :mod:`elasticml.algorithms.linear.newton`, which does it in one process.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Final, Literal

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.gradient_exchanges import HESSIAN
from elasticml.algorithms.batch_gradient.line_search import Ray, newton_step, search_wolfe
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Spent, Step
from elasticml.algorithms.batch_gradient.trust_region import GROW, residual_for
from elasticml.algorithms.linear.newton import Factored
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import n_models
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.multiclass import multiclass_loss
from elasticml.specification.algorithms import BatchGradient

#: Longest step tried: lengths are halved from here, so one of them is 1.
LONGEST: Final = 2.0
#: Columns, times pairs of models for each model, up to which every step has its own Hessian over
#: all rows: it costs at most some four products with a vector.
EXACT_COLUMNS: Final = 160
#: The same with several classes, whose own blocks alone would need some 25 products in a step.
EXACT_OF_CLASSES: Final = 800
#: Rows for each coordinate that are enough for the factors of a preconditioner.
SAMPLE_ROWS: Final = 32
#: Products of a step after which factors are replaced.
PRODUCTS_WORTH: Final = 6
#: Shares of the diagonal that are added to a Hessian that has no Cholesky factors: the least, and
#: the factor between two attempts.
JITTER: Final = 1e-13
#: Columns up to which Newton steps are the fastest.
NEWTON_COLUMNS: Final = 1000
#: Columns times pairs of models from which a Hessian takes the trainer long.
LONG_COLUMNS: Final = 200
#: Most coordinates of a Hessian: 130 MB.
SIZE_MAX: Final = 4096
MORE: Final = 100.0


class Newton:
    """The Newton optimizer."""

    def __init__(self, settings: BatchGradient, facts: DatasetStats, columns: Columns) -> None:
        loss = MarginLoss(settings.loss, settings.terms)
        models = n_models(settings, facts)
        self._columns = columns
        self._pairs = [(0, 0)] if models == 1 else multiclass_loss(loss).pairs(models)
        width = columns.n_columns * len(self._pairs) / models
        is_small = width <= (EXACT_COLUMNS if models == 1 else EXACT_OF_CLASSES)
        if not is_small:  # factors of each model's own block will do
            self._pairs = [(k, k) for k in range(models)]
        #: Share of the rows in a Hessian.
        self._share = 1.0 if is_small else share_of_rows(columns.n_model, facts.n_rows)
        #: Every step has its own Hessian, over all rows and with all blocks.
        self._is_exact = is_small or (self._share == 1.0 and models == 1)
        self._residual = settings.gradient_share
        #: A quadratic needs one step only.
        self._is_quadratic = settings.loss == "squared"
        #: The last Hessian of the mean loss with penalty, and its factors.
        self._hessian: F64 | None = None
        self._factors: Factored | None = None
        self._is_worn = False
        #: Longest truncated step, in the variables of the factors, and the length of the last one.
        self._radius = self._reach = math.inf
        self.directions = 0

    def step(self, here: Iterate) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        """See :class:`optimizer.Optimizer`."""
        if here.norm == 0.0:
            return None
        is_fresh = here.elastic.is_whole and self._is_due()
        if is_fresh and not (yield from self._renew(here)):
            return "again"
        is_truncated = not (is_fresh and self._is_exact)
        if not is_truncated:
            assert self._factors is not None
            direction = -self._factors.to_model(self._factors.of_gradient(here.gradient))
        else:
            found = yield from self._solved(here)
            if found is None:
                return "again"
            direction = found
        self.directions += 1
        ray = Ray(here=here, serial=self.directions, direction=direction)
        step = yield from search_wolfe(ray, LONGEST)
        if is_truncated and isinstance(step, Step):
            self._resize(step.length)
        return step

    def _resize(self, length: float) -> None:
        """Let the next truncated step be as long as the last one should have been.

        Of a step that the search cuts to a small part most products were spent on a quadratic that
        does not hold there: rare classes bend their losses so.
        """
        if length < 1.0:
            self._radius = length * self._reach
        elif self._reach >= self._radius:
            self._radius *= GROW

    def _is_due(self) -> bool:
        if self._factors is None:
            return True
        return not self._is_quadratic if self._is_exact else self._is_worn

    def _renew(self, here: Iterate) -> Generator[Exchange, Outcome, bool]:
        """Compute the Hessian at the iterate; False: the set of examples has changed."""
        elastic, columns = here.elastic, self._columns
        d, n = columns.n_columns, len(self._pairs)
        shift = {} if columns.shift is None else {"shift": columns.shift}
        outcome = yield from elastic.ask_here(
            Exchange(
                operation=HESSIAN,
                model={"pairs": np.array(self._pairs, np.float64), **shift},
                returns={
                    "gram": (n, d * (d + 1) // 2),
                    "border": (n, d),
                    "mass": (n,),
                    "uncached": (),
                },
                parameters={"point": here.evaluated.point.serial, "share": self._share},
                is_long=d * n >= LONG_COLUMNS,
            )
        )
        if outcome is None:
            return False
        sums = columns.hessian(self._pairs, outcome.arrays)
        mean = sums / (self._share * elastic.divisor(here.evaluated.sums))
        here.penalty.add_curvature(mean)
        self._hessian, self._is_worn, self._factors = mean, False, factors_of(mean)
        here.spent.hessians += 1
        return True

    def _solved(self, here: Iterate) -> Generator[Exchange, Outcome, F64 | None]:
        """Return a step by preconditioned conjugate gradients; None: "again"."""
        residual = residual_for(here.norm, here.first_norm)
        if self._is_quadratic:
            residual = max(0.5 * self._residual * here.first_norm / here.norm, 1e-12)
        factors = self._factors
        newton = yield from newton_step(here, self._radius, residual, factors=factors)
        if newton is None:
            return None
        self._is_worn = newton.products > PRODUCTS_WORTH
        self._reach = float(np.linalg.norm(newton.step))
        return newton.step if factors is None else factors.to_model(newton.step)

    def columns(self, spent: Spent) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        return spent.take("probes", "products", "hessians")

    def resume(self, *, is_whole: bool) -> Resume:
        """See :class:`optimizer.Optimizer`."""
        arrays = {} if self._hessian is None else {"hessian": self._hessian}
        return Resume(
            arrays=arrays,
            values={
                "directions": self.directions,
                "is_worn": self._is_worn,
                "radius": None if math.isinf(self._radius) else self._radius,
            },
        )

    def go_on(self, resume: Resume, changes: int) -> None:
        """See :class:`optimizer.Optimizer`."""
        self.directions = int(resume.values["directions"])
        radius = resume.values["radius"]
        self._radius = math.inf if radius is None else float(radius)
        if "hessian" in resume.arrays:
            self._hessian = np.array(resume.arrays["hessian"])
            self._factors = factors_of(self._hessian)
            self._is_worn = bool(resume.values["is_worn"])


def share_of_rows(n_model: int, n_rows: int) -> float:
    """Return the share of the rows that are enough for a preconditioner."""
    share = SAMPLE_ROWS * n_model / max(1, n_rows)
    return share if share < 0.5 else 1.0


def factors_of(hessian: F64) -> Factored:
    """Return the Cholesky factors of a Hessian, or of one with a slightly larger diagonal."""
    own = np.diag(hessian).copy()
    # A column of zeros without a penalty, and one that is not trained, stay where they are.
    own[own <= 0.0] = 1.0
    jitter = JITTER
    while True:
        try:
            return Factored(hessian + np.diag(jitter * own))
        except np.linalg.LinAlgError:
            jitter *= MORE


def chosen_for(settings: BatchGradient, facts: DatasetStats) -> Literal["newton", "tron", "lbfgs"]:
    """Return the fastest optimizer for the shape of the data and the loss."""
    is_small = facts.n_columns <= NEWTON_COLUMNS and _size(settings, facts) <= SIZE_MAX
    return "newton" if is_small and facts.layout.kind != "sequence" else "tron"


def check_columns(settings: BatchGradient, facts: DatasetStats) -> None:
    """Reject data whose Hessian is too large.

    Raises
    ------
    ConfigError
    """
    size = _size(settings, facts)
    if facts.layout.kind == "sequence" or size > SIZE_MAX:
        raise ConfigError(
            f"algorithm.optimizer is newton, whose Hessian would have {size:,} rows and columns, "
            f"wanted at most {SIZE_MAX:,}; use tron or lbfgs"
        )


def _size(settings: BatchGradient, facts: DatasetStats) -> int:
    """Return the number of coordinates of all classes' models."""
    return n_models(settings, facts) * (facts.n_columns + 1)
