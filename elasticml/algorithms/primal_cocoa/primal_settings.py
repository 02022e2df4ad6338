"""The settings of primal CoCoA, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.cocoa_settings import positive, read_warm_start, whole
from elasticml.algorithms.settings_checks import check_keys, number, read_class_weight, wrong
from elasticml.algorithms.targets import ClassWeight
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError
from elasticml.objectives.conjugates import DualLoss, dual_loss_named

F64 = NDArray[np.float64]
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "loss": ("squared", "logistic", "squared_hinge"),
    "intercept": (False, True),
    "positive": (False, True),
    "screen": (False, True),
    "gather": (False, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimalCocoaSettings:
    """The ``algorithm`` section of a ``primal_cocoa`` job, in units of the mean-form objective."""

    loss: DualLoss = field(default_factory=lambda: dual_loss_named("squared"))
    l1: float = 1e-2
    l2: float = 0.0
    #: Fit a free intercept: columns and targets are centred by their weighted means.
    intercept: bool = True
    #: Coefficients must be nonnegative.
    positive: bool = False
    class_weight: ClassWeight = None
    #: Passes of a member over its columns in a round; may be a fraction.
    local_epochs: float = 1.0
    #: Rounds from one certificate to the next; None: about a fifth of the work goes into them.
    gap_every: int | None = None
    #: Screen columns: leave those out for good that gap-safe spheres exclude from every solution.
    screen: bool = True
    #: Gather the columns of a small model from several members at the driver, and finish there.
    gather: bool = True
    #: Stop when the certified gap is at most this.
    tolerance: float = 0.0
    seed: int = 0
    #: Model to start from, as in a job's result: ``coef``, and ``intercept``, which is ignored, as
    #: a free intercept follows from ``coef``.
    warm_start: Mapping[str, F64] = field(default_factory=dict)


def read_settings(raw: Mapping[str, Any]) -> PrimalCocoaSettings:
    """Check the ``algorithm`` section of a job.

    Parameters
    ----------
    raw : mapping
        As in a job record; a ``name``, and "auto" for ``gap_every``, are allowed.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of range.
    """
    known = {entry.name for entry in fields(PrimalCocoaSettings)} | {"name"}
    check_keys("primal_cocoa", raw, known, _CHOICES)
    values: dict[str, Any] = {
        key: raw[key] for key in ("intercept", "positive", "screen", "gather") if key in raw
    }
    for key in ("l1", "l2", "tolerance"):
        if key in raw:
            values[key] = number(key, raw[key])
    if "local_epochs" in raw:
        values["local_epochs"] = positive("local_epochs", raw["local_epochs"])
    if raw.get("gap_every", "auto") not in (None, "auto"):
        values["gap_every"] = whole("gap_every", raw["gap_every"], 1)
    if "seed" in raw:
        values["seed"] = whole("seed", raw["seed"], 0)
    if raw.get("warm_start") is not None:
        values["warm_start"] = read_warm_start(raw["warm_start"])
    values["loss"] = loss = dual_loss_named(raw.get("loss", "squared"))
    values["class_weight"] = read_class_weight(raw.get("class_weight"))
    if values["class_weight"] is not None and not loss.loss.is_classification:
        raise wrong("class_weight", raw["class_weight"], f"none with loss: {loss.name}")
    if values.get("positive") and loss.loss.is_classification:
        raise wrong("positive", True, "false with loss: " + loss.name)
    settings = PrimalCocoaSettings(**values)
    if settings.l1 == 0.0 and settings.l2 == 0.0:
        raise wrong("l1", raw.get("l1"), "a penalty above 0, or l2 above 0: without any there is no"
                    " certificate")  # fmt: skip
    return settings


def check_data(facts: DatasetStats) -> None:
    """Refuse data whose chunks this algorithm cannot read.

    Raises
    ------
    ConfigError
        When values are not float64.
    """
    layout = facts.layout
    if layout.dtype != "float64" or layout.kind == "sequence":
        raise ConfigError(
            f"data are {layout.kind} of {layout.dtype}, wanted float64 numbers by columns for "
            "primal_cocoa: em.from_arrays(X, y, by='columns')",
            key="data",
        )
