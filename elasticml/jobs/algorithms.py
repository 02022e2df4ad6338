"""The algorithms by their settings, and what else of a job each of them can do with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, field_validator

from elasticml.algorithms.batch_gradient.settings import chosen_optimizer
from elasticml.algorithms.cocoa.settings import GROUPS_MAX
from elasticml.algorithms.local_sgd.library import has_torch, torch_missing
from elasticml.algorithms.local_sgd.settings import read_settings as read_local_sgd
from elasticml.errors import ConfigError
from elasticml.jobs.async_sgd import AsyncSGD as AsyncSGD
from elasticml.jobs.schema import Settings, unknown_choice

Scale = Literal["none", "maxabs", "standard"]
ClassWeight = dict[float, float] | Literal["balanced"] | None
Absent = Literal["auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload", "freeze"]
Above0 = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class BatchGradient(Settings):
    """Batch training on a smooth loss with an L2 penalty, elastic by stand-ins.

    The objective is ``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2``, with ``s`` the sample weight
    times the class weight.

    Every optimizer works on full gradients: ``"lbfgs"`` with the curvature that it has met,
    ``"tron"`` with exact products by the Hessian (fewest rounds, each of several exchanges),
    ``"gd"`` along the gradient, by a line search or a fixed ``step``.

    Source: Algorithms 1 and 2 of the resource-elastic paper, which are ``optimizer="gd"``.
    """

    name: ClassVar[str] = "batch_gradient"

    loss: Literal["logistic", "squared", "squared_hinge", "smoothed_hinge"] = "logistic"
    l2: float = Field(default=1e-4, ge=0)
    #: None: "lbfgs", in ``mode="paper"`` "gd".
    optimizer: Literal["gd", "lbfgs", "tron"] | None = None
    step: Literal["line_search", "constant", "decay"] = "line_search"
    step_size: float | None = Field(default=None, gt=0)
    anchor: Literal["cached", "correction"] = "cached"
    intercept: bool = False
    class_weight: ClassWeight = None
    tolerance: float = Field(default=0.0, ge=0)
    mode: Literal["default", "paper"] = "default"
    roll_back: Literal[0, 1, 2] | None = None
    scale: Scale = "none"

    def check(self) -> None:
        """Check what several fields must agree on."""
        _check_class_weight(self.class_weight, self.loss)
        optimizer = chosen_optimizer(self.optimizer, self.mode)
        if optimizer != "gd" and self.step != "line_search":
            raise ValueError(f"step: {self.step} goes with optimizer: gd, not {optimizer}")

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        optimizer = chosen_optimizer(self.optimizer, self.mode)
        return _section(self.name, {**self.model_dump(), "optimizer": optimizer})


class CoCoA(Settings):
    """Communication-efficient dual coordinate ascent: every round ends with a certified gap.

    The objective is that of :class:`BatchGradient`; an intercept is a column of its own, of value
    ``intercept_scaling``, and penalised like the others. Members solve their share of the dual by
    coordinate ascent; the driver adds their steps, as far as an exact line search goes. The duality
    gap ``P(w) - D(alpha)`` is never below ``P(w) - min P``: it proves how good the model is.

    Source: the elastic-CoCoA paper and the uni-task paper; ``mode="paper"`` is their aggregation,
    with ``sigma' = gamma K``.
    """

    name: ClassVar[str] = "cocoa"

    loss: Literal["hinge", "squared_hinge", "logistic", "squared"] = "hinge"
    l2: float = Field(default=1e-4, gt=0)
    mode: Literal["default", "paper"] = "default"
    #: None: a line search by default, fixed in ``mode="paper"``.
    aggregation: Literal["line_search", "fixed"] | None = None
    #: Share of the members' steps that is taken where it is fixed.
    gamma: float = Field(default=1.0, gt=0, le=1)
    sigma: Above0 | Literal["auto"] = "auto"
    #: Passes of a member over its examples in a round; may be a fraction.
    local_epochs: float = Field(default=1.0, gt=0)
    #: Rounds from one certificate to the next; "auto": about a fifth of the work goes into them;
    #: "target": seldom, until ``tolerance`` is near.
    gap_every: Count | Literal["auto", "target"] = "auto"
    intercept: bool = False
    intercept_scaling: float = Field(default=1.0, gt=0)
    class_weight: ClassWeight = None
    scale: Scale = "none"
    #: Rows that are visited one after another, for the processor's cache.
    bucket: Count | Literal["auto"] = "auto"
    #: Leave rows out for a while that cannot change soon; None: unless ``mode="paper"``.
    shrink: bool | None = None
    #: Groups of a member, each of which works on a model of its own with its share of the threads,
    #: and brings it together with the others' after each pass; "auto": its NUMA nodes, or its GPUs.
    groups: Annotated[int, Field(ge=1, le=GROUPS_MAX)] | Literal["auto"] = "auto"
    #: Where members solve their local problems; "auto": large ones on a GPU where there is one.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Leave chunks on a disk out for a while that hold next to nothing of the gap; None: as above.
    skip: bool | None = None
    #: Stop when the certified gap is at most this; ``Stop(gap=...)`` does the same.
    tolerance: float = Field(default=0.0, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def check(self) -> None:
        """Check what several fields must agree on."""
        _check_class_weight(self.class_weight, self.loss)
        if self.mode == "paper" and self.aggregation == "line_search":
            raise ValueError("aggregation: mode: paper adds with a fixed gamma; use mode: default")

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        return _section(self.name, self.model_dump(exclude_none=True))


class PrimalCoCoA(Settings):
    """Sparse linear models on members that own columns, with a certified gap.

    The objective is ``sum_i s_i loss_i / S + l1 |w|_1 + l2/2 |w|^2`` with margins ``w.x_i + b``,
    ``S = sum_i s_i``, s the sample weight times the class weight, and a free intercept b. By
    default the loss is ``(y_i - w.x_i - b)^2 / 2``: the lasso and the elastic net. Data are by
    columns: ``em.from_arrays(X, y, by="columns")``. Members solve their share by coordinate descent
    with exact soft thresholds; the driver adds their steps, as far as a line search goes. Columns
    that gap-safe spheres rule out are left out.

    Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), CoCoA with the features as data; with
    a loss of two classes its parabola takes its place in every round.
    """

    name: ClassVar[str] = "primal_cocoa"

    loss: Literal["squared", "logistic", "squared_hinge"] = "squared"
    l1: float = Field(default=1e-2, ge=0)
    l2: float = Field(default=0.0, ge=0)
    intercept: bool = True
    #: Coefficients must not be negative; with the squared loss.
    positive: bool = False
    class_weight: ClassWeight = None
    #: Passes of a member over its columns in a round; may be a fraction.
    local_epochs: float = Field(default=1.0, gt=0)
    #: Rounds from one certificate to the next; "auto": about a fifth of the work goes into them.
    gap_every: Count | Literal["auto"] = "auto"
    #: Leave columns out that are in no solution.
    screen: bool = True
    #: Have the driver gather the columns of a small model from several members, and finish there.
    gather: bool = True
    #: Stop when the certified gap is at most this; ``Stop(gap=...)`` does the same.
    tolerance: float = Field(default=0.0, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def check(self) -> None:
        """Check what several fields must agree on."""
        if self.l1 == 0.0 and self.l2 == 0.0:
            raise ValueError("l1: got 0, wanted a penalty: l1 or l2 above 0")
        if self.positive and self.loss != "squared":
            raise ValueError(f"positive: goes with loss: squared, not {self.loss}")
        _check_class_weight(self.class_weight, self.loss)

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        return _section(self.name, self.model_dump(exclude_none=True))


class LocalSGD(Settings):
    """Local SGD for networks: every round, members take some steps each and the mean is kept.

    All K members together take ``K x batch x local_steps`` samples a round, each by the share of
    the examples that it has; ``local_steps=1`` is mini-batch SGD. Every example is seen once an
    epoch, whichever members come and go. Needs PyTorch: ``pip install 'elasticml[torch]'``.

    Source: the uni-task paper, sections 2.2, 3 and 5.1; the defaults are its settings for
    Fashion-MNIST.
    """

    name: ClassVar[str] = "local_sgd"

    #: "cnn" (the paper's), or a callable that makes a ``torch.nn.Module``: itself, or its import
    #: path. It is given ``shape`` and ``classes`` where it has parameters of these names.
    model: str | Callable[..., Any] = "cnn"
    model_options: dict[str, Any] = Field(default_factory=dict)
    #: Of one example, as the module takes it, such as [3, 32, 32].
    shape: tuple[Count, ...] | None = None
    #: "cross_entropy", "mse", or a function of outputs and targets, or its import path.
    loss: str | Callable[..., Any] = "cross_entropy"
    batch: int = Field(default=8, ge=1)
    local_steps: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=5e-4, gt=0)
    #: How the rate follows the K members that there are: times the root of K, times K, or not at
    #: all; "constant_global_batch" shares ``batch x local_steps`` samples out among them.
    rate_rule: Literal["sqrt", "linear", "constant", "constant_global_batch"] = "sqrt"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    #: What inputs are shifted by and divided by; "auto": the training data's mean and deviation.
    normalize: Literal["auto", "none"] | tuple[float, Above0] = "auto"
    #: Share of the training data that is kept out, and evaluated on the members.
    holdout: float = Field(default=0.0, ge=0, lt=1)
    #: Rounds from one such evaluation to the next; None: at the beginning of every epoch.
    holdout_every: int | None = Field(default=None, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    @field_validator("model", "loss", mode="before")
    @classmethod
    def _name(cls, value: Any) -> Any:
        """Write a callable as its import path."""
        return import_path(value) if callable(value) else value

    def check(self) -> None:
        """Check that PyTorch is there, and what the algorithm itself checks."""
        if not has_torch():
            raise torch_missing()
        read_local_sgd(self.section())

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        return _section(self.name, self.model_dump(mode="json", exclude_none=True))


class ImportedAlgorithm(Settings):
    """An algorithm of the user's own, by the import path of its ``Algorithm``, and its settings."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="module:attribute")

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        return self.model_dump()


AnyAlgorithm = AsyncSGD | BatchGradient | CoCoA | LocalSGD | PrimalCoCoA | ImportedAlgorithm

#: The algorithms of this release by the name that a job file gives them.
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
#: What may stand in for absent examples, by algorithm; of one's own algorithm nothing is known.
_ABSENT: dict[str, tuple[str, ...]] = {
    AsyncSGD.name: ("auto", "reload", "ignore"),
    BatchGradient.name: ("auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload"),
    CoCoA.name: ("auto", "reload", "freeze", "stall"),
    LocalSGD.name: ("auto", "reload", "ignore", "stall"),
    PrimalCoCoA.name: ("auto", "reload", "freeze", "stall"),
}


def absent_rule(algorithm: AnyAlgorithm, absent: object) -> str:
    """Check a job's ``absent`` against its algorithm, and say what "auto" stands for.

    Raises
    ------
    ConfigError
        When there is no such rule, or the algorithm cannot follow it.
    """
    if absent not in get_args(Absent):
        raise unknown_choice(absent, get_args(Absent), "absent")
    known = _ABSENT.get(algorithm.name)
    if known is not None and absent not in known:
        raise ConfigError(
            f"absent: got {absent!r}, which algorithm {algorithm.name} cannot follow; use "
            f"{_REMEDIES[algorithm.name]}",
            path="absent",
        )
    reloads = absent == "auto" and not isinstance(algorithm, BatchGradient | ImportedAlgorithm)
    return "reload" if reloads else str(absent)


_REMEDIES = {
    AsyncSGD.name: "reload (others read them) or ignore (leave them until members come)",
    BatchGradient.name: "taylor (estimate them), ignore, reload (read them again elsewhere) or "
    "stall (wait)",
    CoCoA.name: "reload (read them again elsewhere), freeze (go on without them, under an upper "
    "bound of the gap) or stall (wait)",
    LocalSGD.name: "reload (read them again elsewhere), ignore (leave them out meanwhile) or stall "
    "(wait)",
    PrimalCoCoA.name: "reload (read them again elsewhere), freeze (go on with their coefficients "
    "as they were) or stall (wait)",
}


def record_section(
    algorithm: AnyAlgorithm, seed: int, epochs: int | None, warm_start: Any | None
) -> dict[str, Any]:
    """Write the ``algorithm`` section of a job record, with what the job says elsewhere of it."""
    section = algorithm.section()
    if isinstance(algorithm, AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA):
        section.setdefault("seed", seed)
    if isinstance(algorithm, LocalSGD) and epochs is not None:
        section["epochs"] = epochs
    if isinstance(algorithm, AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA) and warm_start is not None:
        section["warm_start"] = warm_start
    return section


def certifies_gap(algorithm: AnyAlgorithm) -> bool:
    """Whether the algorithm certifies a duality gap, or may, where it is one's own."""
    return not isinstance(algorithm, AsyncSGD | BatchGradient | LocalSGD)


def is_deterministic(algorithm: AnyAlgorithm) -> bool:
    """Whether two runs give the same bits: not where members do not wait for each other."""
    return algorithm.section().get("report_every") is None


def import_path(found: Any) -> str:
    """Name a callable by where it is defined.

    Raises
    ------
    ValueError
        When workers could not import it from there.
    """
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        raise ValueError(
            f"{name or found!r} is not defined at the top of a module that workers can import; put "
            "it there, or give its import path as module:name"
        )
    return f"{module}:{name}"


def _check_class_weight(class_weight: ClassWeight, loss: str) -> None:
    if isinstance(class_weight, dict) and min(class_weight.values(), default=1) <= 0:
        raise ValueError("class_weight: every weight must be more than 0")
    if class_weight is not None and loss == "squared":
        raise ValueError("class_weight: loss: squared has no classes; weigh the samples")


def _section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    section = {"name": name, **values}
    if isinstance(values.get("class_weight"), dict):
        # JSON has no numbers as keys.
        section["class_weight"] = {str(k): v for k, v in values["class_weight"].items()}
    return section
