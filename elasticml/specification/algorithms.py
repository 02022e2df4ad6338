"""The settings of each algorithm in job files and in Python, and what each supports.

Every class is one ``algorithm`` section. Below them are the rules that depend on the algorithm
alone: which ``absent`` rules it can follow, whether it certifies a gap, whether it is
deterministic.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from elasticml.errors import ConfigError, how_to_install, one_line, shown
from elasticml.objectives import penalties
from elasticml.objectives.losses import (
    LOSSES,
    PARAMETERS,
    Link,
    complete,
    is_of_classes,
    with_parameters,
)
from elasticml.specification.settings_model import (
    Count,
    SettingsModel,
    choices_of,
    default_of,
    read_settings,
    unknown_choice,
)
from elasticml.specification.user_objects import imported, path_of

#: "auto": "standard" on dense rows and on rows of tables, except for columns of zeros and ones;
#: other rows stay as they are.
Scale = Literal["auto", "none", "maxabs", "standard"]
#: A label: a number, or a word where the data have words.
_Label = Annotated[
    Annotated[float, Field(allow_inf_nan=False)] | str, Field(union_mode="left_to_right")
]
#: Weight of each label, or "balanced".
ClassWeight = dict[_Label, float] | Literal["balanced"] | None
Absent = Literal["auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload", "freeze"]
RateRule = Literal["sqrt", "linear", "constant", "constant_global_batch"]
Above0 = Annotated[float, Field(gt=0)]
#: A word, or a function by its import path; in Python also the function itself, which travels with
#: the job where workers cannot import it.
ImportPath = Annotated[str | Callable[..., Any], WithJsonSchema({"type": "string"})]
#: A job ends by default when its certified gap is at most this share of its objective,
RELATIVE_GAP = 1e-4
#: or when the norm of its gradient is at most this share of the first one.
RELATIVE_GRADIENT = 1e-6
#: Maximum groups of a member: more than machines have NUMA nodes or GPUs.
GROUPS_MAX = 64

#: Losses that have no kink if they have all their parameters: of batch_gradient.
SMOOTH_LOSSES = tuple(name for name in LOSSES if name != "hinge")
#: Losses whose dual variables are improved one by one: those with limited slopes or curvatures.
DUAL_LOSSES = tuple(name for name, terms in LOSSES.items() if terms.link != "log")
#: Losses of async_sgd and of primal_cocoa.
ASYNC_LOSSES = ("logistic", "squared", "squared_hinge", "smoothed_hinge", "hinge")
COLUMN_LOSSES = ("squared", "logistic", "squared_hinge")


def _loss_schema(names: Sequence[str]) -> WithJsonSchema:
    named = {"type": "string", "enum": list(names)}
    return WithJsonSchema({"anyOf": [named, {"type": "string", "pattern": r"^[\w.]+:\w+$"}]})


#: Replaces a class by its import path.
_BY_PATH = BeforeValidator(lambda loss: path_of(loss) if isinstance(loss, type) else loss)
#: A loss by its name, or a user's own by its import path; in Python also the class itself.
SmoothLoss = Annotated[str, _BY_PATH, _loss_schema(SMOOTH_LOSSES)]
DualLoss = Annotated[str, _BY_PATH, _loss_schema(DUAL_LOSSES)]
AsyncLoss = Annotated[str, _BY_PATH, _loss_schema(ASYNC_LOSSES)]
ColumnLoss = Annotated[str, _BY_PATH, _loss_schema(COLUMN_LOSSES)]
AnyLoss = Annotated[str, _BY_PATH, _loss_schema((*LOSSES, "absolute"))]


#: A penalty of a user by its import path; in Python also the class itself.
OwnPenalty = Annotated[
    str, _BY_PATH, WithJsonSchema({"type": "string", "pattern": r"^[\w.]+:\w+$"})
]

#: A column, by its number or name; None for no offset.
Offset = Annotated[int, Field(ge=0, strict=True)] | str | None
#: The name of settings that were resolved into others.
EngineOf = Literal["linear"] | None


def check_loss(loss: str, names: Sequence[str], options: Mapping[str, float] | None) -> None:
    """Raise a ValueError if a loss is neither one of these nor an import path, or lacks options."""
    if loss not in names and not _is_import_path(loss):
        raise ValueError(f"loss: got {shown(loss)}{choices_of(loss, names)}")
    if options and loss in names:
        raise ValueError(f"loss_options: belongs to a loss of your own, not {loss}")
    if options:
        loss_terms(loss, options)


def loss_terms(loss: str, parameters: Mapping[str, float] = {}) -> Any:
    """Return a loss by its name, or a user's own by its import path.

    Raises
    ------
    ConfigError
        When it cannot be imported, is no loss, or has other parameters.
    """
    if loss in LOSSES:
        return with_parameters(LOSSES[loss], parameters)
    return _own_record("loss", loss, parameters, complete)


def _own_record(
    key: str, path: str, parameters: Mapping[str, float], complete: Callable[[type], Any]
) -> Any:
    """Return a user's loss or penalty, which ``complete`` gives what it lacks."""
    record = imported(key, path)
    try:
        return complete(record)(**{key: float(value) for key, value in parameters.items()})
    except TypeError as error:
        raise ConfigError(
            f"{key}_options: {shown(path)} does not take them: {one_line(error)}"
        ) from None


def link_of(section: Mapping[str, Any]) -> Link | None:
    """Return the link of the loss in the ``algorithm`` section of a job record, if it has one."""
    loss = section.get("loss")
    link: Link | None = LOSSES[loss].link if loss in LOSSES else section.get("link")
    return link


def is_regression(section: Mapping[str, Any]) -> bool:
    """Whether the loss in the ``algorithm`` section of a job record is one of regression."""
    link = link_of(section)
    return link is not None and not is_of_classes(link)


class _WithLoss(SettingsModel):
    """An algorithm for a loss that may have parameters, or be a user's own."""

    # Comments describe the keys of a class, and not those of its bases.
    loss_options: dict[str, float] | None = Field(
        default=None,
        description="Parameters of a loss of your own, by name; others have their defaults.",
    )

    @property
    def terms(self) -> Any:
        """The loss, see :mod:`elasticml.objectives.losses`."""
        given = {**self.loss_parameters, **(self.loss_options or {})}
        return loss_terms(str(getattr(self, "loss", "")), given)

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is a user's."""
        return getattr(self, "loss", None) not in LOSSES

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        return is_of_classes(self.terms.link)

    @property
    def loss_parameters(self) -> dict[str, float]:
        """The given parameters of the loss, by name; others have the loss's defaults."""
        given = {key: getattr(self, key) for key in PARAMETERS if hasattr(self, key)}
        return {key: value for key, value in given.items() if value is not None}

    def _check_loss(self, names: Sequence[str]) -> None:
        loss, weights = getattr(self, "loss", ""), getattr(self, "class_weight", None)
        check_loss(loss, names, self.loss_options)
        for key in self.loss_parameters:
            if loss != PARAMETERS[key]:
                raise ValueError(f"{key}: belongs to loss: {PARAMETERS[key]}, not {loss}")
        if isinstance(weights, dict) and min(weights.values(), default=1) <= 0:
            raise ValueError("class_weight: every weight must be more than 0")
        if weights is not None and not self.is_classification:
            raise ValueError(f"class_weight: loss: {loss} has no classes; weigh the samples")

    def _own_link(self) -> dict[str, Any]:
        """Return what a record says of a user's loss, so that readers need not import it."""
        return {"link": self.terms.link} if self.has_own_loss else {}


class _Linear(SettingsModel):
    """A linear model; by default it has an intercept and scales, but not in ``mode="paper"``."""

    @model_validator(mode="before")
    @classmethod
    def _omit(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or cls._has_defaults(values):
            return values
        return {"intercept": False, "scale": "none", **values}

    @classmethod
    def _has_defaults(cls, values: Mapping[str, Any]) -> bool:
        """Whether these settings imply an intercept and scaling if they do not say so."""
        return values.get("mode") != "paper"


class _Certified(SettingsModel):
    """An algorithm with a certified duality gap, at which it ends."""

    def gap_to_reach(self, objective: float) -> float:
        """Return the gap at which a job ends whose objective has this value."""
        given: float | None = getattr(self, "tolerance", None)
        return RELATIVE_GAP * abs(objective) if given is None else given

    @property
    def gap_reason(self) -> str:
        """Why a job ends that has reached this gap."""
        given = getattr(self, "tolerance", None)
        default = f"{RELATIVE_GAP:g} of the objective, the default of algorithm.tolerance"
        return f"gap <= {default if given is None else format(given, 'g')}"


#: Keys that apply only if states are sent.
_OF_MESSAGES = ("queue", "sends", "slots")


class _Seeded(SettingsModel):
    """An algorithm with random choices; ``seed`` is by default the job's."""

    @property
    def random_seed(self) -> int:
        """The seed, which a job record always has."""
        return getattr(self, "seed", None) or 0


class AsyncSGD(_Seeded, _WithLoss, _Linear):
    """Train K-Means or a linear model with workers that never wait for each other.

    Every worker visits its own examples in mini-batches. After each mini-batch it merges the models
    that it has received, and sends its own to a random other worker. Workers may join and leave at
    any time.

    ``problem="kmeans"`` finds ``k`` centres. Centres are averaged by the number of examples that
    they are the mean of. ``problem="linear"`` minimises a loss with an L2 penalty. ``batch`` is the
    number of examples between two messages: a number, ``"auto"`` (as many messages as the network
    carries), ``"adaptive"`` (the paper's adaptiveB) or ``"inf"`` (no messages: SimuParallelSGD). By
    default it is ``max(3 k, 256)``. If the last message has not been sent yet, a newer one replaces
    it, so that small batches do not overload the network.

    ``mode="batch"`` is the paper's baseline: Lloyd's algorithm, one synchronous round per pass over
    all data.

    Source: the asynchronous SGD paper; ``mode="paper"`` follows it literally.

    Examples
    --------
    >>> job = em.Job(em.AsyncSGD("kmeans", k=3, passes=2), em.from_arrays(X, y))
    >>> job.run(client).model.cluster_centers_.shape
    (3, 5)
    """

    name: ClassVar[str] = "async_sgd"

    #: K-Means, or a linear model.
    problem: Literal["kmeans", "linear"] = "kmeans"
    #: Clusters, for K-Means.
    k: Count | None = None
    #: Loss of a linear model, by its name or the import path of your own.
    loss: AsyncLoss = "logistic"
    #: L2 penalty of a linear model.
    l2: float = Field(default=0.0, ge=0)
    #: Fit an unpenalised intercept, for a linear model; by default yes, in ``mode="paper"`` no.
    intercept: bool = True
    #: Scaling of the columns, for a linear model; by default "auto", in ``mode="paper"`` "none".
    scale: Scale = "auto"
    #: Weight of each label, or "balanced".
    class_weight: ClassWeight = None
    #: Column that is added to every margin, by its name in a table or its number from 0: its
    #: coefficient is 1. As in generalised linear models; with a log link the log of the exposure.
    offset: Offset = None
    #: "paper" follows the paper literally; "batch": synchronous rounds over all data.
    mode: Literal["default", "paper", "batch"] = "default"
    #: Examples between two messages; "auto": log-PI control, "adaptive": adaptiveB, "inf": no
    #: messages.
    batch: Count | Literal["auto", "adaptive", "inf"] | None = None
    #: First mini-batch size if the size is controlled; with "auto" the least, but in mode "paper".
    batch_start: Count | None = None
    #: Gain of adaptiveB, in examples per message.
    gamma: float = Field(default=10.0, ge=0)
    #: Target length of the send queue, in messages; by default 0.5, for adaptiveB 1.
    queue_target: float | None = Field(default=None, ge=0)
    #: Capacity of the send queue; by default one, for the newest state, if ``batch`` is fixed.
    queue: Count | None = None
    #: Learning rate; by default derived from the data, in ``mode="paper"`` 0.05.
    rate: float | None = Field(default=None, gt=0)
    #: Number of random peers that receive each state.
    sends: int = Field(default=1, ge=0)
    #: Capacity of the mailbox: states waiting to be merged; when it is full, the oldest is dropped.
    slots: Count = 1
    #: Share of the centres in a message, drawn at random.
    share: float = Field(default=1.0, gt=0, le=1)
    #: Initial centres.
    start: Literal["kmeans++", "sample"] = "kmeans++"
    #: Rows per centre in the sample for k-means++.
    start_rows: Count = 100
    #: Passes over its examples after which a member stops.
    passes: float | None = Field(default=None, gt=0)
    #: Seconds between two reports, which are rows of the history; members do not pause for them.
    report_every: float = Field(default=1.0, gt=0)
    #: Number of chunks from which a mini-batch is drawn.
    window: Count = 16
    #: Final passes of Lloyd's algorithm over all data.
    final_passes: int = Field(default=0, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def __init__(self, problem: Literal["kmeans", "linear"] = "kmeans", /, **settings: Any) -> None:
        settings.setdefault("problem", problem)
        super().__init__(**settings)

    # Lets pydantic validate sections of job files without this __init__, with path as context.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def _has_defaults(cls, values: Mapping[str, Any]) -> bool:
        return values.get("problem") == "linear" and values.get("mode") != "paper"

    @field_validator("batch", mode="before")
    @classmethod
    def _infinite(cls, batch: object) -> object:
        is_infinite = isinstance(batch, float) and math.isinf(batch) and batch > 0
        return "inf" if is_infinite else batch

    def check(self) -> None:
        """Check constraints between fields."""
        self._check_loss(ASYNC_LOSSES)
        if self.problem == "kmeans":
            self._check_defaults(("offset",), "it belongs to problem: linear")
            if self.scale != "none":
                raise ValueError(f"scale: got {self.scale!r}, wanted none for K-Means")
            if self.k is None:
                raise ValueError("k: is missing, wanted a number of clusters")
            if self.rate is not None and self.mode != "paper":
                raise ValueError(
                    f"rate: got {self.rate:g}, wanted none: a centre's step is 1/mass; see mode: "
                    "paper"
                )
            if self.rate is not None and self.rate > 1.0:
                raise ValueError(f"rate: got {self.rate:g}, wanted at most 1 for K-Means")
        else:
            self._check_defaults(("k", "share", "final_passes"), "it belongs to problem: kmeans")
            if self.mode == "paper" and self.scale != "none":
                raise ValueError(f"scale: got {self.scale!r}, wanted none with mode: paper")
        if self.batch == "inf":
            self._check_defaults(_OF_MESSAGES, "batch: inf sends no states")
        if self.mode == "batch":
            self._check_map_reduce()

    def _check_map_reduce(self) -> None:
        """Reject settings that synchronous rounds over all data would ignore."""
        if self.problem != "kmeans":
            raise ValueError(
                "mode: got 'batch', wanted problem: kmeans; linear: see algorithm batch_gradient"
            )
        self._check_defaults(("batch", *_OF_MESSAGES, "share"), "mode: batch sends no states")
        self._check_defaults(
            ("batch_start", "gamma", "queue_target", "window"), "mode: batch has no mini-batches"
        )
        self._check_defaults(("final_passes",), "mode: batch makes no other passes; see passes")
        self._check_defaults(("report_every",), "mode: batch reports its rounds")
        if self.passes is not None and not self.passes.is_integer():
            raise ValueError(
                f"passes: got {self.passes:g}, wanted a whole number: mode: batch makes whole "
                "passes"
            )

    def _check_defaults(self, keys: Sequence[str], why: str) -> None:
        for key in keys:
            default = type(self).model_fields[key].default
            value = getattr(self, key)
            if value != default:
                expected = "none" if default is None else f"{default}, the default"
                raise ValueError(f"{key}: got {shown(value)}, wanted {expected}: {why}")

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        values = {**self.model_dump(exclude_none=True), **self._own_link()}
        section = _section(self.name, values)
        if self.mode == "batch":
            # Synchronous rounds: two runs give the same bits.
            del section["report_every"]
        return section


class BatchGradient(_WithLoss, _Linear):
    """Train a linear model with a smooth loss and an L2 penalty by full gradients.

    The objective is ``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2``, with ``s`` the sample weight
    times the class weight.

    ``"lbfgs"`` is limited-memory BFGS. ``"tron"`` is a trust-region Newton method with exact
    Hessian-vector products: it needs few rounds, but several exchanges of messages in each.
    ``"newton"`` sums the Hessian in one exchange and solves with it, which pays for few columns.
    ``"gd"`` is gradient descent with a line search or a fixed ``step``. While workers are lost, an
    estimate (a stand-in) replaces their part of the gradient. With ``l2`` above 0 the gap is
    certified, from the gradient and the loss along the intercept.

    Source: Algorithms 1 and 2 of the resource-elastic paper, which are ``optimizer="gd"``.

    Examples
    --------
    >>> job = em.Job(em.BatchGradient(l2=1e-3, optimizer="lbfgs"), em.from_arrays(X, y), stop=stop)
    >>> bool(job.run(client).summary["objective"] < 0.6)
    True
    """

    name: ClassVar[str] = "batch_gradient"

    #: Loss of an example: a smooth one, by its name or the import path of your own.
    loss: SmoothLoss = "logistic"
    #: L2 penalty.
    l2: float = Field(default=1e-4, ge=0)
    #: "auto": what is fastest for this number of columns and classes; None: "lbfgs", for loss
    #: squared_hinge "tron", in ``mode="paper"`` "gd".
    optimizer: Literal["auto", "gd", "lbfgs", "tron", "newton"] | None = None
    #: Rule for the step length; other rules than a line search need optimizer "gd".
    step: Literal["line_search", "constant", "decay"] = "line_search"
    #: First step length of "constant" and "decay"; by default 1/L.
    step_size: float | None = Field(default=None, gt=0)
    #: How lost members' last partials are found: kept in the tree, or by a correction exchange.
    anchor: Literal["cached", "correction"] = "cached"
    #: Fit an unpenalised intercept; by default yes, in ``mode="paper"`` no.
    intercept: bool = True
    #: Weight of each label, or "balanced".
    class_weight: ClassWeight = None
    #: Stop when the gradient norm has fallen to this share of the first one; by default 1e-6, or
    #: 0 if ``stop.objective`` is given, and in ``mode="paper"``. 0: never.
    tolerance: float | None = Field(default=None, ge=0)
    #: "paper" follows the paper literally.
    mode: Literal["default", "paper"] = "default"
    #: Rounds of progress that a loss during a gradient exchange costs; by default 0, in mode
    #: "paper" 1.
    roll_back: Literal[0, 1, 2] | None = None
    #: Scaling of the columns; by default "auto", in ``mode="paper"`` "none".
    scale: Scale = "auto"
    #: The coefficients that ``l2`` penalises: those of the scaled columns, or those of the columns
    #: as they are, "raw". Scaling then does not change the problem, only how fast it is solved.
    penalise: Literal["scaled", "raw"] = "scaled"
    #: With ``penalise="raw"``, penalise the intercept, too, as the coefficient of a column of this
    #: value.
    intercept_scaling: float | None = Field(default=None, gt=0)
    #: Column that is added to every margin, by its name in a table or its number from 0: its
    #: coefficient is 1. As in generalised linear models; with a log link the log of the exposure.
    offset: Offset = None
    #: Loss huber: residuals up to this are squared, in units of the labels; by default 1.
    delta: float | None = Field(default=None, gt=0)
    #: Loss quantile: the quantile to predict, by default 0.5, the median.
    quantile: float | None = Field(default=None, gt=0, lt=1)
    #: Loss quantile: rounds the kink to a parabola between ``quantile - 1`` and ``quantile`` times
    #: this, in units of the labels.
    smoothing: float | None = Field(default=None, gt=0)
    #: Loss tweedie: the variance is proportional to the mean to this power.
    power: float | None = Field(default=None, ge=1, le=2)
    #: Set by ``linear``, whose problem these settings solve.
    engine_of: EngineOf = None

    def check(self) -> None:
        """Check constraints between fields."""
        self._check_loss(SMOOTH_LOSSES)
        if self.loss == "quantile" and self.smoothing is None:
            raise ValueError(
                "smoothing: is missing, wanted a width above 0: batch_gradient needs a smooth "
                "loss; algorithm cocoa has the quantile loss itself"
            )
        if self.intercept_scaling is not None and self.penalise != "raw":
            raise ValueError("intercept_scaling: wanted penalise: raw with it")
        if self.penalise == "raw" and self.step != "line_search":
            raise ValueError(f"penalise: raw goes with step: line_search, not {self.step}")
        needs_safe = self.step != "line_search" and self.step_size is None
        if needs_safe and not math.isfinite(self.terms.smoothness()):
            raise ValueError(f"step_size: is missing: loss: {self.loss} has no safe step")
        if self.chosen_optimizer != "gd" and self.step != "line_search":
            raise ValueError(
                f"step: {self.step} goes with optimizer: gd, not {self.chosen_optimizer}"
            )

    @property
    def chosen_optimizer(self) -> Literal["auto", "gd", "lbfgs", "tron", "newton"]:
        """The optimizer; by default gradient descent in mode "paper", else L-BFGS or TRON."""
        if self.optimizer is not None or self.mode == "paper":
            return self.optimizer or "gd"
        return "tron" if self.loss == "squared_hinge" and self.step == "line_search" else "lbfgs"

    @property
    def rounds_rolled_back(self) -> int:
        """Rounds of progress that a loss during a gradient exchange costs.

        0: keep w^r and use the survivors' gradient. 1, the default in mode "paper": line 16 of
        Algorithm 2 in its written order, first w^{r+1} <- w^r, then w^r <- w^{r-1}: round r is
        repeated. 2: w^{r+1} = w^{r-1}.
        """
        return int(self.mode == "paper") if self.roll_back is None else self.roll_back

    @property
    def certifies_gap(self) -> bool:
        """Whether jobs certify a gap: with a penalty and a line search.

        After other steps the objective is not known before the next round. In mode "paper" an
        intercept that is not penalised would take exchanges that the paper has not.
        """
        is_plain = self.mode == "paper" and self.has_free_intercept
        return self.l2 > 0.0 and self.step == "line_search" and not is_plain

    @property
    def has_free_intercept(self) -> bool:
        """Whether there is an intercept that is not penalised."""
        return self.intercept and self.intercept_scaling is None

    @property
    def gradient_share(self) -> float:
        """The share of the first gradient norm at which a job ends."""
        return RELATIVE_GRADIENT if self.tolerance is None else self.tolerance

    @property
    def gradient_reason(self) -> str:
        """Why a job ends whose gradient is small."""
        default = ", the default of algorithm.tolerance" if self.tolerance is None else ""
        return f"gradient norm <= {self.gradient_share:g} of the first{default}"

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        values = self.model_dump()
        for key in PARAMETERS.keys() - self.loss_parameters.keys():
            del values[key]
        for key in ("offset", "engine_of", "loss_options"):
            if values[key] is None:
                del values[key]
        if self.penalise == "scaled":
            del values["penalise"], values["intercept_scaling"]
        values |= {"optimizer": self.chosen_optimizer, **self._own_link()}
        return _section(self.name, values)


class CoCoA(_Seeded, _WithLoss, _Linear, _Certified):
    """Train a linear model with an L2 penalty by distributed dual coordinate ascent (CoCoA).

    CoCoA certifies its model: the duality gap ``P(w) - D(alpha)`` is an upper bound of the distance
    ``P(w) - min P`` of the objective from its minimum. The objective is that of
    :class:`BatchGradient`. An intercept is an extra column of value ``intercept_scaling``,
    penalised like the others. Each worker improves the dual variables of its own examples by
    coordinate ascent. The updates of all workers are added, scaled by an exact line search.

    Source: the elastic-CoCoA paper and the uni-task paper; ``mode="paper"`` is their aggregation,
    with ``sigma' = gamma K``.

    Examples
    --------
    >>> em.CoCoA(loss="logistic", l2=1e-3)
    CoCoA(loss='logistic', l2=0.001)
    """

    name: ClassVar[str] = "cocoa"

    #: Loss of an example, by its name or the import path of your own.
    loss: DualLoss = "hinge"
    #: L2 penalty.
    l2: float = Field(default=1e-4, gt=0)
    #: "paper" follows the papers literally.
    mode: Literal["default", "paper"] = "default"
    #: None: "line_search", in ``mode="paper"`` "fixed".
    aggregation: Literal["line_search", "fixed"] | None = None
    #: Aggregation factor: the share of the members' updates that is added, if it is fixed.
    gamma: float = Field(default=1.0, gt=0, le=1)
    #: Damping of the local subproblems; "auto": from the members' shares.
    sigma: Above0 | Literal["auto"] = "auto"
    #: Passes of a member over its examples per round; may be a fraction. By default 1; 8 for the
    #: squared hinge, whose dual variables have no upper bound, unless ``mode="paper"``. On CPUs,
    #: except in ``mode="paper"``, a round has less of them once its local problem is solved well
    #: enough.
    local_epochs: float | None = Field(default=None, gt=0)
    #: Rounds between two certificates; "auto": certificates take about a fifth of the work;
    #: "target": rarely, until ``tolerance`` is near.
    gap_every: Count | Literal["auto", "target"] = "auto"
    #: Fit an intercept, penalised as the coefficients are; by default yes, in ``mode="paper"`` no.
    intercept: bool = True
    #: Value of the intercept's column.
    intercept_scaling: float = Field(default=1.0, gt=0)
    #: Weight of each label, or "balanced".
    class_weight: ClassWeight = None
    #: Scaling of the columns; by default "auto", in ``mode="paper"`` "none".
    scale: Scale = "auto"
    #: Column that is added to every margin, by its name in a table or its number from 0: its
    #: coefficient is 1. As in generalised linear models; with a log link the log of the exposure.
    offset: Offset = None
    #: Loss huber: residuals up to this are squared, in units of the labels; by default 1.
    delta: float | None = Field(default=None, gt=0)
    #: Loss quantile: the quantile to predict, by default 0.5, the median.
    quantile: float | None = Field(default=None, gt=0, lt=1)
    #: Loss quantile: rounds the kink to a parabola between ``quantile - 1`` and ``quantile`` times
    #: this, in units of the labels; by default 0, the quantile loss itself.
    smoothing: float | None = Field(default=None, ge=0)
    #: Rows per bucket: they are visited consecutively, for cache locality.
    bucket: Count | Literal["auto"] = "auto"
    #: Shrinking: skip rows for a while that cannot change soon; None: unless ``mode="paper"``.
    shrink: bool | None = None
    #: Groups of a member. Each works on its own copy of the model with its share of the threads;
    #: the copies are merged after each pass. "auto": one per NUMA node, or per GPU.
    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)] | Literal["auto"] = "auto"
    #: Where members solve their local problems; "auto": large ones on a GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Skip chunks on disk for a while if their share of the gap is negligible; None: as above.
    skip: bool | None = None
    #: Stop when the certified gap is at most this; ``Stop(gap=...)`` does the same. By default 1e-4
    #: of the objective, or 0 if ``stop.gap`` or ``stop.objective`` is given, and in
    #: ``mode="paper"``. 0: never.
    tolerance: float | None = Field(default=None, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)
    #: Set by ``linear``, whose problem these settings solve.
    engine_of: EngineOf = None

    def check(self) -> None:
        """Check constraints between fields."""
        self._check_loss(DUAL_LOSSES)
        if self.mode == "paper" and self.aggregation == "line_search":
            raise ValueError("aggregation: mode: paper adds with a fixed gamma; use mode: default")
        lacking = "an offset" if self.offset is not None else "an own loss"
        if self.device == "cuda" and (self.offset is not None or self.has_own_loss):
            raise ValueError(f"device: cuda has no kernels for {lacking}; use device: cpu")

    @property
    def is_paper(self) -> bool:
        """Whether everything follows the papers."""
        return self.mode == "paper"

    @property
    def epochs(self) -> float:
        """Passes of a member over its examples per round.

        After one pass over unbounded dual variables the model is still far from balanced: from zero
        as after a loss, the squared hinge took four times the rounds of the hinge on a9a.
        """
        if self.local_epochs is not None:
            return self.local_epochs
        return 8.0 if self.loss == "squared_hinge" and not self.is_paper else 1.0

    @property
    def searches_line(self) -> bool:
        """Whether a line search scales the members' updates; default outside paper mode."""
        if self.aggregation is None:
            return not self.is_paper
        return self.aggregation == "line_search"

    @property
    def shrinks(self) -> bool:
        """Whether rows are skipped that cannot change soon; by default unless ``mode="paper"``."""
        return not self.is_paper if self.shrink is None else self.shrink

    @property
    def skips(self) -> bool:
        """Whether chunks with almost nothing of the gap are skipped; by default as above."""
        return not self.is_paper if self.skip is None else self.skip

    @property
    def given_sigma(self) -> float | None:
        """The damping; None for "auto", which follows from the members' shares."""
        return _number_or_none(self.sigma)

    @property
    def given_gap_every(self) -> int | Literal["target"] | None:
        """Rounds between certificates; None: by the time they take. The papers certify each."""
        if self.gap_every == "target":
            return "target"
        return _number_or_none(self.gap_every) or (1 if self.is_paper else None)

    @property
    def given_bucket(self) -> int | None:
        """Rows of a bucket; None for "auto", which follows from a member's chunks."""
        return _number_or_none(self.bucket)

    @property
    def given_groups(self) -> int | None:
        """Groups of a member; None for "auto", which follows from its machine."""
        return _number_or_none(self.groups)

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        values = self.model_dump(exclude_none=True)
        return _section(self.name, {**values, "local_epochs": self.epochs, **self._own_link()})


#: Settings of the built-in penalty that another one replaces.
_OF_L1 = ("l1", "positive")


class PrimalCoCoA(_Seeded, _WithLoss, _Certified):
    """Train a sparse linear model, such as the lasso, on data that are divided by columns.

    The objective is ``sum_i s_i loss_i / S + l1 |w|_1 + l2/2 |w|^2``, or the ``penalty`` of a user
    in the place of ``l1 |w|_1``, with margins ``w.x_i + b``,
    ``S = sum_i s_i``, s the sample weight times the class weight, and an unpenalised intercept b.
    By default the loss is ``(y_i - w.x_i - b)^2 / 2``: the lasso and the elastic net. Data are
    partitioned by columns: ``em.from_arrays(X, y, by="columns")``. Members improve the coefficients
    of their columns by coordinate descent with soft thresholding; the driver adds their updates,
    scaled by a line search.

    Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), CoCoA with the features as data. Any
    other loss is replaced by its quadratic model in every round.

    Examples
    --------
    >>> em.PrimalCoCoA(loss="squared", l1=0.1)
    PrimalCoCoA(l1=0.1)
    """

    name: ClassVar[str] = "primal_cocoa"

    #: Loss of an example, by its name or the import path of your own, which has no kink.
    loss: ColumnLoss = "squared"
    #: L1 penalty.
    l1: float = Field(default=1e-2, ge=0)
    #: L2 penalty.
    l2: float = Field(default=0.0, ge=0)
    #: Fit an unpenalised intercept.
    intercept: bool = True
    #: Nonnegative coefficients; squared loss only.
    positive: bool = False
    #: Penalty in the place of ``l1 |w|_1``: the import path of your own.
    penalty: OwnPenalty | None = None
    #: Parameters of a penalty of your own, by name; others have their defaults.
    penalty_options: dict[str, float] | None = None
    #: Weight of each label, or "balanced".
    class_weight: ClassWeight = None
    #: Passes of a member over its columns per round; may be a fraction.
    local_epochs: float = Field(default=1.0, gt=0)
    #: Rounds between two certificates; "auto": certificates take about a fifth of the work.
    gap_every: Count | Literal["auto"] = "auto"
    #: Always none: no member has whole rows.
    offset: Offset = None
    #: If the model is small, gather its columns on the driver and finish there.
    gather: bool = True
    #: Stop when the certified gap is at most this; ``Stop(gap=...)`` does the same. By default 1e-4
    #: of the objective, or 0 if ``stop.gap`` or ``stop.objective`` is given. 0: never.
    tolerance: float | None = Field(default=None, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def check(self) -> None:
        """Check constraints between fields."""
        self._check_loss(COLUMN_LOSSES)
        if not self.terms.is_smooth():
            raise ValueError(f"loss: {self.loss} has a kink, wanted a smooth one")
        self._check_penalty()
        if self.offset is not None:
            raise ValueError(
                "offset: got one, wanted none: no member has whole rows; for loss: squared fit the "
                "labels minus the offset, for others use algorithm cocoa or batch_gradient"
            )
        if self.positive and self.loss != "squared":
            raise ValueError(f"positive: needs loss: squared, not {self.loss}")

    def _check_penalty(self) -> None:
        if self.penalty is None:
            if self.penalty_options:
                raise ValueError("penalty_options: belongs to a penalty of your own; give penalty")
            if self.l1 == 0.0 and self.l2 == 0.0:
                raise ValueError("l1: got 0, wanted a penalty: l1 or l2 above 0")
            return
        if not _is_import_path(self.penalty):
            raise ValueError(
                f"penalty: got {shown(self.penalty)}, wanted the import path of your own, such as "
                "my_module:NAME; for the lasso and the elastic net set l1 and l2"
            )
        for key in _OF_L1:
            given = getattr(self, key)
            if given != type(self).model_fields[key].default:
                raise ValueError(
                    f"{key}: got {given}, wanted none with a penalty of your own, "
                    "which is in the place of L1; leave it out"
                )
        penalties.check(self.penalty_terms)

    @property
    def penalty_terms(self) -> Any:
        """The penalty of one coefficient, see :mod:`elasticml.objectives.penalties`."""
        if self.penalty is None:
            return penalties.Absolute(self.positive)
        return _own_record("penalty", self.penalty, self.penalty_options or {}, penalties.complete)

    @property
    def certifies_gap(self) -> bool:
        """Whether the penalty has a conjugate."""
        return penalties.has_conjugate(self.penalty_terms)

    @property
    def gathers(self) -> bool:
        """Whether columns may be gathered: the driver solves for built-in problems alone."""
        return self.gather and self.penalty is None and not self.has_own_loss

    @property
    def given_gap_every(self) -> int | None:
        """Rounds between certificates; None for "auto", which follows from the time they take."""
        return _number_or_none(self.gap_every)

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        idle = None if self.penalty is None else set(_OF_L1)
        values = self.model_dump(exclude_none=True, exclude=idle)
        return _section(self.name, {**values, **self._own_link()})


class LocalSGD(_Seeded):
    """Train a PyTorch network: every worker takes SGD steps, then the weights are averaged.

    One such step of all workers is a round. K workers together process ``K x batch x local_steps``
    examples in a round, each in proportion to its share of the examples. ``local_steps=1`` is
    mini-batch SGD. Every example is used exactly once in an epoch, also if workers join and leave.
    This needs PyTorch: ``pip install '.[torch]'`` in a clone of elasticml.

    Source: the uni-task paper, sections 2.2, 3 and 5.1; the defaults are its settings for
    Fashion-MNIST.

    Examples
    --------
    >>> em.LocalSGD(batch=32, local_steps=4)  # doctest: +SKIP
    LocalSGD(batch=32, local_steps=4)
    """

    name: ClassVar[str] = "local_sgd"

    #: "cnn" (the paper's), or a callable, or its import path, that creates a ``torch.nn.Module``.
    #: It receives ``shape`` and ``classes`` if it has parameters of these names.
    model: ImportPath = "cnn"
    #: Keyword arguments of the model's factory.
    model_options: dict[str, Any] = Field(default_factory=dict)
    #: Shape of one example as the module expects it, such as [3, 32, 32].
    shape: tuple[Count, ...] | None = None
    #: "cross_entropy", "mse", or a function of outputs and targets, or its import path.
    loss: ImportPath = "cross_entropy"
    #: Samples of a local step.
    batch: int = Field(default=8, ge=1)
    #: Local steps of a round.
    local_steps: int = Field(default=16, ge=1)
    #: Learning rate, before ``rate_rule`` is applied.
    learning_rate: float = Field(default=5e-4, gt=0)
    #: How the learning rate scales with the number K of members: by sqrt(K), by K, or not at all;
    #: "constant_global_batch" instead divides ``batch x local_steps`` samples among the members.
    rate_rule: RateRule = "sqrt"
    #: Momentum of the local steps.
    momentum: float = Field(default=0.9, ge=0, lt=1)
    #: L2 penalty of the weights in the local steps.
    weight_decay: float = Field(default=0.0, ge=0)
    #: Mean and standard deviation for normalizing inputs; "auto": those of the training data.
    normalize: Literal["auto", "none"] | tuple[float, Above0] = "auto"
    #: Share of the training data that is held out and evaluated on the members.
    holdout: float = Field(default=0.0, ge=0, lt=1)
    #: Rounds between two such evaluations; None: at the start of every epoch.
    holdout_every: int | None = Field(default=None, ge=1)
    #: Where members train; "auto": on a GPU if there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        require_torch(self)

    # A record is read without PyTorch too: by a report, or where only statistics are needed.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("model", "loss", mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        """Replace a callable by its import path."""
        return path_of(value) if callable(value) else value

    def check(self) -> None:
        """Check that functions are given by import paths."""
        for key, words in (("model", ("cnn",)), ("loss", ("cross_entropy", "mse"))):
            value = getattr(self, key)
            if value not in words and not _is_import_path(value):
                raise ValueError(
                    f"{key}: got {shown(value)}, wanted {' or '.join(words)}, or an import path "
                    "such as my_module:name"
                )

    @property
    def is_classification(self) -> bool:
        """Whether targets are class numbers."""
        return self.loss != "mse"

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        return _section(self.name, self.model_dump(mode="json", exclude_none=True))


class ImportedAlgorithm(SettingsModel):
    """A user-defined algorithm: the import path of its ``Algorithm``, and its settings.

    Examples
    --------
    >>> em.ImportedAlgorithm(name="examples.huber:HUBER", delta=1.0, step=0.5).name
    'examples.huber:HUBER'
    """

    model_config = ConfigDict(extra="allow")

    #: The import path of an ``Algorithm``, ``module:attribute``, or the object itself.
    name: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="module:attribute")

    @field_validator("name", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        """Replace an algorithm by a path that names it."""
        return path_of(value) if hasattr(value, "trainer") else value

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        return self.model_dump()


def has_torch() -> bool:
    """Return whether PyTorch is installed, without importing it, which takes seconds."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:  # sys.modules["torch"] is not a module
        return False


def require_torch(algorithm: SettingsModel) -> None:
    """Raise a ConfigError for local SGD without PyTorch."""
    if isinstance(algorithm, LocalSGD) and not has_torch():
        raise torch_missing()


def torch_missing(error: ImportError | None = None) -> ConfigError:
    """Return the error for a process without PyTorch."""
    detail = (
        "" if error is None or isinstance(error, ModuleNotFoundError) else f" ({one_line(error)})"
    )
    return ConfigError(
        f"algorithm.name is local_sgd, which needs PyTorch, and that is not installed here{detail}"
        f"; {how_to_install('torch')}, here, on every worker and on the scheduler"
    )


def _is_import_path(text: object) -> bool:
    module, colon, name = str(text).partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


N = TypeVar("N", int, float)


def _number_or_none(value: N | str) -> N | None:
    """Return a number, or None for "auto": a value that only a running job can determine."""
    return None if isinstance(value, str) else value


AnyAlgorithm = AsyncSGD | BatchGradient | CoCoA | LocalSGD | PrimalCoCoA | ImportedAlgorithm

#: The built-in algorithms by their names in job files.
ALGORITHMS: dict[
    str,
    type[AsyncSGD] | type[BatchGradient] | type[CoCoA] | type[LocalSGD] | type[PrimalCoCoA],
] = {
    AsyncSGD.name: AsyncSGD,
    BatchGradient.name: BatchGradient,
    CoCoA.name: CoCoA,
    LocalSGD.name: LocalSGD,
    PrimalCoCoA.name: PrimalCoCoA,
}
#: Algorithms that train locally on each member and need every example.
LOCAL_TRAINING = (CoCoA.name, PrimalCoCoA.name, LocalSGD.name, AsyncSGD.name)
#: Those of them that replicate and reshuffle chunks if memory permits.
DEALT_ANEW = (CoCoA.name, PrimalCoCoA.name)
#: Policies that set ``local_epochs``; used together, each would measure the other's changes.
LOCAL_WORK = ("tune_local_work", "inner_iterations")
#: The ``absent`` rules that each algorithm supports; those of a user-defined one are unknown.
_ABSENT: dict[str, tuple[str, ...]] = {
    AsyncSGD.name: ("auto", "reload", "ignore"),
    BatchGradient.name: ("auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload"),
    CoCoA.name: ("auto", "reload", "freeze", "stall"),
    LocalSGD.name: ("auto", "reload", "ignore", "stall"),
    PrimalCoCoA.name: ("auto", "reload", "freeze", "stall"),
}


#: What each rule does about the examples of lost members.
_RULES = {
    "reload": "others read them again",
    "taylor": "estimate them",
    "ignore": "leave them out meanwhile",
    "ignore_rescaled": "as ignore, with the others' sum scaled up",
    "freeze": "go on with their variables as they were, under an upper bound of the gap",
    "stall": "wait",
}


def absent_rule(algorithm: str, absent: object) -> str:
    """Check a job's ``absent`` rule against its algorithm, and resolve "auto".

    Raises
    ------
    ConfigError
        When the rule does not exist, or the algorithm does not support it.
    """
    if absent not in get_args(Absent):
        raise unknown_choice(absent, get_args(Absent), "absent")
    supported = _ABSENT.get(algorithm)
    if supported is not None and absent not in supported:
        able = [name for name, rules in _ABSENT.items() if absent in rules]
        raise ConfigError(
            f"absent: got {shown(absent)}, which algorithm {algorithm} cannot follow, but "
            f"{', '.join(able)}; use {' or '.join(f'{r} ({_RULES[r]})' for r in supported[1:])}"
        )
    return resolve_absent(str(absent), algorithm)


def resolve_absent(absent: str, algorithm: str) -> str:
    """Resolve "auto": algorithms that train locally need every example and read it again.

    It stays "auto" for batch gradients: there it is a rule of its own, stand-ins with curvature.
    """
    return "reload" if absent == "auto" and algorithm in LOCAL_TRAINING else absent


def resolve_placement(
    placement: str | None, algorithm: str, *, lies_on_workers: bool = False
) -> Literal["contiguous", "random", "readers"]:
    """Resolve "auto" and None: chunks in file order are the worst case for local training.

    Data that lie on workers already stay there: "readers".
    """
    if placement in ("contiguous", "random", "readers"):
        return placement  # type: ignore[return-value]
    if lies_on_workers:
        return "readers"
    return "random" if algorithm in LOCAL_TRAINING else "contiguous"


A = TypeVar("A", bound=SettingsModel)
#: Keys of a record's section that other settings of the job determine.
_OF_THE_JOB = ("name", "warm_start", "epochs", "link")


def settings_from_section(kind: type[A], section: Mapping[str, Any]) -> A:
    """Read an algorithm's settings from the ``algorithm`` section of a job record.

    A record that lacks a tolerance has none, and one that lacks ``intercept`` or ``scale`` fits no
    intercept or scales nothing, as records did when these were the defaults.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of range.
    """
    own = {key: value for key, value in section.items() if key not in _OF_THE_JOB}
    if "tolerance" in kind.model_fields:
        own.setdefault("tolerance", 0.0)
    if issubclass(kind, _Linear):
        own = {"intercept": False, "scale": "none", **own}
    return read_settings(kind, own, "algorithm")


def record_section(
    algorithm: AnyAlgorithm,
    seed: int,
    *,
    epochs: int | None = None,
    has_target: bool = False,
    warm_start: Any | None = None,
) -> dict[str, Any]:
    """Return the ``algorithm`` section of a job record, with the job's seed, epochs and model.

    A default tolerance is 0 if the job has a target of its own, and in mode "paper".
    """
    section = algorithm.section()
    if ends_itself(algorithm) and section.get("tolerance") is None:
        has_default = not has_target and section.get("mode") != "paper"
        section["tolerance"] = None if has_default else 0.0
    if isinstance(algorithm, AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA):
        section.setdefault("seed", seed)
    if isinstance(algorithm, LocalSGD) and epochs is not None:
        section["epochs"] = epochs
    if isinstance(algorithm, AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA) and warm_start is not None:
        section["warm_start"] = warm_start
    return section


def certifies_gap(algorithm: AnyAlgorithm) -> bool:
    """Whether the algorithm certifies a duality gap; a user-defined one may."""
    if isinstance(algorithm, BatchGradient | PrimalCoCoA):
        return algorithm.certifies_gap
    return not isinstance(algorithm, AsyncSGD | LocalSGD)


def ends_itself(algorithm: AnyAlgorithm) -> bool:
    """Whether jobs of an algorithm end when their model is good enough."""
    return isinstance(algorithm, BatchGradient | CoCoA | PrimalCoCoA)


def has_tolerance(section: Mapping[str, Any]) -> bool:
    """Whether a job with this ``algorithm`` section of its record ends at a tolerance above 0."""
    names = (BatchGradient.name, CoCoA.name, PrimalCoCoA.name)
    return section.get("name") in names and section.get("tolerance", 0.0) != 0.0


def is_deterministic(algorithm: AnyAlgorithm) -> bool:
    """Whether two runs give the same bits; false for asynchronous algorithms."""
    return algorithm.section().get("report_every") is None


def _section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    section = {"name": name, **values}
    if isinstance(values.get("class_weight"), dict):
        # JSON keys are strings.
        section["class_weight"] = {str(k): v for k, v in values["class_weight"].items()}
    return section


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
    def _refuse_penalties(cls, values: Any) -> Any:
        remedies = {"l1": "em.Lasso or em.ElasticNet on arrays, or ", "penalty": ""}
        given = [k for k in remedies if isinstance(values, Mapping) and k in values]
        if given:
            raise ConfigError(
                f"linear: got {given[0]}, wanted an L2 penalty alone; use {remedies[given[0]]}"
                "algorithm primal_cocoa (em.PrimalCoCoA) on data by columns"
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
