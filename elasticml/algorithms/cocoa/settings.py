"""What a job says of CoCoA, checked once and typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.checks import check_keys, number, read_class_weight, wrong
from elasticml.algorithms.targets import ClassWeight
from elasticml.errors import ConfigError
from elasticml.objectives.conjugates import DualLoss, dual_loss_named

F64 = NDArray[np.float64]
Absent = Literal["reload", "stall", "freeze"]

#: Groups of a member at most: more than machines have NUMA nodes or GPUs.
GROUPS_MAX: Final = 64
LOSSES: Final = ("hinge", "squared_hinge", "logistic", "squared")
#: Rules that other algorithms have for absent examples, and CoCoA has not.
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
class Settings:
    """Settings of ``cocoa``, in units of the mean-form objective."""

    loss: DualLoss
    l2: float = 1e-4
    #: "paper": adding with a fixed gamma, sigma' = gamma K, a gap in every round.
    mode: Literal["default", "paper"] = "default"
    aggregation: Literal["line_search", "fixed"] = "line_search"
    #: Share of the members' steps that is taken where it is fixed, in (0, 1].
    gamma: float = 1.0
    #: The subproblems' sigma'; None: from the members' shares (default), or gamma K (paper).
    sigma: float | None = None
    #: Passes of a member over its examples in a round; may be a fraction.
    local_epochs: float = 1.0
    #: Rounds from one certificate to the next; None: about a fifth of the work goes into them;
    #: "target": seldom, until ``tolerance`` is near.
    gap_every: int | Literal["target"] | None = None
    intercept: bool = False
    #: Value of the intercept's own column, which is penalised like the others.
    intercept_scaling: float = 1.0
    class_weight: ClassWeight = None
    scale: Literal["none", "maxabs", "standard"] = "none"
    #: Rows that are visited one after another; None: as the solver chooses.
    bucket: int | None = None
    #: Leave rows out for a while that cannot change soon: less work, hardly another round.
    shrink: bool = True
    #: Groups of a member, each with a model of its own; None: its NUMA nodes, or its GPUs.
    groups: int | None = None
    #: Where members solve their local problems; "auto": large ones on CUDA where there is it.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Leave chunks on a disk out for a while that hold next to nothing of the gap: less reading.
    skip: bool = True
    #: Stop when the certified gap is at most this.
    tolerance: float = 0.0
    seed: int = 0
    #: Model to start from, as a job's result has it: ``coef`` and ``intercept``.
    warm_start: Mapping[str, F64] = field(default_factory=dict)

    @property
    def loss_name(self) -> str:
        """The loss as a job names it."""
        return self.loss.name

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        return self.loss.loss.is_classification

    @property
    def is_paper(self) -> bool:
        """Whether everything is as the papers have it."""
        return self.mode == "paper"


def read_settings(raw: Mapping[str, Any]) -> Settings:
    """Check the ``algorithm`` section of a job.

    Parameters
    ----------
    raw : mapping
        As in a job record; a ``name`` is allowed, ``l1`` where it is 0, and "auto" wherever a
        setting chooses by itself.

    Raises
    ------
    ConfigError
        When a key is unknown or a value out of range.
    """
    known = {entry.name for entry in fields(Settings)} | {"name", "l1"}
    check_keys("cocoa", raw, known, _CHOICES)
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
    return Settings(**values)


def _plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings that are numbers, words and switches."""
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
        When there is no such rule, or when it is one that a certified gap leaves no room for.
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
        When it is none.
    """
    found = number(key, value)
    if found == 0.0:
        raise wrong(key, value, "a number above 0")
    return found


def whole(key: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number of at least ``least``, and of at most ``most`` where there is one.

    Raises
    ------
    ConfigError
        When it is none.
    """
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= (value if most is None else most):
        raise wrong(key, value, f"a whole number {wanted}, or auto")
    return int(value)


def read_warm_start(raw: Any) -> Mapping[str, F64]:
    """Return the arrays of a linear model to start from.

    Raises
    ------
    ConfigError
        When it is none.
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
