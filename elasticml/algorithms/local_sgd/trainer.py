"""The driver's half of local SGD: model averaging, and the progress of the epoch.

A round is one exchange: every member takes H steps from the same weights. The next round starts
from the mean of the members' weights, weighted by samples; likewise for momentum and the module's
buffers. A member that is lost in a round is not in the mean, and its samples are not counted: the
table of positions is updated from the sum only. So an epoch contains every example exactly once,
however membership changes.

With H = 1 the mean of models is a step along the mean gradient, and the mean of momenta is that
gradient's momentum: mini-batch SGD, with any number of members.

Source: the uni-task paper, sections 2.2, 3 and 5.1; equations (1) and (2), whose mean is weighted.
Deviation: the paper does not say where momentum is kept. Here it is averaged with the model: a lost
member takes none of it away, and a new member receives it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elasticml.algorithms.base import (
    ON_CUDA,
    Arrays,
    Exchange,
    Model,
    Outcome,
    Resume,
    RoundEnd,
    Trainer,
)
from elasticml.algorithms.chunk_numbers import number_chunks
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.local_sgd import local_sgd_exchanges, step_schedule
from elasticml.algorithms.local_sgd.module_factory import INPUT_MEAN, INPUT_STD
from elasticml.algorithms.local_sgd.network import Network
from elasticml.arrays import F64
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import JobFailedError
from elasticml.specification.algorithms import LocalSGD, absent_rule, settings_from_section

_Steps = Generator[Exchange, Outcome, Any]


def make_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
) -> Trainer:
    """Return the trainer of a job.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section, see :class:`LocalSGD`.
    facts : DatasetStats
    absent : str
        "auto" | "reload" | "ignore" | "stall".
    resume : Resume, optional
        Checkpoint of the round after which to continue.

    Raises
    ------
    ConfigError
        When a setting is unknown or out of range, PyTorch is missing, or the module does not fit
        the data.
    DataError
        When the data are not dense, or have no classes although the loss needs them.
    """
    checked = settings_from_section(LocalSGD, settings)
    rule, initial = absent_rule(checked.name, absent), initial_model(settings)
    network = Network(checked, facts, device="cpu")
    if initial:
        network.fill_named(initial)
    descent = _Descent(
        settings=checked,
        n_blocks=facts.n_blocks,
        network=network,
        rule=rule,
        initial=initial,
        weights=network.weights(),
        momentum=network.momentum() if checked.momentum else np.zeros(0),
        buffers=network.buffers(),
        frozen=network.frozen(),
    )
    return _train(descent, settings.get("epochs"), resume)


def _train(descent: _Descent, epochs: int | None, resume: Resume | None) -> Trainer:
    if resume is None:
        yield from descent.survey()
    else:
        descent.go_on(resume)
    while True:
        if epochs is not None and descent.epoch >= epochs:
            reason = f"{epochs} epochs"
            return Model(arrays=descent.arrays(), converged=True, reason=reason)
        ended = yield from descent.round()
        if not (yield ended):
            return Model(arrays=descent.arrays(), converged=False, reason="stopped as asked")


@dataclass(slots=True, kw_only=True)
class _Descent:
    """The trainer's state between rounds."""

    settings: LocalSGD
    n_blocks: int
    network: Network
    rule: str
    #: Arrays of the initial model by the module's names, with the normalisation of inputs; empty:
    #: the factory's initial weights.
    initial: Mapping[str, F64]
    #: (n_parameters,) each; the momentum is empty if it is not used.
    weights: F64
    momentum: F64
    #: The module's buffers, flat.
    buffers: F64
    #: The parameters that are not trained, flat.
    frozen: F64
    #: All members have these. A new member reports that it has not, and takes its first steps in
    #: the next round.
    is_known: bool = False
    #: Number of each block's first chunk in the table, and the number of chunks; (n_blocks + 1,).
    starts: F64 = field(default_factory=lambda: np.zeros(1))
    #: Training examples of each chunk, and how many of them were taken in this epoch.
    rows: F64 = field(default_factory=lambda: np.zeros(0))
    positions: F64 = field(default_factory=lambda: np.zeros(0))
    #: Mean and standard deviation of the inputs.
    inputs: F64 = field(default_factory=lambda: np.array([0.0, 1.0]))
    epoch: int = 0
    rounds: int = 0
    #: Examples that epochs have skipped because they were absent.
    skipped: int = 0
    #: The next exchange closes the open group.
    seal: bool = False
    #: All examples left in the epoch are absent.
    waits: bool = False
    #: Examples left in the epoch on present members; None before the epoch's first round.
    present: int | None = None
    #: The epoch at whose start the held-out examples were last evaluated.
    evaluated: int = -1

    def survey(self) -> _Steps:
        """Assign numbers to chunks, count training examples, and compute the inputs' moments."""
        self.starts = yield from number_chunks(self.n_blocks)
        outcome = yield local_sgd_exchanges.survey_exchange(self.starts)
        self.rows = np.array(outcome.arrays["rows"])
        self.positions = np.zeros_like(self.rows)
        start = self.initial
        if self.settings.normalize == "auto" and INPUT_MEAN in start and INPUT_STD in start:
            # The weights were trained with this normalisation, whatever the data are now.
            self.inputs = np.array([start[INPUT_MEAN].item(), start[INPUT_STD].item()])
        elif self.settings.normalize == "auto":
            self.inputs = _inputs(outcome.arrays["moments"])
        elif self.settings.normalize != "none":
            self.inputs = np.array(self.settings.normalize)

    @property
    def done(self) -> float:
        """Epochs so far, with a fraction."""
        return self.epoch + float(self.positions.sum() / max(1.0, self.rows.sum()))

    @property
    def left(self) -> int:
        """Examples left in the epoch, present and absent."""
        return int(self.rows.sum() - self.positions.sum())

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one round: the members take their steps, and the results are averaged."""
        held: dict[str, float | None] = {}
        if self._evaluates():
            held = yield from self._evaluate()
        model, epochs = self.arrays(), self.done
        outcome = yield local_sgd_exchanges.train_exchange(
            self._down(self.frozen[:0] if self.is_known else self.frozen),
            {
                "epoch": self.epoch,
                "left": self._left_to_share(),
                "serial": self.rounds,
                "frozen": self.frozen.size,
            },
            require="everybody" if self.rule == "stall" or self.waits else "any",
            seal=self._take_seal(),
        )
        sums = outcome.arrays["sums"]
        samples = int(sums[local_sgd_exchanges.SAMPLES])
        # Absent members may lack the frozen parameters.
        self.is_known = not (sums[local_sgd_exchanges.LACKING] or outcome.absent_examples)
        self._merge(outcome, samples)
        self._close_epoch(outcome)
        self.rounds += 1
        rate = step_schedule.rate(
            self.settings.rate_rule, self.settings.learning_rate, outcome.members
        )
        loss = float(sums[local_sgd_exchanges.LOSSES]) / samples if samples else None
        on_cuda = int(sums[local_sgd_exchanges.ON_CUDA])
        return RoundEnd(
            objective=loss,
            objective_kind="estimated",
            step=rate,
            extra={
                "epoch": round(epochs, 6),
                "samples": samples,
                "skipped": self.skipped,
                **({ON_CUDA: on_cuda} if on_cuda else {}),
                **held,
            },
            model=model,
            next_model=self.arrays(),
            resume=self._resume(),
        )

    def _left_to_share(self) -> int:
        """Return the number of examples from which members compute their shares."""
        if self.rule == "ignore" and self.present is not None:
            return max(1, self.present)
        return max(1, self.left)

    def _merge(self, outcome: Outcome, samples: int) -> None:
        """Average over the samples in the sum, and update the positions."""
        if outcome.opened is not None:
            self.seal = True
        if not samples:
            return
        arrays = outcome.arrays
        self.weights = arrays["weights"] / samples
        self.momentum = arrays["momentum"] / samples
        self.buffers = arrays["buffers"] / samples
        self.positions = self.positions + arrays["seen"]
        if not math.isfinite(float(self.weights @ self.weights)):
            raise JobFailedError(
                f"the model is not finite after {self.rounds + 1} rounds, wanted a finite one: the "
                "steps are too long; lower algorithm.learning_rate, or set algorithm.normalize",
                reason="diverged",
            )

    def _close_epoch(self, outcome: Outcome) -> None:
        """Start the next epoch if nothing is left of this one, or nothing worth waiting for."""
        self.present = int(outcome.arrays["sums"][local_sgd_exchanges.LEFT])
        self.waits = False
        if self.left and self.present:
            return
        if self.left and (self.rule != "ignore" or not outcome.absent_examples):
            # Only absent examples are left: the present members wait for their return.
            self.waits = True
            return
        self.skipped += self.left
        self.positions = np.zeros_like(self.rows)
        self.epoch, self.present = self.epoch + 1, None

    def _evaluates(self) -> bool:
        if not self.settings.holdout:
            return False
        every = self.settings.holdout_every
        if every is not None:
            return self.rounds % every == 0
        return self.evaluated < self.epoch

    def _evaluate(self) -> Generator[Exchange, Outcome, dict[str, float | None]]:
        self.evaluated = self.epoch
        outcome = yield local_sgd_exchanges.evaluate_exchange(
            self._down(self.frozen), seal=self._take_seal()
        )
        if outcome.opened is not None:
            self.seal = True
        weight, loss, correct = outcome.arrays["scores"].tolist()
        if not weight:
            return {}
        columns: dict[str, float | None] = {"holdout_loss": loss / weight}
        if self.network.classes is not None:
            columns["holdout_accuracy"] = correct / weight
        return columns

    def _down(self, frozen: F64) -> dict[str, F64]:
        return {
            "frozen": frozen,
            "weights": self.weights,
            "momentum": self.momentum,
            "buffers": self.buffers,
            "positions": self.positions,
            "starts": self.starts,
            "inputs": self.inputs,
        }

    def _take_seal(self) -> bool:
        seal, self.seal = self.seal, False
        return seal

    def arrays(self) -> Arrays:
        """Return the model by the module's names, with the normalisation of inputs."""
        named = self.network.named(self.weights, self.buffers, self.frozen)
        return {**named, INPUT_MEAN: self.inputs[:1], INPUT_STD: self.inputs[1:]}

    # --- checkpoints ----------------------------------------------------------------------------

    def _resume(self) -> Resume:
        """Return the state to start the next round in another process; members have none."""
        return Resume(
            arrays={**self._down(self.frozen), "rows": self.rows},
            values={
                "epoch": self.epoch,
                "rounds": self.rounds,
                "skipped": self.skipped,
                "evaluated": self.evaluated,
            },
        )

    def go_on(self, resume: Resume) -> None:
        """Restore the state of another process at the end of a round."""
        for name in (*self._down(self.frozen), "rows"):
            setattr(self, name, np.array(resume.arrays[name]))
        for name in ("epoch", "rounds", "skipped", "evaluated"):
            setattr(self, name, int(resume.values[name]))


def _inputs(moments: F64) -> F64:
    """Return mean and standard deviation of all values; the latter is 1 if they are all equal."""
    n, first, second = moments.tolist()
    mean = first / max(n, 1.0)
    variance = second / max(n, 1.0) - mean * mean
    return np.array([mean, math.sqrt(variance) if variance > 0.0 else 1.0])
