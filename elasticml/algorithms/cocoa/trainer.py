"""The driver's half of CoCoA: adds the members' steps, certifies gaps, restores what was lost.

Members own coordinates: the dual variables of examples, or the coefficients of features. Each
improves its own with all others fixed, and the driver adds the members' steps. An *orientation*,
rows or columns, supplies what truly differs: the exchanges, the line search along the sum of the
steps, and the certificate.

A round is one pass and, when due, one certificate. Nothing is sent in between: the share of its
step that a member keeps is sent with the next exchange, which *settles* it. What the members'
coordinates add up to is recomputed in every certificate, so that rounding errors do not accumulate,
and at the beginning of a round after chunks have come or gone.

Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), "CoCoA: a general framework", algorithm 1
with examples or features as coordinates; line search and damping are those of our study of CoCoA.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Proceed,
    Resume,
    RoundEnd,
    Scalar,
    Trainer,
    check_first_objective,
)
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule
from elasticml.algorithms.cocoa.line_search import LineModel, products
from elasticml.arrays import F64
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import CoCoA, PrimalCoCoA

Asking = Generator[Exchange, Outcome, Outcome]


def check_warm_start(
    initial: Mapping[str, F64], wanted: int, *, is_of_classes: bool = False
) -> None:
    """Refuse a warm start from other data.

    Raises
    ------
    ConfigError
        When the model has another number of coefficients.
    """
    coef = initial.get("coef")
    if coef is not None and coef.size != wanted:
        raise ConfigError(
            f"algorithm.warm_start.coef has {coef.size} numbers, wanted {wanted}, one for "
            f"each feature{' and class' if is_of_classes else ''}; use a model of the same features"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The sum of the members' steps, and the share of it that was taken."""

    along: LineModel
    length: float
    #: The gap as the coordinates were visited; NaN: not known.
    gap: float = math.nan


@dataclass(slots=True, kw_only=True)
class Cocoa:
    """A job between exchanges: its certificates, its damping, and what its chunks lack.

    A subclass is an orientation: its coordinates are examples (rows) or features (columns), and it
    has the model between rounds.
    """

    settings: CoCoA | PrimalCoCoA
    #: What the members' coordinates add up to, unless it is stale: the model, or the margins.
    image: F64
    gap_schedule: GapSchedule
    aggregation: Aggregation
    local_epochs: float
    #: Certificates wait until nothing is absent: there is no bound of what is.
    waits: bool
    serial: int = 0
    #: Step length of the last pass, sent with the next exchange; 0 once it was sent.
    gamma: float = 0.0
    #: Step length of the last pass.
    gamma_taken: float = 0.0
    #: Chunks came or went: the model does not match the members' coordinates.
    is_stale: bool = False
    #: The next exchange closes the open group.
    seal: bool = False
    #: The last certificate; None if the model has changed since.
    current: Certificate | None = None
    #: The best of all certificates.
    best: Certificate | None = None
    resyncs: int = 0
    #: Relative distance of the model from the recomputed one, at the last certificate in which they
    #: should have been equal.
    drift: float | None = None

    # --- what an orientation supplies ---------------------------------------------------------

    @property
    def stand_ins(self) -> int:
        """Number of bounds in the objective that stand for absent groups."""
        return 0

    def note(self, outcome: Outcome) -> bool:
        """Record which groups are absent; return whether they have changed."""
        raise NotImplementedError

    def ask_certificate(self, *, waits: bool) -> Exchange:
        """Return the exchange for both objectives; it ``waits`` until nothing is absent."""
        raise NotImplementedError

    def certified(self, outcome: Outcome) -> Certificate | None:
        """Return the certificate, and recompute the image; None if nothing is known.

        It may set ``gamma``, the share of all coordinates that the next exchange adds; below 0 it
        scales them down.
        """
        raise NotImplementedError

    def ask_pass(self) -> Exchange:
        """Return the exchange for the members' steps."""
        raise NotImplementedError

    def take(self, outcome: Outcome) -> Step:
        """Add the members' steps, scaled by the line search."""
        raise NotImplementedError

    def solve_here(self) -> Generator[Exchange, Outcome, bool]:
        """Find a better model without a pass, and certify it; return whether this was done."""
        yield from ()
        return False

    def solves_here(self) -> bool:
        """Whether the next round may do so, and take long."""
        return False

    def reported(self) -> Certificate | None:
        """Return the certificate to report: the best so far, or that of the current model."""
        return self.best

    def arrays(self, shown: Certificate | None) -> Arrays:
        """Return the model of a certificate, or the first one, in the users' form."""
        raise NotImplementedError

    def history(self, outcome: Outcome | None) -> dict[str, Any]:
        """Return columns of the history after a pass; None: a round without one."""
        raise NotImplementedError

    def state(self) -> tuple[dict[str, F64], dict[str, Any]]:
        """Return arrays and JSON values from which another process continues."""
        raise NotImplementedError

    def restore(self, resume: Resume) -> None:
        """Restore that state; no chunk has coordinates."""
        raise NotImplementedError

    # --- exchanges ----------------------------------------------------------------------------

    def ask(self, exchange: Exchange) -> Asking:
        """Make an exchange, and record which groups are absent."""
        seal, self.seal = self.seal, False
        outcome = yield replace(exchange, seal=seal)
        changed = self.note(outcome)
        self.seal = outcome.opened is not None
        if changed or (outcome.absent_examples and self.waits):
            self.is_stale = True
        return outcome

    def _settle(self, exchange: Exchange) -> Asking:
        """Make an exchange that settles the step of the last one."""
        self.serial += 1
        own = {"serial": self.serial, "settle": self.serial - 1, "gamma": self.gamma}
        return self.ask(replace(exchange, parameters={**own, **exchange.parameters}))

    def certify(self, *, waits: bool | None = None) -> Generator[Exchange, Outcome, None]:
        """Compute both objectives, and recompute the model from the members' coordinates."""
        waits = self.waits if waits is None else waits
        exchange = self.ask_certificate(waits=waits)
        outcome = yield from self._settle(
            replace(exchange, require="everybody" if waits else "any")
        )
        self.gamma = 0.0
        # Coordinates may have been lost since the last pass although no member is missing now.
        lost = self.serial > 1 and float(outcome.arrays["unset"]) > 0.0
        stale, before = self.is_stale or lost, self.image
        found = self.certified(outcome)
        if found is None:
            self.is_stale = True
            return
        if not stale and self.serial > 1:
            off, square = self.image - before, products(self.image, self.image)[1]
            self.drift = math.sqrt(products(off, off)[1] / square) if square else 0.0
        self.resyncs += stale
        self.is_stale, self.current = False, found
        self.best = self.current if self.best is None else self.current.better(self.best)
        check_first_objective(self.best.primal)
        self.gap_schedule.target = self.settings.gap_to_reach(self.best.primal)
        self.gap_schedule.certified(self.best.gap)

    def _pass(self) -> Asking:
        """Request the members' steps, and apply them with the line search."""
        asked = self.ask_pass()
        own = {
            "damping": self.aggregation.damping,
            "local_epochs": self.local_epochs,
            "seed": self.settings.random_seed,
        }
        outcome = yield from self._settle(replace(asked, parameters={**own, **asked.parameters}))
        arrays = outcome.arrays
        step = self.take(outcome)
        self.aggregation = self.aggregation.adapted(step.along, float(arrays["partitions"]))
        self.gamma = self.gamma_taken = step.length
        self.current = None
        self.gap_schedule.passed(float(arrays["visited"]), step.gap)
        if float(arrays["unset"]) > 0.0:
            self.is_stale = True
        return outcome

    # --- rounds -------------------------------------------------------------------------------

    def train(self, resume: Resume | None, *, waits: bool, certificates: int = 1) -> Trainer:
        """Run rounds until the model meets its tolerance or the driver stops the job.

        Parameters
        ----------
        waits : bool
            Whether the first certificates wait until nothing is absent.
        certificates : int
            How many are made before the first round.
        """
        if resume is not None:
            self._restore(resume)
        for _ in range(certificates):
            yield from self.certify(waits=waits)
        while True:
            reached = self._reached()
            if reached is not None:
                return reached
            proceed: Any = yield (yield from self._round())
            if not proceed:
                if self.current is None or self.is_stale:
                    yield from self.certify(waits=False)
                return self._model(converged=False, reason="stopped as asked")
            if isinstance(proceed, Proceed):
                self._tune(proceed.tuned)

    def _round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one pass, and the certificates that are due before and after it."""
        outcome = None
        start, reported, model = self.current, self.reported(), self._arrays()
        damping = self.aggregation.damping
        if not (yield from self.solve_here()):
            if self.is_stale:
                yield from self.certify()
                start, reported, model = self.current, self.reported(), self._arrays()
            outcome = yield from self._pass()
            # If certificates wait for absent chunks, they do so at the beginning of a round.
            if self.gap_schedule.is_due() and not (self.is_stale and self.waits):
                yield from self.certify()
        after = self.reported()
        measured = after if self.current is not None else None
        return RoundEnd(
            objective=None if reported is None else reported.primal,
            objective_kind="bound" if reported is not None and reported.is_bound else "exact",
            gap=None if reported is None else reported.known_gap,
            gap_is_bound=reported is not None and reported.is_bound,
            step=self.gamma_taken,
            stand_ins=self.stand_ins,
            extra={
                "primal": None if start is None else start.primal,
                "dual": None if start is None else start.columns()["dual"],
                "gap_best": None if self.best is None else self.best.known_gap,
                "gamma": self.gamma_taken,
                "damping": damping,
                "unset": 0.0 if outcome is None else float(outcome.arrays["unset"]),
                **self.history(outcome),
                "resyncs": self.resyncs,
                "drift": self.drift,
            },
            model=model,
            next_model=self._arrays(),
            next_objective=None if after is None or after.is_bound else after.primal,
            next_gap=None if measured is None else measured.known_gap,
            next_gap_is_bound=measured is not None and measured.is_bound,
            is_long=self.solves_here(),
            resume=self._resume(),
        )

    def _tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Apply settings that a policy has changed."""
        epochs, damping = tuned.get("local_epochs"), tuned.get("damping")
        if epochs is not None and float(epochs) > 0.0:
            self.local_epochs = float(epochs)
        if damping is not None and 0.0 < float(damping) <= 1.0:
            self.aggregation = replace(self.aggregation, damping=float(damping))

    def _arrays(self) -> Arrays:
        """Return the reported model, in the users' form."""
        return self.arrays(self.reported())

    # --- checkpoints --------------------------------------------------------------------------

    def _resume(self) -> Resume:
        """Return the state for continuing in another process, without the coordinates."""
        best, (arrays, values) = self.best, self.state()
        return Resume(
            arrays={**arrays, **({} if best is None else {"best_v": best.v})},
            values={
                **values,
                "serial": self.serial,
                "damping": self.aggregation.damping,
                "local_epochs": self.local_epochs,
                "resyncs": self.resyncs,
                "cadence": self.gap_schedule.state(),
                "best": None if best is None else {**best.columns(), "is_bound": best.is_bound},
            },
        )

    def _restore(self, resume: Resume) -> None:
        """Restore another process's state at the end of a round.

        No chunk has coordinates: the next certificate makes them from the model, and recomputes the
        model from them. Certificates stay valid: the optimum is the same.
        """
        values, self.is_stale = resume.values, True
        self.restore(resume)
        best = values["best"]
        if best is not None:
            dual = -math.inf if best["dual"] is None else best["dual"]
            self.best = Certificate(v=np.array(resume.arrays["best_v"]), **{**best, "dual": dual})
        self.serial, self.resyncs = int(values["serial"]), int(values["resyncs"])
        self.gap_schedule.restore(values["cadence"])
        self._tune({name: values[name] for name in ("damping", "local_epochs")})
        self._tune(resume.tuned)

    # --- the end ------------------------------------------------------------------------------

    def _reached(self) -> Model | None:
        """Return the model where the gap is small enough, or is rounding error; else None."""
        shown = self.reported()
        if shown is None:
            return None
        if shown.gap <= self.settings.gap_to_reach(shown.primal):
            return self._model(converged=True, reason=self.settings.gap_reason)
        if shown.is_at_float64_precision:
            return self._model(converged=True, reason="gap is zero to the precision of float64")
        return None

    def _model(self, *, converged: bool, reason: str) -> Model:
        shown = self.reported()
        is_bound = shown is not None and shown.is_bound
        return Model(
            arrays=self._arrays(),
            converged=converged,
            reason=reason,
            objective=None if shown is None or is_bound else shown.primal,
            gap=None if shown is None else shown.known_gap,
            gap_is_bound=is_bound,
        )
