"""The settings of ``linear``: a linear model's problem, whatever algorithm solves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from elasticml.errors import ConfigError
from elasticml.objectives.losses import LOSSES
from elasticml.specification.algorithms import (
    ALGORITHMS,
    DUAL_LOSSES,
    AnyAlgorithm,
    AnyLoss,
    BatchGradient,
    ClassWeight,
    CoCoA,
    Offset,
    Scale,
    check_loss,
    loss_terms,
)
from elasticml.specification.settings_model import SettingsModel, default_of

#: The engines that minimise smooth losses: optimizers of ``batch_gradient``.
_OPTIMIZERS = ("newton", "tron", "lbfgs")


class Linear(SettingsModel):
    """Train a linear model with an L2 penalty; the algorithm follows from the loss and the data.

    The objective is ``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2`` on scaled columns, with ``s``
    the sample weight times the class weight. The intercept is free: not penalised. For more than
    two classes, ``"logistic"`` is softmax; the other losses have one model for each class against
    the rest.

    Smooth losses are minimised by :class:`BatchGradient`: by Newton's method, TRON or L-BFGS,
    whichever is the fastest for this number of columns and classes. ``"hinge"``, ``"absolute"`` and
    ``"quantile"`` have a kink and are minimised by :class:`CoCoA`, which penalises the intercept as
    the coefficients. The result says which it was. For an L1 penalty see ``em.Lasso`` and
    :class:`PrimalCoCoA`.

    Examples
    --------
    >>> result = em.Job(em.Linear(loss="logistic"), em.from_arrays(X, y)).run(client)
    >>> result.summary["engine"], result.summary["converged"]
    ('batch_gradient, optimizer newton', True)
    """

    name: ClassVar[str] = "linear"

    #: Loss of an example, by its name or the import path of your own; "absolute" is the quantile
    #: loss of the median.
    loss: AnyLoss = "logistic"
    #: Parameters of a loss of your own, by name; others have their defaults.
    loss_options: dict[str, float] | None = None
    #: L2 penalty.
    l2: float = Field(default=default_of(BatchGradient, "l2"), ge=0)
    #: Fit an intercept.
    intercept: bool = True
    #: What solves the problem: an optimizer of batch_gradient, or cocoa; None: what is fastest.
    engine: Literal["newton", "tron", "lbfgs", "cocoa"] | None = None
    #: Weight of each label, or "balanced".
    class_weight: ClassWeight = None
    #: Scaling of the columns.
    scale: Scale = "auto"
    #: Column that is added to every margin, by its name in a table or its number from 0: its
    #: coefficient is 1. As in generalised linear models; with a log link the log of the exposure.
    offset: Offset = None
    #: Loss huber: residuals up to this are squared, in units of the labels; by default 1.
    delta: float | None = Field(default=None, gt=0)
    #: Loss quantile: the quantile to predict, by default 0.5, the median.
    quantile: float | None = Field(default=None, gt=0, lt=1)
    #: Loss quantile: rounds the kink to a parabola between ``quantile - 1`` and ``quantile`` times
    #: this, in units of the labels; the loss is smooth then.
    smoothing: float | None = Field(default=None, gt=0)
    #: Loss tweedie: the variance is proportional to the mean to this power.
    power: float | None = Field(default=None, ge=1, le=2)
    #: Stop when the model is this good: of smooth losses, when the gradient norm has fallen to this
    #: share of the first one, with cocoa when the certified gap is at most this; by default as
    #: these algorithms. 0: never.
    tolerance: float | None = Field(default=None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _refuse_l1(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and "l1" in values:
            raise ConfigError(
                "linear: got l1, wanted an L2 penalty alone: for L1 use em.Lasso or em.ElasticNet "
                "on arrays, or algorithm primal_cocoa (em.PrimalCoCoA) on data by columns"
            )
        return values

    def check(self) -> None:
        """Check that an engine solves this very problem."""
        check_loss(self.loss, (*LOSSES, "absolute"), self.loss_options)
        needs_cocoa = self._has_kink
        if self.engine in _OPTIMIZERS and needs_cocoa:
            remedy = "give smoothing, or " if self.loss == "quantile" else ""
            raise ValueError(
                f"engine: {self.engine} needs a smooth loss, and {self.loss} has a kink; {remedy}"
                "leave engine out: cocoa solves it"
            )
        if self.engine == "cocoa" and not needs_cocoa:
            self._check_cocoa()
        if self.loss == "absolute" and self.quantile is not None:
            raise ValueError("quantile: belongs to loss: quantile, not absolute, which is the 0.5")
        try:
            self.resolved()
        except ConfigError as error:
            raise ValueError(error.message.partition(".")[2]) from None

    def _check_cocoa(self) -> None:
        """Reject what is another problem for CoCoA."""
        if self.loss in LOSSES and self.loss not in DUAL_LOSSES:
            raise ValueError(
                f"engine: cocoa has no loss {self.loss}; leave engine out: batch_gradient solves it"
            )
        if self.intercept:
            raise ValueError(
                f"engine: cocoa penalises the intercept, which with loss {self.loss} is another "
                "problem; set intercept=False, or leave engine out"
            )

    @property
    def _has_kink(self) -> bool:
        if self.loss == "quantile":
            return self.smoothing is None
        return (
            self.loss == "absolute"
            or not loss_terms(self.loss, self.loss_options or {}).is_smooth()
        )

    def resolved(self) -> BatchGradient | CoCoA:
        """Return the settings of the algorithm that solves the problem."""
        given = self.model_dump(exclude={"engine"})
        if self.loss == "absolute":
            given |= {"loss": "quantile", "quantile": 0.5}
        if self.engine == "cocoa" or self._has_kink:
            del given["power"]
            return CoCoA(**given, engine_of="linear")
        return BatchGradient(**given, optimizer=self.engine or "auto", engine_of="linear")


#: The algorithms that a job file may name.
NAMED: dict[str, type[Any]] = {**ALGORITHMS, Linear.name: Linear}


def resolved(algorithm: AnyAlgorithm | Linear) -> AnyAlgorithm:
    """Return the settings of the algorithm that runs."""
    return algorithm.resolved() if isinstance(algorithm, Linear) else algorithm


def engine_of(section: Mapping[str, Any], optimizer: str | None = None) -> str | None:
    """Return what solves the problem of :class:`Linear`, in words; None for other jobs.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job's record.
    optimizer : str, optional
        What the job has chosen, if the section leaves it open.
    """
    if section.get("engine_of") != Linear.name:
        return None
    if section["name"] == CoCoA.name:
        return "cocoa, which penalises the intercept" if section["intercept"] else "cocoa"
    return f"{section['name']}, optimizer {optimizer or section['optimizer']}"
