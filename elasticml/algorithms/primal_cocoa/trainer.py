"""The driver's half of primal CoCoA: adds up members' steps, and certifies gaps.

Members own columns; what goes down is the residual, and what comes up is how their steps change the
predictions. A round is one ``pass`` and, where it is due, one ``certify``, in which the predictions
are made anew from the coefficients; so they are at the beginning of a round whenever columns have
come or gone. What nobody has any more is begun again from the last certificate's model.

Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), "CoCoA: a general framework", with the
features as data (its section 4); line search and damping are those of our study of CoCoA.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Resume,
    RoundEnd,
    Scalar,
    Trainer,
)
from elasticml.algorithms.certified_rounds import rounds_of
from elasticml.algorithms.cocoa.cadence import Cadence
from elasticml.algorithms.cocoa.certificate import Certificate
from elasticml.algorithms.cocoa.line_search import Aggregation, Along
from elasticml.algorithms.cocoa.settings import read_absent
from elasticml.algorithms.primal_cocoa import beginning, messages
from elasticml.algorithms.primal_cocoa.frozen import Known
from elasticml.algorithms.primal_cocoa.problem import Dual, Problem
from elasticml.algorithms.primal_cocoa.settings import (
    Settings,
    check_data,
    read_settings,
)
from elasticml.algorithms.primal_cocoa.solver import radius_of
from elasticml.data.source import DataFacts

F64 = NDArray[np.float64]
#: Best length of a step from which it is taken whole, at more than four fifths of the gain: what
#: members have set to zero is zero then.
WHOLE: Final = 0.7
#: Changes of the objective, relative to it, that rounding hides.
NOISE: Final = 8.0 * float(np.finfo(np.float64).eps)
_Steps = Generator[Exchange, Outcome, Any]


def make_trainer(
    settings: Mapping[str, Any], facts: DataFacts, absent: str, resume: Resume | None = None
) -> Trainer:
    """Make the trainer of a job.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section, see ``settings.Settings``.
    facts : DataFacts
        Of data by columns.
    absent : str
        "auto" | "reload" | "stall" | "freeze".
    resume : Resume, optional
        Of the round after which to go on.

    Raises
    ------
    ConfigError
        When a setting is unknown or out of range, or does not fit the data.
    """
    checked = read_settings(settings)
    rule = read_absent(absent, "primal_cocoa")
    check_data(facts)
    return _train(checked, facts, rule == "freeze", resume)


def _train(settings: Settings, facts: DataFacts, freezes: bool, resume: Resume | None) -> Trainer:
    problem, columns = yield from beginning.learn(settings, facts)
    first = beginning.first_coef(settings, columns.d)
    descent = _Descent(
        settings=settings,
        problem=problem,
        columns=columns,
        cadence=Cadence(every=settings.gap_every, target=settings.tolerance, rows=columns.d),
        aggregation=Aggregation(gamma=None),
        known=Known(lengths=np.sqrt(columns.norms), coef=first),
        residual=problem.y,
        local_epochs=settings.local_epochs,
        waits=True,
    )
    if resume is not None:
        descent.go_on(resume)
    yield from descent.certify()
    if descent.known.coef.any():
        # Only now is it known what residual goes with the model that this begins with.
        yield from descent.certify()
    descent.waits = not freezes
    return (yield from rounds_of(descent))


@dataclass(slots=True, kw_only=True)
class _Descent:
    """The residual between rounds, and what is known of the model."""

    settings: Settings
    problem: Problem
    columns: beginning.Columns
    cadence: Cadence
    aggregation: Aggregation
    known: Known
    #: (n,) ``y - X w`` unless ``is_stale``.
    residual: F64
    local_epochs: float
    #: Certificates wait until no column is absent.
    waits: bool
    serial: int = 0
    #: What members add of their last step when they hear of it next.
    gamma: float = 0.0
    gamma_taken: float = 0.0
    #: Columns came or went: the residual and the coefficients do not belong together.
    is_stale: bool = False
    #: The next exchange closes the open group.
    seal: bool = False
    groups: tuple[Any, ...] = ()
    current: Certificate | None = None
    best: Certificate | None = None
    #: What the last certificate's residual proves; None when columns have come or gone since.
    dual: Dual | None = None
    alive: float = 0.0
    resyncs: int = 0
    #: Relative distance of the residual from the one made anew, at the last certificate in which
    #: they should have been the same.
    drift: float | None = None

    # --- exchanges ----------------------------------------------------------------------------

    def certify(self, *, waits: bool | None = None) -> _Steps:
        """Take the objective, a bound of it from below, and the residual anew."""
        waits = self.waits if waits is None else waits
        sent = self.residual
        outcome: Outcome = yield messages.certify_exchange(
            sent,
            self.problem.roots,
            self.known.coef,
            {
                **self._settling(),
                "parts": not waits,
                "centred": self.settings.intercept,
            },
            require="everybody" if waits else "any",
            seal=self._take_seal(),
        )
        self.gamma = 0.0
        self._note(outcome)
        arrays = {name: np.asarray(values) for name, values in outcome.arrays.items()}
        absent = outcome.absent_examples > 0
        slack = self.known.take(sent, arrays, arrays["here"] > 0.5 if absent else None)
        assert self.known.image is not None
        # Coefficients may have been lost since the last pass without anybody being missing now.
        stale = self.is_stale or float(arrays["unset"]) > 0.0
        self.residual = self.problem.y - self.known.image
        if not stale:
            norm = float(np.linalg.norm(self.problem.y))
            self.drift = float(np.linalg.norm(self.residual - sent)) / norm if norm else 0.0
        self.resyncs += stale and self.serial > 1
        self.is_stale = False
        coef, total = self.known.coef, self.problem.total
        self.dual = self.problem.dual(coef, sent, self.known.slopes, slack)
        self.current = beginning.check_finite(
            Certificate(
                primal=self.problem.primal(coef, self.known.image) / total,
                dual=self.dual.value / total,
                v=coef,
            )
        )
        self.best = self.current if self.best is None else self.current.better(self.best)
        self.cadence.certified(self.best.gap)

    def _pass(self) -> Generator[Exchange, Outcome, Outcome]:
        """Have members take their steps, and follow them as far as it pays."""
        problem = self.problem
        outcome = yield messages.pass_exchange(
            self.residual,
            problem.roots,
            {
                **self._settling(),
                "damping": self.aggregation.damping,
                "local_epochs": self.local_epochs,
                "seed": self.settings.seed,
                "a1": problem.a1,
                "a2": problem.a2,
                **self._sphere(),
            },
            seal=self._take_seal(),
        )
        arrays = outcome.arrays
        dv, l1, inner = (np.asarray(arrays[name]) for name in ("dv", "l1", "inner"))
        # The L1 norm is convex: along the step it stays below the line between both ends.
        along = Along(
            slope=float(self.residual @ dv)
            - problem.a2 * float(inner[0])
            - problem.a1 * float(l1[1]),
            curvature=float(dv @ dv) + problem.a2 * float(inner[1]),
        )
        # The gap falls with the step, the objective with its square: its last digits say nothing
        # of steps that still matter.
        noise = NOISE * (float(self.residual @ self.residual) + problem.a1 * float(l1[0]))
        if max(abs(along.slope), along.curvature) <= noise:
            self.gamma = 1.0
        else:
            self.gamma = 1.0 if along.best >= WHOLE else max(along.best, 0.0)
            self.aggregation = self.aggregation.adapted(along, float(arrays["partitions"]))
        self.gamma_taken = self.gamma
        self.residual = self.residual - self.gamma * dv
        self.current = self.dual = None
        self.alive = float(arrays["alive"])
        self.cadence.passed(float(arrays["visited"]))
        if float(arrays["unset"]) > 0.0:
            self.is_stale = True
        self._note(outcome)
        return outcome

    def _sphere(self) -> dict[str, Scalar]:
        """Say where every solution's residual must be, where the last exchange has told that."""
        if self.dual is None or self.best is None or not self.settings.screen:
            return {"share": 0.0, "radius": 0.0}
        gap = self.best.primal * self.problem.total - self.dual.scaled
        return {"share": self.dual.share, "radius": radius_of(gap)}

    def _settling(self) -> dict[str, Scalar]:
        """Give an exchange its number, and say what members make of their last step."""
        self.serial += 1
        return {"serial": self.serial, "settle": self.serial - 1, "gamma": self.gamma}

    def _take_seal(self) -> bool:
        seal, self.seal = self.seal, False
        return seal

    def _note(self, outcome: Outcome) -> None:
        """Take in who is missing."""
        changed = outcome.absent != self.groups or outcome.opened is not None
        self.groups = outcome.absent
        self.seal = self.seal or outcome.opened is not None
        if changed or (outcome.absent_examples and self.waits):
            self.is_stale = True

    # --- rounds -------------------------------------------------------------------------------

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """One pass, and before and after it the certificates that are due."""
        if self.is_stale:
            yield from self.certify()
        began, known, model = self.current, self.best, self._arrays()
        damping = self.aggregation.damping
        outcome = yield from self._pass()
        # Whoever waits for absent columns does so at the beginning of the next round.
        if self.cadence.is_due() and not (self.is_stale and self.waits):
            yield from self.certify()
        after, measured = self.best, self.current
        return RoundEnd(
            objective=None if known is None else known.primal,
            gap=None if known is None else known.gap,
            step=self.gamma_taken,
            extra={
                "primal": None if began is None else began.primal,
                "dual": None if began is None else began.dual,
                "gap_best": None if after is None else after.gap,
                "gamma": self.gamma_taken,
                "damping": damping,
                "unset": float(outcome.arrays["unset"]),
                "visited": float(outcome.arrays["visited"]),
                "alive": self.alive,
                "support": None if after is None else int(np.count_nonzero(after.v)),
                "resyncs": self.resyncs,
                "drift": self.drift,
            },
            model=model,
            next_model=self._arrays(),
            next_objective=None if after is None else after.primal,
            next_gap=None if measured is None or after is None else after.gap,
            resume=beginning.resume_of(
                self.known.coef,
                self.best,
                self.cadence,
                {
                    "serial": self.serial,
                    "damping": self.aggregation.damping,
                    "local_epochs": self.local_epochs,
                    "resyncs": self.resyncs,
                },
            ),
        )

    def go_on(self, resume: Resume) -> None:
        """Stand where another process stood at its last certificate; what it proved stays so."""
        values = resume.values
        self.known.coef = np.array(resume.arrays["coef"])
        self.best = beginning.certificate_of(resume)
        self.serial, self.resyncs = int(values["serial"]), int(values["resyncs"])
        self.aggregation = self.aggregation.damped(float(values["damping"]))
        self.local_epochs = float(values["local_epochs"])
        beginning.set_cadence(self.cadence, resume)
        self.is_stale = True
        self.tune(resume.tuned)

    def tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Take over settings that a policy has changed."""
        epochs, damping = tuned.get("local_epochs"), tuned.get("damping")
        if epochs is not None and float(epochs) > 0.0:
            self.local_epochs = float(epochs)
        if damping is not None and 0.0 < float(damping) <= 1.0:
            self.aggregation = self.aggregation.damped(float(damping))

    def _arrays(self) -> Arrays:
        """Return the model that is reported, as users know it."""
        return self.columns.arrays(self.known.coef if self.best is None else self.best.v)

    # --- the end ------------------------------------------------------------------------------

    def reached(self) -> Model | None:
        """Stop where the gap is small enough, or nothing of it is left but rounding."""
        if self.best is None:
            return None
        if self.best.gap <= self.settings.tolerance:
            return self._model(converged=True, reason=f"gap <= {self.settings.tolerance:g}")
        if self.best.is_exact_as_can_be:
            return self._model(converged=True, reason="gap is zero to the precision of float64")
        return None

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Make the model when the job stops, certified as well as it can be."""
        if self.current is None or self.is_stale:
            yield from self.certify(waits=False)
        return self._model(converged=False, reason="stopped as asked")

    def _model(self, *, converged: bool, reason: str) -> Model:
        assert self.best is not None
        return Model(
            arrays=self._arrays(),
            converged=converged,
            reason=reason,
            objective=self.best.primal,
            gap=self.best.gap,
        )
