"""The periodic reports of a free-running job: their exchanges, and a member's share of them.

``async_report``
    Down: a state (the start, or the mean of the last report). Members evaluate the objective there
    if ``evaluate`` is set, and start from it if they have no peer to get a state from. Up: the
    addends of the mean, the progress of loops, and their counters since the last report.
``async_finish``
    The same, but loops stop, and the member with the lowest id adds its own state as ``one``.
``async_value``
    Down: several states. Up: the objective's sum at each of them.

Only ``async_finish`` stops loops: a report copies the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, AsyncPlan, Problem
from elasticml.algorithms.async_sgd.worker_loop import COUNTS
from elasticml.algorithms.base import Arrays as Named
from elasticml.algorithms.base import Exchange, Operation, Parallel, Work, operation_of
from elasticml.algorithms.parallel import runs
from elasticml.data.chunks.chunk import Chunk

REPORT: Final = "async_report"
FINISH: Final = "async_finish"
VALUE: Final = "async_value"
#: Prefixes of array names: of a state sent or reduced, and of the first member's own state.
STATE, ONE = "state.", "one."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """A member's report on its loop."""

    #: A copy; None before the start.
    state: Arrays | None
    #: Counters since the last report, see ``COUNTS``.
    counts: NDArray[np.float64]
    batch: float
    has_ended: bool
    #: The member has the lowest id of all members it knows.
    is_first: bool


class RunningLoop(Protocol):
    """A solver's interface to its member's loop."""

    def standing(self, start: Mapping[str, NDArray[np.float64]], begin: bool) -> LoopReport:
        """Return a report on the loop.

        Parameters
        ----------
        start : mapping
            A state to start from if the loop has none and there is no peer to get one from.
        begin : bool
            Start from it in any case.
        """
        ...

    def limit(self, passes: float) -> None:
        """Set the number of passes after which the loop stops."""
        ...

    def stop(self) -> None:
        """Stop the loop permanently."""
        ...


def report_exchange(
    problem: Problem,
    start: Arrays,
    *,
    begin: bool,
    evaluate: bool,
    seal: bool,
    passes: float | None,
) -> Exchange:
    """Return the exchange of a report."""
    parameters: dict[str, float | bool] = {"begin": begin, "evaluate": evaluate}
    if passes is not None:
        parameters["passes"] = passes
    return Exchange(
        operation=REPORT,
        model=_named(STATE, start),
        returns=_returns(problem),
        parameters=parameters,
        seal=seal,
        paced=not begin,
    )


def finish_exchange(problem: Problem, start: Arrays, *, seal: bool) -> Exchange:
    """Return the exchange that stops all loops and collects the first member's state."""
    one = {ONE + name: tuple(shape) for name, shape in problem.shapes().items()}
    return Exchange(
        operation=FINISH,
        model=_named(STATE, start),
        returns={**_returns(problem), **one, "ones": ()},
        parameters={"begin": False, "evaluate": False},
        seal=seal,
    )


def value_exchange(states: Sequence[Arrays], *, seal: bool) -> Exchange:
    """Return the exchange for the objective at several states."""
    model = {f"{k}.{name}": array for k, s in enumerate(states) for name, array in s.items()}
    return Exchange(
        operation=VALUE,
        model=model,
        returns={"values": (len(states),), "rows": ()},
        parameters={"states": len(states)},
        seal=seal,
    )


def _returns(problem: Problem) -> dict[str, tuple[int, ...]]:
    shapes = {STATE + name: tuple(shape) for name, shape in problem.shapes().items()}
    numbers = dict.fromkeys(("running", "ended", "batch", "value", "rows"), ())
    return {**shapes, **numbers, "counts": (len(COUNTS),)}


def _named(prefix: str, arrays: Mapping[str, NDArray[np.float64]]) -> Named:
    return {prefix + name: np.asarray(a, np.float64, order="C") for name, a in arrays.items()}


def state_in(arrays: Mapping[str, Any], prefix: str = STATE) -> Arrays:
    """Return the arrays of a state, without the prefix of their names."""
    n = len(prefix)
    return {name[n:]: array for name, array in arrays.items() if name.startswith(prefix)}


class ReportSolver:
    """A member's half: reports beside its loop, and the exchanges of the initialization.

    Parameters
    ----------
    plan : Plan
        The job's definition; the owner of the loop sets ``running``.
    """

    #: For the training loop, which runs in another thread.
    waits = True

    def __init__(self, plan: AsyncPlan) -> None:
        self.plan = plan
        #: The loop; set once before the first exchange.
        self.running: RunningLoop | None = None

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
        """Compute an exchange; see :class:`elasticml.algorithms.base.Solver`."""
        own: dict[str, Operation] = {
            REPORT: self._report,
            FINISH: self._report,
            VALUE: self._values,
        }
        return operation_of(work, {**self.plan.operations, **own})(work, chunks, parallel)

    def _report(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
        running, problem = self.running, self.plan.loop.problem
        assert running is not None, "a report was requested before the loop existed"
        start = state_in(work.model)
        if "passes" in work.parameters:
            running.limit(float(work.parameters["passes"]))
        if work.operation == FINISH:
            running.stop()
        standing = running.standing(start, bool(work.parameters["begin"]))
        state, evaluates = standing.state, bool(work.parameters["evaluate"])
        blank = {name: np.zeros(shape) for name, shape in problem.shapes().items()}
        answer = {
            **_named(STATE, blank if state is None else problem.addends(state)),
            "running": np.array(float(state is not None)),
            "ended": np.array(float(state is not None and standing.has_ended)),
            "batch": np.array(standing.batch if state is not None else 0.0),
            "value": np.array(self._value(start, chunks, parallel) if evaluates else 0.0),
            "rows": np.array(_rows(chunks) if evaluates else 0.0),
            "counts": standing.counts,
        }
        if work.operation == FINISH:
            mine = state if state is not None and standing.is_first else None
            # The result of this member alone: a state may have more arrays than a message.
            own = None if mine is None else problem.pooled(problem.addends(mine), 1)
            answer |= _named(ONE, blank if own is None else {name: own[name] for name in blank})
            answer["ones"] = np.array(float(mine is not None))
        return answer

    def _values(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
        states = [state_in(work.model, f"{k}.") for k in range(int(work.parameters["states"]))]
        values = np.array([self._value(s, chunks, parallel) for s in states])
        return {"values": values, "rows": np.array(_rows(chunks))}

    def _value(self, state: Arrays, chunks: Sequence[Chunk], parallel: Parallel) -> float:
        def run(part: Sequence[Chunk]) -> float:
            return self.plan.loop.problem.value(state, part)

        return float(sum(parallel.map(run, runs(chunks, parallel.n_threads))))


def _rows(chunks: Sequence[Chunk]) -> float:
    return float(sum(chunk.n_rows for chunk in chunks))
