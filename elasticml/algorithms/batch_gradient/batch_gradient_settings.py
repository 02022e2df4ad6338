"""The validated settings of batch gradient descent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from elasticml.algorithms.settings_checks import check_keys, number, read_class_weight, wrong
from elasticml.objectives.losses import Loss, loss_named

#: Values of ``absent``; "auto" is "taylor" with curvature, or "taylor" if rounds are rolled back.
ABSENT: Final = ("auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload")
#: Default of ``BatchGradientSettings.roll_back``, by ``mode``.
_ROLL_BACK: Final = {"default": 0, "paper": 1}
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "optimizer": (None, "gd", "lbfgs", "tron"),
    "step": ("line_search", "constant", "decay"),
    "anchor": ("cached", "correction"),
    "scale": ("none", "maxabs", "standard"),
    "intercept": (False, True),
    "mode": tuple(_ROLL_BACK),
    "roll_back": (None, 0, 1, 2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchGradientSettings:
    """The ``algorithm`` section of a job; values refer to the mean-form objective."""

    loss: Loss
    l2: float = 1e-4
    optimizer: Literal["gd", "lbfgs", "tron"] = "lbfgs"
    step: Literal["line_search", "constant", "decay"] = "line_search"
    #: First step length of ``constant`` and ``decay``; None is 1/L, see ``steps.safe_step``.
    step_size: float | None = None
    anchor: Literal["cached", "correction"] = "cached"
    intercept: bool = False
    class_weight: Mapping[float, float] | Literal["balanced"] | None = None
    #: Stop when the gradient norm has fallen to this share of the first one.
    tolerance: float = 0.0
    scale: Literal["none", "maxabs", "standard"] = "none"
    #: Rounds of progress that a loss during a gradient exchange costs. 0: keep w^r and use the
    #: survivors' gradient. 1: line 16 of Algorithm 2 in its written order, first w^{r+1} <- w^r,
    #: then w^r <- w^{r-1}: round r is repeated. 2: w^{r+1} = w^{r-1}.
    roll_back: int = 0

    @property
    def loss_name(self) -> str:
        """Name of the loss in a job file."""
        return self.loss.name

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        return self.loss.is_classification


def chosen_optimizer(
    optimizer: Literal["gd", "lbfgs", "tron"] | None, mode: str
) -> Literal["gd", "lbfgs", "tron"]:
    """Return the optimizer of a job; the default in mode "paper" is gradient descent."""
    if optimizer is not None:
        return optimizer
    return "gd" if mode == "paper" else "lbfgs"


def read_settings(raw: Mapping[str, Any]) -> BatchGradientSettings:
    """Validate the ``algorithm`` section of a job.

    Parameters
    ----------
    raw : mapping
        As in a job record, with or without ``name``. ``mode`` "paper" implies ``roll_back`` 1.

    Raises
    ------
    ConfigError
        When a key is unknown or a value out of range.
    """
    keys = {field.name for field in fields(BatchGradientSettings)} | {"mode", "name"}
    check_keys("batch_gradient", raw, keys, _CHOICES)
    values = {key: raw[key] for key in raw if key not in ("name", "mode", "loss", "class_weight")}
    values["optimizer"] = chosen_optimizer(raw.get("optimizer"), raw.get("mode", "default"))
    if values["optimizer"] != "gd" and raw.get("step", "line_search") != "line_search":
        remedy = f"line_search with optimizer: {values['optimizer']}; or add optimizer: gd"
        raise wrong("step", raw["step"], remedy)
    for key in ("l2", "tolerance"):
        if key in raw:
            values[key] = number(key, raw[key])
    if raw.get("step_size") is not None:
        values["step_size"] = number("step_size", raw["step_size"])
        if values["step_size"] == 0.0:
            raise wrong("step_size", raw["step_size"], "a number above 0")
    if raw.get("roll_back") is None:
        values["roll_back"] = _ROLL_BACK[raw.get("mode", "default")]
    loss = loss_named(raw.get("loss", "logistic"))
    if not math.isfinite(loss.smoothness):
        raise wrong("loss", loss.name, "a smooth one, such as smoothed_hinge")
    weight = read_class_weight(raw.get("class_weight"))
    if weight is not None and not loss.is_classification:
        raise wrong("class_weight", raw["class_weight"], f"none with loss: {loss.name}")
    return BatchGradientSettings(loss=loss, class_weight=weight, **values)
