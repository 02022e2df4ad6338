"""The validated settings of local SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.settings_checks import check_keys, number, wrong
from elasticml.errors import ConfigError

F64 = NDArray[np.float64]
RateRule = Literal["sqrt", "linear", "constant", "constant_global_batch"]
Absent = Literal["reload", "ignore", "stall"]

#: Losses by name; others are import paths.
LOSSES: Final = ("cross_entropy", "mse")
RATE_RULES: Final = ("sqrt", "linear", "constant", "constant_global_batch")
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "rate_rule": RATE_RULES,
    "device": ("auto", "cpu", "cuda"),
}
_ABSENT: Final = ("auto", "reload", "ignore", "stall")
#: Values of ``absent`` that other algorithms support and local SGD does not.
_FOREIGN: Final = ("taylor", "ignore_rescaled", "freeze")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSGDSettings:
    """The ``algorithm`` section of a job."""

    #: "cnn", or the import path of a factory of a ``torch.nn.Module``.
    model: str = "cnn"
    #: Keyword arguments of the factory.
    model_options: Mapping[str, Any] = field(default_factory=dict)
    #: Shape of one example as the module's input; None: a vector, or for "cnn" a square image.
    shape: tuple[int, ...] | None = None
    #: "cross_entropy", "mse", or the import path of a function of output and targets.
    loss: str = "cross_entropy"
    #: L: samples of one local step.
    batch: int = 8
    #: H: local steps of a round; 1 is mini-batch SGD.
    local_steps: int = 16
    #: alpha, before ``rate_rule`` is applied.
    learning_rate: float = 5e-4
    rate_rule: RateRule = "sqrt"
    momentum: float = 0.9
    weight_decay: float = 0.0
    #: "auto": mean and standard deviation of the training values; "none"; or these two numbers.
    normalize: Literal["auto", "none"] | tuple[float, float] = "auto"
    #: Share of the examples that is held out from training and evaluated on the members.
    holdout: float = 0.0
    #: Rounds between evaluations of the held-out examples; None: at the start of every epoch.
    holdout_every: int | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: Number of epochs after which to stop.
    epochs: int | None = None
    seed: int = 0
    #: Initial arrays by the module's names, with the normalisation of inputs; empty: the factory's
    #: initial weights.
    warm_start: Mapping[str, F64] = field(default_factory=dict)

    @property
    def is_classification(self) -> bool:
        """Whether targets are class numbers."""
        return self.loss != "mse"


def read_settings(raw: Mapping[str, Any]) -> LocalSGDSettings:
    """Validate the ``algorithm`` section of a job.

    Parameters
    ----------
    raw : mapping
        As in a job record, with or without ``name``.

    Raises
    ------
    ConfigError
        When a key is unknown or a value out of range.
    """
    check_keys(
        "local_sgd", raw, {entry.name for entry in fields(LocalSGDSettings)} | {"name"}, _CHOICES
    )
    values = {key: raw[key] for key in ("rate_rule", "device") if raw.get(key) is not None}
    for key in ("batch", "local_steps"):
        if key in raw:
            values[key] = _whole(key, raw[key], 1)
    for key in ("holdout_every", "epochs", "seed"):
        if raw.get(key) is not None:
            values[key] = _whole(key, raw[key], 0 if key == "seed" else 1)
    for key in ("learning_rate", "momentum", "weight_decay", "holdout"):
        if key in raw:
            values[key] = number(key, raw[key])
    if values.get("learning_rate") == 0.0:
        raise wrong("learning_rate", raw["learning_rate"], "a number above 0")
    for key in ("momentum", "holdout"):
        if values.get(key, 0.0) >= 1.0:
            raise wrong(key, raw[key], "a number of at least 0 and below 1")
    if raw.get("model") is not None:
        values["model"] = _path("model", raw["model"], ("cnn",))
    if raw.get("loss") is not None:
        values["loss"] = _path("loss", raw["loss"], LOSSES)
    if raw.get("model_options"):
        values["model_options"] = _mapping(raw["model_options"])
    if raw.get("shape") is not None:
        values["shape"] = _shape(raw["shape"])
    if raw.get("warm_start") is not None:
        values["warm_start"] = _warm_start(raw["warm_start"])
    if raw.get("normalize") is not None:
        values["normalize"] = _normalize(raw["normalize"])
    return LocalSGDSettings(**values)


def read_absent(absent: str) -> Absent:
    """Return the rule for absent examples; "auto" is "reload".

    Raises
    ------
    ConfigError
        When there is no such rule, or local SGD does not support it.
    """
    if absent in _FOREIGN:
        raise ConfigError(
            f"absent is {absent!r}, which algorithm local_sgd cannot follow: its steps take some "
            "examples at a time; wanted reload (read them again elsewhere, each is still seen once "
            "in the epoch), ignore (leave them out while they are away) or stall",
            key="absent",
        )
    if absent not in _ABSENT:
        raise ConfigError(f"absent is {absent!r}, wanted one of {', '.join(_ABSENT)}", key="absent")
    return "reload" if absent == "auto" else absent  # type: ignore[return-value]


def _whole(key: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(key, value, f"a whole number of at least {least}")
    return value


def _path(key: str, value: Any, words: Sequence[str]) -> str:
    if not isinstance(value, str) or not (value in words or _is_path(value)):
        raise wrong(key, value, f"{' or '.join(words)}, or an import path such as my_module:name")
    return value


def _is_path(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), name))


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong("model_options", value, "a mapping of the factory's keyword arguments")
    return dict(value)


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise wrong("shape", value, "sizes such as [1, 28, 28]")
    return tuple(_whole("shape", size, 1) for size in value)


def _warm_start(value: Any) -> Mapping[str, F64]:
    if not isinstance(value, Mapping) or not value:
        raise wrong("warm_start", value, "a mapping of a network's arrays by name")
    try:
        arrays = {str(name): np.asarray(values, np.float64) for name, values in value.items()}
    except (TypeError, ValueError):
        raise wrong("warm_start", "not numbers", "arrays of numbers") from None
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise wrong(f"warm_start.{name}", "not finite", "finite numbers")
    return arrays


def _normalize(value: Any) -> Literal["auto", "none"] | tuple[float, float]:
    if isinstance(value, str) and value in ("auto", "none"):
        return value  # type: ignore[return-value]
    wanted = "auto, none, or mean and standard deviation such as [0, 255]"
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise wrong("normalize", value, wanted)
    mean, deviation = value
    if isinstance(mean, bool) or not isinstance(mean, int | float) or mean != mean:
        raise wrong("normalize", value, wanted)
    if number("normalize", deviation) == 0.0:
        raise wrong("normalize", value, "a standard deviation above 0")
    return float(mean), float(deviation)
