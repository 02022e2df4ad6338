"""The settings of CoCoA, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.settings_checks import check_keys, number, read_class_weight, wrong
from elasticml.algorithms.targets import ClassWeight
from elasticml.errors import ConfigError
from elasticml.objectives.conjugates import DualLoss, dual_loss_named

F64 = NDArray[np.float64]
Absent = Literal["reload", "stall", "freeze"]

#: Maximum groups of a member: more than machines have NUMA nodes or GPUs.
GROUPS_MAX: Final = 64
LOSSES: Final = ("hinge", "squared_hinge", "logistic", "squared")
#: Rules of other algorithms for absent examples that CoCoA does not have.
_FOREIGN: Final = ("taylor", "ignore", "ignore_rescaled")
_ABSENT: Final = ("auto", "reload", "stall", "freeze")
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "mode": ("default", "paper"),
    "aggregation": (None, "line_search", "fixed"),
    "intercept": (False, True),
    "scale": ("none", "maxabs", "standard"),
    "shrink": (None, False, True),
    "device": ("auto", "cpu", "cuda"),
    "skip": (None, False, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CocoaSettings:
    """The ``algorithm`` section of a ``cocoa`` job, in units of the mean-form objective."""

    loss: DualLoss
    l2: float = 1e-4
    #: "paper": adding with a fixed gamma, sigma' = gamma K, and a gap in every round.
    mode: Literal["default", "paper"] = "default"
    aggregation: Literal["line_search", "fixed"] = "line_search"
    #: Fixed share of the members' steps that is taken, in (0, 1].
    gamma: float = 1.0
    #: The subproblems' sigma'; None: from the members' shares (default), or gamma K (paper).
    sigma: float | None = None
    #: Passes of a member over its examples in a round; may be a fraction.
    local_epochs: float = 1.0
    #: Rounds from one certificate to the next; None: about a fifth of the work goes into
    #: certificates; "target": seldom, until ``tolerance`` is near.
    gap_every: int | Literal["target"] | None = None
    intercept: bool = False
    #: Value of the intercept's column, which is penalised like the others.
    intercept_scaling: float = 1.0
    class_weight: ClassWeight = None
    scale: Literal["none", "maxabs", "standard"] = "none"
    #: Consecutive rows visited together; None: chosen by the solver.
    bucket: int | None = None
    #: Skip rows for a while that cannot change soon: less work, at most a few more rounds.
    shrink: bool = True
    #: Groups of a member, each with a replica of the model; None: its NUMA nodes, or its GPUs.
    groups: int | None = None
    #: Where members solve their local problems; "auto": large ones on CUDA where available.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Skip chunks on a disk for a while that hold almost nothing of the gap: less reading.
    skip: bool = True
    #: Stop when the certified gap is at most this.
    tolerance: float = 0.0
    seed: int = 0
    #: Model to start from, as in a job's result: ``coef`` and ``intercept``.
    warm_start: Mapping[str, F64] = field(default_factory=dict)

    @property
    def loss_name(self) -> str:
        """Name of the loss in a job."""
        return self.loss.name

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        return self.loss.loss.is_classification

    @property
    def is_paper(self) -> bool:
        """Whether everything follows the papers."""
        return self.mode == "paper"


def read_settings(raw: Mapping[str, Any]) -> CocoaSettings:
    """Check the ``algorithm`` section of a job.

    Parameters
    ----------
    raw : mapping
        As in a job record. A ``name`` is allowed, ``l1`` if it is 0, and "auto" for settings that
        have a default choice.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of range.
    """
    keys = {entry.name for entry in fields(CocoaSettings)} | {"name", "l1"}
    check_keys("cocoa", raw, keys, _CHOICES)
    if number("l1", raw.get("l1", 0.0)) != 0.0:
        raise wrong("l1", raw["l1"], "0: this solver needs a strongly convex penalty; use l2")
    if raw.get("loss", "hinge") not in LOSSES:
        raise wrong("loss", raw["loss"], "one of " + ", ".join(LOSSES))
    values = _plain(raw)
    values["loss"] = loss = dual_loss_named(raw.get("loss", "hinge"))
    values["class_weight"] = weight = read_class_weight(raw.get("class_weight"))
    if weight is not None and not loss.loss.is_classification:
        raise wrong("class_weight", raw["class_weight"], f"none with loss: {loss.name}")
    if raw.get("aggregation") is None:
        values["aggregation"] = "fixed" if raw.get("mode") == "paper" else "line_search"
    elif raw["aggregation"] == "line_search" and raw.get("mode") == "paper":
        raise wrong("aggregation", "line_search", "fixed with mode: paper, or mode: default")
    for key in ("shrink", "skip"):
        values.setdefault(key, raw.get("mode") != "paper")
    if raw.get("warm_start") is not None:
        values["warm_start"] = read_warm_start(raw["warm_start"])
    return CocoaSettings(**values)


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings that are numbers, words or flags."""
    values = {
        key: raw[key]
        for key in ("mode", "aggregation", "intercept", "scale", "shrink", "device", "skip")
        if raw.get(key) is not None
    }
    for key in ("l2", "gamma", "local_epochs", "intercept_scaling"):
        if key in raw:
            values[key] = positive(key, raw[key])
    if values.get("gamma", 1.0) > 1.0:
        raise wrong("gamma", raw["gamma"], "a number above 0 and at most 1")
    if "tolerance" in raw:
        values["tolerance"] = number("tolerance", raw["tolerance"])
    if raw.get("sigma", "auto") not in (None, "auto"):
        values["sigma"] = positive("sigma", raw["sigma"])
    for key in ("gap_every", "bucket", "groups"):
        if key == "gap_every" and raw.get(key) == "target":
            values[key] = "target"
        elif raw.get(key, "auto") not in (None, "auto"):
            values[key] = whole(key, raw[key], 1, GROUPS_MAX if key == "groups" else None)
    if "seed" in raw:
        values["seed"] = whole("seed", raw["seed"], 0)
    return values


def read_absent(absent: str, algorithm: str = "cocoa") -> Absent:
    """Return the rule for absent chunks; "auto" is "reload".

    Raises
    ------
    ConfigError
        When the rule does not exist, or is incompatible with a certified gap.
    """
    if absent in _FOREIGN:
        raise ConfigError(
            f"absent is {absent!r}, which algorithm {algorithm} cannot follow: it certifies a gap "
            "over all chunks; wanted reload (read them again elsewhere), freeze (go on without "
            "them) or stall",
            key="absent",
        )
    if absent not in _ABSENT:
        raise ConfigError(f"absent is {absent!r}, wanted one of {', '.join(_ABSENT)}", key="absent")
    return "reload" if absent == "auto" else absent  # type: ignore[return-value]


def positive(key: str, value: Any) -> float:
    """Return a finite number above 0.

    Raises
    ------
    ConfigError
        When it is not.
    """
    result = number(key, value)
    if result == 0.0:
        raise wrong(key, value, "a number above 0")
    return result


def whole(key: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an integer of at least ``least`` and, if given, at most ``most``.

    Raises
    ------
    ConfigError
        When it is not.
    """
    limits = f"of at least {least}" if most is None else f"from {least} to {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= (value if most is None else most):
        raise wrong(key, value, f"a whole number {limits}, or auto")
    return int(value)


def read_warm_start(raw: Any) -> Mapping[str, F64]:
    """Return the arrays of the linear model to start from.

    Raises
    ------
    ConfigError
        When ``raw`` is not such a model.
    """
    if not isinstance(raw, Mapping) or not {"coef"} <= set(raw) <= {"coef", "intercept"}:
        raise wrong("warm_start", raw, "a mapping with coef and intercept, as a result's model")
    arrays = {}
    for name, values in raw.items():
        if not isinstance(values, Sequence | np.ndarray):
            raise wrong("warm_start", raw, f"numbers as {name}")
        arrays[name] = np.asarray(values, np.float64).reshape(-1)
        if not np.all(np.isfinite(arrays[name])):
            raise wrong(f"warm_start.{name}", "not finite", "finite numbers")
    return arrays
