"""The settings of asynchronous SGD."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from elasticml.algorithms.async_sgd.settings import read_settings as read_async_sgd
from elasticml.errors import ConfigError
from elasticml.jobs.schema import Count, Settings


class AsyncSGD(Settings):
    """Asynchronous SGD by gossip: members never wait, and exchange states pairwise.

    Every member visits its own shuffled examples in mini-batches. After each mini-batch it merges
    the states in its mailbox, and sends its own state to a random peer. Members may join and leave
    at any time.

    ``problem="kmeans"`` finds ``k`` centres. Each centre carries the mass of the examples that made
    it, and centres are averaged by mass. ``problem="linear"`` minimises a loss with an L2 penalty.
    ``batch`` is the number of examples between two messages: a number, ``"auto"`` (as many messages
    as the network carries, by log-PI control), ``"adaptive"`` (the paper's adaptiveB) or ``"inf"``
    (no messages: SimuParallelSGD). By default it is ``max(3 k, 256)``. While a member's last
    message is still unsent, a newer state replaces it, so that no batch is too small for a network.

    ``mode="batch"`` is the paper's baseline: Lloyd's algorithm, one synchronous round per pass over
    all data.

    Source: the asynchronous SGD paper; ``mode="paper"`` follows it literally.
    """

    name: ClassVar[str] = "async_sgd"

    problem: Literal["kmeans", "linear"] = "kmeans"
    #: Clusters, for K-Means.
    k: Count | None = None
    loss: Literal["logistic", "squared", "squared_hinge", "smoothed_hinge", "hinge"] = "logistic"
    l2: float = Field(default=0.0, ge=0)
    intercept: bool = False
    class_weight: dict[float, float] | Literal["balanced"] | None = None
    mode: Literal["default", "paper", "batch"] = "default"
    batch: Count | Literal["auto", "adaptive", "inf"] | None = None
    #: Initial mini-batch size if the size is controlled.
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
    start: Literal["kmeans++", "kmeans||", "sample"] = "kmeans++"
    #: Rows per centre in the sample for k-means++.
    start_rows: Count = 30
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

    @field_validator("batch", mode="before")
    @classmethod
    def _infinite(cls, batch: object) -> object:
        is_infinite = isinstance(batch, float) and math.isinf(batch) and batch > 0
        return "inf" if is_infinite else batch

    def check(self) -> None:
        """Check constraints between fields."""
        section = {**self.section(), "report_every": self.report_every}
        try:
            read_async_sgd(section)
        except ConfigError as error:
            raise ValueError(error.message.removeprefix("algorithm.")) from None

    def section(self) -> dict[str, Any]:
        """Return the settings as the ``algorithm`` section of a job record."""
        section = {"name": self.name, **self.model_dump(exclude_none=True)}
        if self.mode == "batch":
            # Synchronous rounds: two runs give the same bits.
            del section["report_every"]
        if isinstance(self.class_weight, dict):
            # JSON keys are strings.
            section["class_weight"] = {str(k): v for k, v in self.class_weight.items()}
        return section
