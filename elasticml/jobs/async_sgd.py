"""The settings of asynchronous SGD as a job has them."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from elasticml.algorithms.async_sgd.settings import read_settings
from elasticml.errors import ConfigError
from elasticml.jobs.schema import Settings

Count = Annotated[int, Field(ge=1)]


class AsyncSGD(Settings):
    """Stochastic gradient descent without rounds: members work on, and send when they can.

    Every member visits its own shuffled examples in mini-batches; after each it merges what lies in
    its mailbox, and sends its state to a random other member. Nobody waits for anybody; members may
    come and go at any moment.

    ``problem="kmeans"`` finds ``k`` centres: each travels with the mass of examples that made it,
    and centres are averaged by mass. ``problem="linear"`` minimises a loss with an L2 penalty.
    ``batch`` is how many examples lie between two messages: a number, ``"auto"`` (as many as the
    network carries, by log-PI control), ``"adaptive"`` (the paper's adaptiveB) or ``"inf"`` (no
    messages at all: SimuParallelSGD). By default it is ``max(3 k, 256)``, and a member whose last
    message has not left yet sends a newer one later, so that no batch is too small for a network.

    ``mode="batch"`` is what the paper measures against: Lloyd's algorithm, a round for each pass
    over all data, of which everybody waits for everybody.

    Source: the asynchronous SGD paper, word for word with ``mode="paper"``.
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
    #: First mini-batch where the size is controlled.
    batch_start: Count | None = None
    #: adaptiveB's step, in examples per message.
    gamma: float = Field(default=10.0, ge=0)
    #: Messages that shall wait in the outgoing queue; by default 0.5, of adaptiveB 1.
    queue_target: float | None = Field(default=None, ge=0)
    #: Places of the outgoing queue; by default one, of the newest state, where ``batch`` is fixed.
    queue: Count | None = None
    #: Step length; by default from the data, in ``mode="paper"`` 0.05.
    rate: float | None = Field(default=None, gt=0)
    #: Random peers that a state is sent to.
    sends: int = Field(default=1, ge=0)
    #: Slots of the mailbox: states that wait to be merged; when all are full the oldest goes.
    slots: Count = 1
    #: Share of the centres that a message holds, drawn at random.
    share: float = Field(default=1.0, gt=0, le=1)
    start: Literal["kmeans++", "kmeans||", "sample"] = "kmeans++"
    #: Rows per centre of the sample that k-means++ works on.
    start_rows: Count = 30
    #: Passes of a member over its examples after which it stops.
    passes: float | None = Field(default=None, gt=0)
    #: Seconds from one report to the next: a row of the history, of which members take no notice.
    report_every: float = Field(default=1.0, gt=0)
    #: Chunks that a mini-batch is drawn from.
    window: Count = 16
    #: Passes of Lloyd's algorithm over all data at the end.
    final_passes: int = Field(default=0, ge=0)
    #: By default the job's.
    seed: int | None = Field(default=None, ge=0)

    def __init__(self, problem: Literal["kmeans", "linear"] = "kmeans", /, **settings: Any) -> None:
        settings.setdefault("problem", problem)
        super().__init__(**settings)

    # Sections of job files are validated without it, with their place in the file at hand.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("batch", mode="before")
    @classmethod
    def _infinite(cls, batch: object) -> object:
        is_infinite = isinstance(batch, float) and math.isinf(batch) and batch > 0
        return "inf" if is_infinite else batch

    def check(self) -> None:
        """Check what several fields must agree on."""
        section = {**self.section(), "report_every": self.report_every}
        try:
            read_settings(section)
        except ConfigError as error:
            raise ValueError(error.message.removeprefix("algorithm.")) from None

    def section(self) -> dict[str, Any]:
        """Write the settings as the ``algorithm`` section of a job record."""
        section = {"name": self.name, **self.model_dump(exclude_none=True)}
        if self.mode == "batch":
            # Its rounds are rounds: two runs give the same bits.
            del section["report_every"]
        if isinstance(self.class_weight, dict):
            # JSON has no numbers as keys.
            section["class_weight"] = {str(k): v for k, v in self.class_weight.items()}
        return section
