"""Several classes by the algorithm of two: one model for each class against the rest, in one job.

Every class has a trainer and a solver of its own. The exchanges that the trainers ask for at the
same time become one exchange: one broadcast and one reduction for all classes. A round ends when
all classes have ended theirs; a class that has converged drops out of the following ones. The
objective and the certified gap of the job are the sums over the classes.

In the joined exchange the arrays of class k are named ``k/NAME``, and so are its parameters;
``k/operation`` is its operation, and ``classes`` lists the classes that still train. Arrays that
are equal for all classes are sent once, as ``all/NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Parallel,
    Resume,
    RoundEnd,
    Solver,
    Trainer,
    WarmingSolver,
    Work,
)
from elasticml.data.chunks.chunk import Chunk

_OPERATION: Final = "operation"
_CLASSES: Final = "classes"
_ALL: Final = "all/"
#: Prefix of the operation's name; the classes' operations follow.
_PREFIX: Final = "one_against_rest "
#: History columns that are no sums over classes.
_MEANS: Final = ("gamma", "damping")
_MAXIMA: Final = ("drift",)
#: What a checkpoint has of a class that has converged, besides its arrays.
_OF_MODEL: Final = ("converged", "reason", "objective", "gap", "gap_is_bound")


# --- the driver's half ------------------------------------------------------------------------


def train_classes(
    make: Callable[[int, Resume | None], Trainer], n: int, resume: Resume | None
) -> Trainer:
    """Train all classes in the rounds of one job.

    Parameters
    ----------
    make : callable
        (number of the class, its checkpoint) -> its trainer.
    n : int
        Number of classes.
    resume : Resume, optional
        Checkpoint of the job.

    Returns
    -------
    Trainer
        Its model has ``coef`` (n, d) and ``intercept`` (n,).
    """
    models: dict[int, Model] = {}
    steps: dict[int, Exchange | RoundEnd] = {}
    trainers: dict[int, Trainer] = {}

    def advance(k: int, answer: Any) -> None:
        try:
            steps[k] = trainers[k].send(answer)
        except StopIteration as end:
            models[k] = end.value
            steps.pop(k, None)

    for k in range(n):
        own, done = _part_of_resume(resume, k)
        if done is None:
            trainers[k] = make(k, own)
            advance(k, None)
        else:
            models[k] = done
    while steps:
        asked = {k: step for k, step in steps.items() if isinstance(step, Exchange)}
        if asked:
            kind = next(iter(asked.values())).reduce
            asked = {k: each for k, each in asked.items() if each.reduce == kind}
            outcome = yield _joined_exchange(asked, list(steps))
            for k in asked:
                advance(k, _part_of_outcome(outcome, k))
        else:
            ends = {k: step for k, step in steps.items() if isinstance(step, RoundEnd)}
            proceed = yield _joined_end(ends, models, n)
            for k in ends:
                advance(k, proceed)
    return _joined_model([models[k] for k in range(n)])


def _joined_exchange(asked: Mapping[int, Exchange], training: Sequence[int]) -> Exchange:
    first = next(iter(asked.values()))
    parameters: dict[str, Any] = {_CLASSES: ",".join(map(str, training))}
    model: dict[str, Any] = {}
    for k, each in asked.items():
        parameters[f"{k}/{_OPERATION}"] = each.operation
        parameters |= {f"{k}/{name}": value for name, value in each.parameters.items()}
    for name in dict.fromkeys(name for each in asked.values() for name in each.model):
        arrays = {k: each.model[name] for k, each in asked.items() if name in each.model}
        one = next(iter(arrays.values()))
        if len(arrays) == len(asked) and all(np.array_equal(one, a) for a in arrays.values()):
            model[_ALL + name] = one
        else:
            model |= {f"{k}/{name}": array for k, array in arrays.items()}
    return Exchange(
        # A member that takes far longer than others for one operation counts as stuck.
        operation=_PREFIX + " ".join(sorted({each.operation for each in asked.values()})),
        model=model,
        returns={
            f"{k}/{name}": shape
            for k, each in asked.items()
            for name, shape in each.returns.items()
        },
        parameters=parameters,
        reduce=first.reduce,
        keep=any(each.keep for each in asked.values()),
        require=("everybody" if any(e.require == "everybody" for e in asked.values()) else "any"),
        seal=any(each.seal for each in asked.values()),
        phase=first.phase,
        is_long=any(each.is_long for each in asked.values()),
    )


def _part_of_outcome(outcome: Outcome, k: int) -> Outcome:
    anchor = outcome.anchor
    if anchor is not None:
        arrays = _named(anchor.arrays, k)
        anchor = replace(anchor, arrays=arrays) if arrays else None
    return replace(outcome, arrays=_named(outcome.arrays, k), anchor=anchor)


def _joined_end(ends: Mapping[int, RoundEnd], models: Mapping[int, Model], n: int) -> RoundEnd:
    """Return the end of a round; classes that have converged count with their models."""
    each = [ends[k] if k in ends else _end_of(models[k]) for k in range(n)]
    steps = [end.step for end in each if end.step is not None]
    resumes = {k: end.resume for k, end in ends.items()}
    return RoundEnd(
        objective=_sum([end.objective for end in each]),
        objective_kind="bound" if any(end.objective_kind == "bound" for end in each) else "exact",
        gap=_sum([end.gap for end in each]),
        gap_is_bound=any(end.gap_is_bound for end in each),
        step=sum(steps) / len(steps) if steps else None,
        stand_ins=max(end.stand_ins for end in each),
        extra={**_columns(ends, each), "classes_training": len(ends)},
        model=_stacked([end.model for end in each]),
        next_model=_stacked([end.next_model for end in each]),
        next_objective=_sum([end.next_objective for end in each]),
        next_gap=_sum([end.next_gap for end in each]),
        next_gap_is_bound=any(end.next_gap_is_bound for end in each),
        resume=None if None in resumes.values() else _joined_resume(resumes, models),
        is_long=any(end.is_long for end in each),
    )


def _end_of(model: Model) -> RoundEnd:
    """Return a round in which a class that has converged kept its model."""
    objective, gap = model.objective, model.gap
    dual = None if objective is None or gap is None else objective - gap
    return RoundEnd(
        objective=objective,
        gap=gap,
        extra={"primal": objective, "dual": dual, "gap_best": gap},
        model=model.arrays,
        next_model=model.arrays,
        next_objective=objective,
        next_gap=gap,
    )


def _columns(training: Mapping[int, RoundEnd], each: Sequence[RoundEnd]) -> dict[str, Any]:
    """Return the history columns of all classes: sums, means or maxima."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for end in training.values() for name in end.extra):
        values: list[Any] = [end.extra[name] for end in each if name in end.extra]
        known_values = [value for value in values if value is not None]
        if name in _MEANS or name in _MAXIMA:
            join = max if name in _MAXIMA else lambda them: sum(them) / len(them)
            columns[name] = join(known_values) if known_values else None
        else:
            columns[name] = _sum(values)
    return columns


def _joined_model(models: Sequence[Model]) -> Model:
    reasons = list(dict.fromkeys(model.reason for model in models))
    return Model(
        arrays=_stacked([model.arrays for model in models]),
        converged=all(model.converged for model in models),
        reason=f"{' or '.join(reasons)}, in each of {len(models)} classes",
        objective=_sum([model.objective for model in models]),
        gap=_sum([model.gap for model in models]),
        gap_is_bound=any(model.gap_is_bound for model in models),
        extra={},
    )


def _stacked(arrays: Sequence[Arrays]) -> Arrays:
    """Return the arrays of all classes; none if one class has none."""
    names = arrays[0] if all(arrays) else ()
    return {name: np.concatenate([each[name] for each in arrays]) for name in names}


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _named(arrays: Mapping[str, Any], k: int) -> dict[str, Any]:
    start = f"{k}/"
    return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}


def _joined_resume(resumes: Mapping[int, Any], models: Mapping[int, Model]) -> Resume:
    parts = {k: resume.arrays for k, resume in resumes.items()}
    parts |= {k: model.arrays for k, model in models.items()}
    return Resume(
        arrays={f"{k}/{name}": a for k, arrays in parts.items() for name, a in arrays.items()},
        values={
            _CLASSES: {str(k): dict(resume.values) for k, resume in resumes.items()},
            "models": {
                str(k): {name: getattr(model, name) for name in _OF_MODEL}
                for k, model in models.items()
            },
        },
    )


def _part_of_resume(resume: Resume | None, k: int) -> tuple[Resume | None, Model | None]:
    """Return the checkpoint of a class, or its model if it had converged."""
    if resume is None:
        return None, None
    arrays = _named(resume.arrays, k)
    if str(k) in resume.values["models"]:
        return None, Model(arrays=arrays, **resume.values["models"][str(k)])
    values = resume.values[_CLASSES][str(k)]
    return Resume(arrays=arrays, values=values, tuned=resume.tuned), None


# --- the member's half ------------------------------------------------------------------------


class ClassesSolver:
    """Computes the parts of joined exchanges, each with the solver of its class.

    Parameters
    ----------
    solvers : sequence of Solver
        One for each class.
    """

    def __init__(self, solvers: Sequence[Solver]) -> None:
        self._solvers = dict(enumerate(solvers))

    def warm_up(self, parallel: Parallel) -> None:
        """Do what the solver of any class needs for its first exchange."""
        first = self._solvers[0]
        if isinstance(first, WarmingSolver):
            first.warm_up(parallel)

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays of all classes in the exchange, over exactly these chunks."""
        training = {int(k) for k in str(work.parameters[_CLASSES]).split(",")}
        # A class that has converged keeps no chunks.
        self._solvers = {k: s for k, s in self._solvers.items() if k in training}
        shared = {
            name[len(_ALL) :]: array for name, array in work.model.items() if name.startswith(_ALL)
        }
        out: dict[str, Any] = {}
        for k, solver in self._solvers.items():
            parameters = _named(work.parameters, k)
            if not parameters:
                continue
            part = replace(
                work,
                operation=str(parameters.pop(_OPERATION)),
                model={**shared, **_named(work.model, k)},
                parameters=parameters,
                returns=_named(work.returns, k),
            )
            computed = solver.compute(part, chunks, parallel)
            out |= {f"{k}/{name}": array for name, array in computed.items()}
        return out
