"""The validated settings of asynchronous SGD, and the loop they define."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import BatchController, LoopConfig, Problem
from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.linear import Linear
from elasticml.algorithms.async_sgd.paper import PaperKMeans
from elasticml.algorithms.settings_checks import check_keys, number, read_class_weight, wrong
from elasticml.algorithms.targets import ClassWeight, targets_for
from elasticml.data.source import DatasetStats
from elasticml.objectives.losses import LOSSES, loss_named

F64 = NDArray[np.float64]
Batch = int | Literal["auto", "adaptive", "inf"]

#: Capacity of a send queue that blocks when full: the paper's, and a short one for the log-PI
#: controller.
_PLACES_PAPER: Final = 16
_PLACES_AUTO: Final = 2
#: Maximum share of fixed cost in an iteration with 'batch: auto'.
_FIXED_SHARE: Final = 0.1
#: Default mini-batch sizes; a minimum for K-Means.
_BATCH_KMEANS: Final = 256
_BATCH_LINEAR: Final = 32
_RATE_PAPER: Final = 0.05
_WORDS: Final = ("auto", "adaptive", "inf")
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "problem": ("kmeans", "linear"),
    "mode": ("default", "paper", "batch"),
    "intercept": (False, True),
    "start": ("kmeans++", "kmeans||", "sample"),
    "loss": tuple(LOSSES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSGDSettings:
    """The ``algorithm`` section of a job."""

    problem: Literal["kmeans", "linear"] = "kmeans"
    #: Number of clusters; required for K-Means, not allowed otherwise.
    k: int | None = None
    loss: str = "logistic"
    l2: float = 0.0
    intercept: bool = False
    class_weight: ClassWeight = None
    #: "paper": constant rate, Parzen window, merges of weight rate/2, a blocking queue; "batch":
    #: synchronous rounds over all data, by MapReduce.
    mode: Literal["default", "paper", "batch"] = "default"
    #: Size of a mini-batch, after which the state is sent; "auto": log-PI control, "adaptive":
    #: adaptiveB, "inf": nothing is sent (SimuParallelSGD); None: max(3 k, 256), linear 32.
    batch: Batch | None = None
    #: Size of the first mini-batch, with a controller.
    batch_start: int | None = None
    #: adaptiveB's step, in examples per message.
    gamma: float = 10.0
    #: Target length of the send queue in messages; None: 1 for adaptiveB, 0.5 for log-PI.
    queue_target: float | None = None
    #: Capacity of the send queue; None, with a fixed size: 1, holding the newest state.
    queue: int | None = None
    #: Step length; None: 0.05 in mode "paper"; else for K-Means 1/mass, for linear from the data.
    rate: float | None = None
    #: Number of random peers that a state is sent to.
    sends: int = 1
    #: Slots of the mailbox of received states; when all are full the oldest is overwritten.
    slots: int = 1
    #: Share of the centres in a message.
    share: float = 1.0
    start: Literal["kmeans++", "kmeans||", "sample"] = "kmeans++"
    #: Size of the sample for k-means++, in rows per centre.
    start_rows: int = 30
    #: Passes of a member over its examples after which it stops; None: until the job stops.
    passes: float | None = None
    #: Seconds between reports, each a row of the history; used by the driver.
    report_every: float = 1.0
    #: Number of chunks that a mini-batch is drawn from.
    window: int = 16
    #: Passes of Lloyd's algorithm over all data at the end.
    final_passes: int = 0
    seed: int = 0
    #: State to start from: ``centres`` and optionally ``counts``, or ``coef``, intercept last.
    warm_start: Mapping[str, F64] = field(default_factory=dict)

    @property
    def loss_name(self) -> str:
        """Name of the loss in a job file."""
        return self.loss

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        return loss_named(self.loss).is_classification


_DEFAULTS: Final = {entry.name: entry.default for entry in fields(AsyncSGDSettings)}
#: Keys that apply only if states are sent.
_OF_MESSAGES: Final = ("queue", "sends", "slots")


def read_settings(raw: Mapping[str, Any]) -> AsyncSGDSettings:
    """Validate the ``algorithm`` section of a job.

    Raises
    ------
    ConfigError
        When a key is unknown, a value is out of range, or a key does not apply to the problem.
    """
    check_keys(
        "async_sgd", raw, {entry.name for entry in fields(AsyncSGDSettings)} | {"name"}, _CHOICES
    )
    values = {key: raw[key] for key in (*_CHOICES, "gamma") if raw.get(key) is not None}
    for key, least in (
        ("k", 1),
        ("batch_start", 1),
        ("queue", 1),
        ("sends", 0),
        ("slots", 1),
        ("window", 1),
        ("start_rows", 1),
        ("final_passes", 0),
        ("seed", 0),
    ):
        if raw.get(key) is not None:
            values[key] = _whole(key, raw[key], least)
    for key in ("l2", "gamma", "queue_target", "rate", "share", "passes", "report_every"):
        if raw.get(key) is not None:
            values[key] = number(key, raw[key])
    if raw.get("batch") is not None:
        values["batch"] = _batch(raw["batch"])
    values["class_weight"] = read_class_weight(raw.get("class_weight"))
    if raw.get("warm_start") is not None:
        values["warm_start"] = _warm_start(raw["warm_start"], raw.get("intercept") is True)
    settings = AsyncSGDSettings(**values)
    _check_together(settings)
    return settings


def _check_together(settings: AsyncSGDSettings) -> None:
    if settings.problem == "kmeans" and settings.k is None:
        raise wrong("k", None, "a number of clusters")
    needed = "centres" if settings.problem == "kmeans" else "coef"
    if settings.warm_start and needed not in settings.warm_start:
        raise wrong("warm_start", sorted(settings.warm_start), f"an array {needed}")
    if settings.problem == "linear":
        for key, default in (("k", None), ("share", 1.0), ("final_passes", 0)):
            if getattr(settings, key) != default:
                raise wrong(key, getattr(settings, key), "nothing: it belongs to problem: kmeans")
    _check_baselines(settings)
    if not 0.0 < settings.share <= 1.0:
        raise wrong("share", settings.share, "a number above 0 and at most 1")
    if settings.report_every <= 0.0:
        raise wrong("report_every", settings.report_every, "seconds above 0")
    if settings.passes is not None and settings.passes <= 0.0:
        raise wrong("passes", settings.passes, "a number above 0")
    if settings.rate is not None:
        if settings.rate <= 0.0 or (settings.problem == "kmeans" and settings.rate > 1.0):
            raise wrong("rate", settings.rate, "a number above 0, for K-Means at most 1")
        if settings.problem == "kmeans" and settings.mode != "paper":
            raise wrong("rate", settings.rate, "none: a centre's step is 1/mass; see mode: paper")
    if settings.class_weight is not None and not settings.is_classification:
        raise wrong("class_weight", settings.class_weight, f"none with loss: {settings.loss}")


def _check_baselines(settings: AsyncSGDSettings) -> None:
    """Reject settings that the paper's baselines would ignore."""
    if settings.batch == "inf":
        for key in _OF_MESSAGES:
            _check_default(settings, key, "batch: inf sends no states")
    if settings.mode != "batch":
        return
    if settings.problem != "kmeans":
        raise wrong("mode", "batch", "problem: kmeans; linear: see algorithm batch_gradient")
    for key in ("batch", *_OF_MESSAGES, "share"):
        _check_default(settings, key, "mode: batch sends no states")
    for key in ("batch_start", "gamma", "queue_target", "window"):
        _check_default(settings, key, "mode: batch has no mini-batches")
    _check_default(settings, "final_passes", "mode: batch makes no other passes; see passes")
    _check_default(settings, "report_every", "mode: batch reports its rounds")
    if settings.passes is not None and not settings.passes.is_integer():
        raise wrong("passes", settings.passes, "a whole number: mode: batch makes whole passes")


def _check_default(settings: AsyncSGDSettings, key: str, why: str) -> None:
    default = _DEFAULTS[key]
    if getattr(settings, key) != default:
        allowed = "none" if default is None else f"{default}, the default"
        raise wrong(key, getattr(settings, key), f"{allowed}: {why}")


def make_problem(settings: AsyncSGDSettings, facts: DatasetStats) -> Problem:
    """Return the problem's arithmetic for a data set.

    Raises
    ------
    ConfigError, DataError
        When the settings do not fit the data.
    """
    columns = facts.n_columns
    if settings.problem == "linear":
        rate = settings.rate
        if rate is None and settings.mode == "paper":
            rate = _RATE_PAPER
        return Linear(
            loss=loss_named(settings.loss),
            targets=targets_for(settings, facts),
            columns=columns,
            l2=settings.l2,
            intercept=settings.intercept,
            rate=rate,
            mode="paper" if settings.mode == "paper" else "default",
        )
    assert settings.k is not None
    if settings.mode == "paper":
        rate = _RATE_PAPER if settings.rate is None else settings.rate
        return PaperKMeans(clusters=settings.k, columns=columns, rate=rate, share=settings.share)
    return KMeans(clusters=settings.k, columns=columns, share=settings.share)


def first_batch(settings: AsyncSGDSettings) -> int:
    """Return the size of the first mini-batch.

    A controlled size starts high: in a short run there is no time to drain a queue that was filled
    at the start.
    """
    if isinstance(settings.batch, int):
        return settings.batch
    if settings.batch_start is not None:
        return settings.batch_start
    if settings.problem == "linear":
        default = _BATCH_LINEAR
    else:
        default = max(3 * (settings.k or 1), _BATCH_KMEANS)
    return default if settings.batch in (None, "inf") else 4 * default


def make_loop(settings: AsyncSGDSettings, facts: DatasetStats) -> LoopConfig:
    """Return the configuration of a member's loop.

    Raises
    ------
    ConfigError, DataError
        When the settings do not fit the data.
    """
    is_controlled = settings.batch in ("auto", "adaptive")
    newest = not is_controlled and settings.mode == "default"
    places = settings.queue
    if places is None:
        places = 1 if newest else _PLACES_AUTO if settings.batch == "auto" else _PLACES_PAPER
    return LoopConfig(
        problem=make_problem(settings, facts),
        controller=_controller(settings, places),
        batch=first_batch(settings),
        queue=places,
        newest=newest,
        slots=settings.slots,
        sends=0 if settings.batch == "inf" else settings.sends,
        passes=settings.passes,
        window=settings.window,
    )


def _controller(settings: AsyncSGDSettings, places: int) -> Callable[[], BatchController]:
    target = settings.queue_target
    if settings.batch == "auto":
        least = first_batch(settings) // 64 or 1
        # In the paper's mode a controller follows the network only, as in the paper.
        share = None if settings.mode == "paper" else _FIXED_SHARE
        return lambda: LogPI(
            target=0.5 if target is None else target,
            places=places,
            least=least,
            fixed_share=share,
        )
    if settings.batch == "adaptive":
        return lambda: AdaptiveB(
            target=1.0 if target is None else target, gamma=settings.gamma, places=places
        )
    return Fixed


def _warm_start(raw: Any, has_intercept: bool) -> dict[str, F64]:
    names = {"centres", "counts", "coef", "intercept"}
    if not isinstance(raw, Mapping) or not set(raw) <= names:
        raise wrong("warm_start", raw, "a mapping with centres, or with coef and intercept")
    try:
        arrays = {name: np.asarray(values, np.float64) for name, values in raw.items()}
    except (TypeError, ValueError):
        raise wrong("warm_start", "not numbers", "arrays of numbers") from None
    if "coef" in arrays:
        intercept = arrays.pop("intercept", np.zeros(1)).reshape(-1)
        coef = arrays["coef"].reshape(-1)
        arrays["coef"] = np.concatenate([coef, intercept]) if has_intercept else coef
    return arrays


def _batch(value: Any) -> Batch:
    if value in _WORDS:
        return value  # type: ignore[no-any-return]
    if isinstance(value, float) and math.isinf(value) and value > 0:
        return "inf"
    return _whole("batch", value, 1, f", or {', '.join(_WORDS)}")


def _whole(key: str, value: Any, least: int, also: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(key, value, f"a whole number of at least {least}{also}")
    return value
