"""Tools to develop and test an algorithm of your own: run it in a debugger, and check its rules.

:func:`run_here` trains in the calling thread, so that breakpoints and tracebacks work as usual.
:func:`check_algorithm` tests what elasticml relies on when members leave, return and exchange
chunks, and then trains in the simulator with kills, notices and returns.

Examples
--------
>>> run = em.testing.run_here(em.CoCoA(), em.from_arrays(X, y), rounds=3, members=2)
>>> len(run.history)
3
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import (
    Algorithm,
    Arrays,
    Exchange,
    Model,
    Outcome,
    Proceed,
    Resume,
    RoundEnd,
    Solver,
    Work,
)
from elasticml.algorithms.local_runner import answer_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm as algorithm_named
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats, merge_summaries
from elasticml.data.source import Source, read_block, resolve_chunk_bytes, survey_all
from elasticml.errors import ConfigError, fault_of
from elasticml.job import Job
from elasticml.jobs.rpc import JobOutcome
from elasticml.jobs.simulated_job import SimulatedJob
from elasticml.specification.algorithms import ImportedAlgorithm
from elasticml.specification.sections import Fault, Members, Stop
from elasticml.story.history import HistoryRow
from elasticml.story.soundness import miscounted, unsound
from elasticml.story.summary import summary_from_json

#: Rounds of a check by default: enough for a loss, a return and rounds after it.
ROUNDS: Final = 8
#: Chunks of a check: small ones, so that a small data set has many.
CHUNKS_PER_MEMBER: Final = 4
CHUNK_BYTES_MIN: Final = 1024

States = dict[Any, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """The result of :func:`run_here`.

    Attributes
    ----------
    model : Model or None
        What the trainer returned; None if it was stopped after ``rounds``.
    arrays : mapping of ndarray
        The final model.
    history : list of dict
        ``round`` and ``objective`` of each round, and the trainer's own columns.
    facts : DatasetStats
        Statistics of the data.
    """

    model: Model | None
    arrays: Arrays = field(repr=False)
    history: list[dict[str, Any]]
    facts: DatasetStats = field(repr=False)


def run_here(
    algorithm: Algorithm | ImportedAlgorithm,
    data: Source,
    *,
    settings: Mapping[str, Any] | None = None,
    rounds: int = 10,
    members: int = 1,
    chunk_size: int | None = None,
) -> LocalRun:
    """Train in the calling thread, without a cluster: for a debugger.

    Parameters
    ----------
    algorithm : Algorithm or ImportedAlgorithm
        An ``Algorithm`` may be defined anywhere, such as in a notebook.
    data : Source
        From a reader, such as ``em.read_csv`` or ``em.from_arrays``.
    settings : mapping, optional
        The settings of an ``Algorithm``; an ``ImportedAlgorithm`` has its own.
    rounds : int
        Maximum number of rounds.
    members : int
        Number of solvers, each with its share of the chunks.
    chunk_size : int, optional
        Bytes of a chunk.

    Returns
    -------
    LocalRun

    Raises
    ------
    ConfigError, DataError
        When the algorithm cannot be imported, or the data cannot be read.
    Exception
        Whatever the trainer or the solver raises, with its traceback.
    """
    own, values = _resolved(algorithm, settings)
    facts, chunks = _load(data, chunk_size, members)
    bench = _Bench(own, values, facts, _deal(chunks, members))
    return bench.run(rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule and whether the algorithm keeps it."""

    name: str
    #: What was violated; "" if nothing was.
    problem: str
    #: What was compared, or why the rule does not apply.
    detail: str = ""

    def __str__(self) -> str:
        """Return one line."""
        mark = "FAILED" if self.problem else "ok"
        return f"{mark:6}  {self.name}: {self.problem or self.detail}"


def check_algorithm(
    algorithm: ImportedAlgorithm,
    data: Source,
    *,
    rounds: int = ROUNDS,
    members: int = 4,
    seed: int = 0,
) -> list[Check]:
    """Check that an algorithm is elastic, and raise an AssertionError that lists what is not.

    The rules are those that elasticml relies on: partials have the declared shapes and finite
    values; ``compute`` changes neither the model nor a chunk's body; what it needs to know of a
    chunk later is in ``chunk.state``, so that the chunk's next owner computes the same bits; no
    chunks contribute nothing; a trainer that can resume continues with the same bits. Then the
    job runs in the simulator, on its real machines, with kills, a notice and returns, twice: it
    must end, with finite objectives, each example in a sum once or absent from it, no gap that
    another round's objective refutes, and the same story both times.

    Parameters
    ----------
    algorithm : ImportedAlgorithm
        The algorithm as a job would name it.
    data : Source
        A small data set: it is read into this process and trained on several times.
    rounds : int
        Rounds of each run, at least 6.
    members : int
        Members of the simulated job, at least 3.
    seed : int
        Of the simulated times.

    Returns
    -------
    list of Check
        One entry a rule, all kept.

    Raises
    ------
    AssertionError
        When a rule is violated.
    ConfigError, DataError
        When the arguments are invalid.
    """
    if rounds < 6 or members < 3:
        raise ConfigError(
            f"got rounds={rounds} and members={members}, wanted at least 6 and 3: members are "
            "lost in round 2, return in round 4, and one more leaves"
        )
    own, values = _resolved(algorithm, None)
    total = sum(block.nbytes for block in data.blocks())
    size = max(CHUNK_BYTES_MIN, total // (CHUNKS_PER_MEMBER * members))
    facts, chunks = _load(data, size, members)
    if len(chunks) < 2 * members:
        raise ConfigError(
            f"the data make {len(chunks)} chunks, wanted at least {2 * members} for {members} "
            "members; give more rows"
        )
    job = Job(
        algorithm,
        data,
        stop=Stop(rounds=rounds),
        members=Members(start=members, min=1),
        chunk_size=size,
        seed=seed,
        simulate={"seed": seed},
    )
    checks = _kept(_check_partials(own, values, facts, chunks, members, rounds))
    checks += _kept([_check_resume(own, values, facts, chunks, members, rounds)])
    return checks + _kept(_check_simulated(job, members, facts.n_rows))


def _kept(checks: list[Check]) -> list[Check]:
    failed = [str(check) for check in checks if check.problem]
    if failed:
        raise AssertionError("the algorithm is not elastic:\n" + "\n".join(failed))
    return checks


# --- a run in this thread ---------------------------------------------------------------------


def _resolved(
    algorithm: Algorithm | ImportedAlgorithm, settings: Mapping[str, Any] | None
) -> tuple[Algorithm, dict[str, Any]]:
    if isinstance(algorithm, Algorithm):
        return algorithm, dict(settings or {})
    if settings is not None:
        raise ConfigError("got settings twice; an ImportedAlgorithm has its own")
    section = algorithm.section()
    return algorithm_named(section.pop("name")), section


def _load(data: Source, chunk_size: int | None, members: int) -> tuple[DatasetStats, list[Chunk]]:
    """Read all blocks; return the statistics and the chunks."""
    data = survey_all(data)
    size = resolve_chunk_bytes(data, chunk_size, members)
    read = [read_block(data, block.index, size, members) for block in data.blocks()]
    facts = merge_summaries([summary for _, summary in read])
    return facts, [chunk for some, _ in read for chunk in some]


def _deal(chunks: Sequence[Chunk], members: int) -> list[list[Chunk]]:
    return [list(chunks[k::members]) for k in range(members)]


class _Bench:
    """A trainer and its solvers, one exchange after the other."""

    def __init__(
        self,
        own: Algorithm,
        settings: Mapping[str, Any],
        facts: DatasetStats,
        shares: Sequence[Sequence[Chunk]],
        resume: Resume | None = None,
    ) -> None:
        self.own, self.settings, self.facts = own, settings, facts
        self.shares = [list(share) for share in shares]
        more = {} if resume is None else {"resume": resume}
        self._trainer = own.trainer(dict(settings), facts, "stall", **more)
        self.solvers: list[Solver] = [own.solver(dict(settings), facts) for _ in shares]
        #: Called with each computation: solver's number, work, partial.
        self.watch: Callable[[int, Work, Arrays], None] | None = None
        self.arrays: Arrays = {}
        self._serial = 0
        self._go_on = True

    def run(self, rounds: int) -> LocalRun:
        history: list[dict[str, Any]] = []
        for end in self.rounds():
            if isinstance(end, Model):
                return LocalRun(model=end, arrays=end.arrays, history=history, facts=self.facts)
            history.append({"round": len(history), "objective": end.objective, **end.extra})
            self._go_on = len(history) < rounds  # a trainer that stops returns its model
        return LocalRun(model=None, arrays=self.arrays, history=history, facts=self.facts)

    def rounds(self) -> Iterator[RoundEnd | Model]:
        """Yield the end of each round, and the model at the trainer's end."""
        answer: Any = None
        while True:
            try:
                asked = self._trainer.send(answer)
            except StopIteration as end:
                self.arrays = end.value.arrays
                yield end.value
                return
            if isinstance(asked, RoundEnd):
                self.arrays = asked.next_model or asked.model or self.arrays
                yield asked
                answer = Proceed(go_on=self._go_on)
            else:
                answer = self._exchange(asked)

    def _exchange(self, asked: Exchange) -> Outcome:
        self._serial += 1

        def compute(work: Work) -> Arrays:
            total: dict[str, Any] = {}
            merge = np.maximum if asked.reduce == "max" else np.add
            for k, (solver, share) in enumerate(zip(self.solvers, self.shares, strict=True)):
                partial = solver.compute(work, share, Serial())
                if self.watch is not None:
                    self.watch(k, work, partial)
                for name in work.returns:
                    array = np.asarray(partial[name], dtype=np.float64)
                    total[name] = merge(total[name], array) if name in total else array.copy()
            return total

        return answer_locally(asked, self._serial, compute, self.facts.n_rows)


# --- the rules --------------------------------------------------------------------------------


def _states_of(chunks: Sequence[Chunk]) -> States:
    return {chunk.id: copy.deepcopy(chunk.state) for chunk in chunks}


def _with_states(chunks: Sequence[Chunk], states: States) -> list[Chunk]:
    """Return new chunks with the same bodies and copies of states, as a chunk's next owner has."""
    copies = []
    for chunk in chunks:
        twin = Chunk(chunk.id, chunk.body)
        twin.state = copy.deepcopy(states.get(chunk.id, {}))
        copies.append(twin)
    return copies


class _Rules:
    """Checks every computation of a run."""

    def __init__(
        self, own: Algorithm, settings: Mapping[str, Any], facts: DatasetStats, bench: _Bench
    ) -> None:
        self._own, self._settings, self._facts, self._bench = own, settings, facts, bench
        self.problems: dict[str, str] = {}
        self.computations = 0
        self._before = [_states_of(share) for share in bench.shares]
        self._bodies = {c.id: c.content_id for share in bench.shares for c in share}

    def watch(self, k: int, work: Work, partial: Arrays) -> None:
        """Check one computation, and repeat it as the chunks' next owner would."""
        self.computations += 1
        share = self._bench.shares[k]
        where = f"exchange {work.exchange} ({work.operation})"
        self._check_shapes(where, work, partial)
        model_before = {name: array.copy() for name, array in work.model.items()}
        fresh = self._own.solver(dict(self._settings), self._facts)
        twins = _with_states(share, self._before[k])
        again = fresh.compute(work, twins, Serial())
        for name in work.returns:
            if name in partial and name in again and not _same(partial[name], again[name]):
                self._add(
                    "state",
                    f"{where}: a fresh solver with the same chunks and states returns another "
                    f"{name}; keep what a chunk needs later in chunk.state, and draw random "
                    "numbers from work and chunk ids",
                )
        for chunk, twin in zip(share, twins, strict=True):
            if not _same_state(chunk.state, twin.state):
                self._add("state", f"{where}: the state of {chunk.id} depends on its owner")
        for name, array in work.model.items():
            if not _same(array, model_before[name]):
                self._add("inputs", f"{where}: compute changes work.model[{name!r}]")
        empty = self._own.solver(dict(self._settings), self._facts)
        self._check_empty(where, work, empty)
        self._before[k] = _states_of(share)

    def _check_shapes(self, where: str, work: Work, partial: Arrays) -> None:
        for name, shape in work.returns.items():
            if name not in partial:
                self._add("shapes", f"{where}: no {name!r} in the partial, wanted shape {shape}")
            elif np.shape(partial[name]) != tuple(shape):
                got = np.shape(partial[name])
                self._add("shapes", f"{where}: {name!r} has shape {got}, wanted {tuple(shape)}")
            elif not np.isfinite(partial[name]).all():
                self._add("shapes", f"{where}: {name!r} is not finite")

    def _check_empty(self, where: str, work: Work, solver: Solver) -> None:
        try:
            nothing = solver.compute(work, [], Serial())
        except Exception as error:
            message = fault_of(error, "compute of no chunks").message
            self._add("empty", f"{where}: {message}; a member may own no chunk for a round")
            return
        for name in work.returns:
            if name in nothing and np.any(np.asarray(nothing[name]) != 0.0):
                self._add("empty", f"{where}: {name!r} of no chunks is not 0")

    def _add(self, rule: str, problem: str) -> None:
        self.problems.setdefault(rule, problem)


def _same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def _same_state(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _check_partials(
    own: Algorithm,
    settings: Mapping[str, Any],
    facts: DatasetStats,
    chunks: Sequence[Chunk],
    members: int,
    rounds: int,
) -> list[Check]:
    bench = _Bench(own, settings, facts, _deal(_with_states(chunks, {}), members))
    rules = _Rules(own, settings, facts, bench)
    bench.watch = rules.watch
    try:
        bench.run(rounds)
    except Exception as error:
        if not rules.problems:
            rules.problems["shapes"] = fault_of(error, "a run in this process").message
    for share in bench.shares:
        for chunk in share:
            if Chunk(chunk.id, chunk.body).content_id != chunk.content_id:
                rules.problems.setdefault("inputs", f"compute changes the body of {chunk.id}")
    detail = f"{rules.computations} computations of {members} members"
    names = {
        "shapes": "partials have the declared shapes",
        "inputs": "model and bodies stay as they are",
        "state": "a chunk's next owner computes the same",
        "empty": "no chunks contribute nothing",
    }
    return [
        Check(name=name, problem=rules.problems.get(rule, ""), detail=detail)
        for rule, name in names.items()
    ]


def _check_resume(
    own: Algorithm,
    settings: Mapping[str, Any],
    facts: DatasetStats,
    chunks: Sequence[Chunk],
    members: int,
    rounds: int,
) -> Check:
    name = "a resumed run is the same"
    if "resume" not in inspect.signature(own.trainer).parameters:
        return Check(
            name=name, problem="", detail="not supported: the trainer has no argument resume"
        )
    bench = _Bench(own, settings, facts, _deal(_with_states(chunks, {}), members))
    point: Resume | None = None
    states: States = {}
    models: list[Arrays] = []
    for number, end in enumerate(bench.rounds()):
        if isinstance(end, Model) or number == rounds:
            break
        if number == rounds // 2:
            point = copy.deepcopy(end.resume)
            states = {k: v for share in bench.shares for k, v in _states_of(share).items()}
        if number > rounds // 2:
            models.append(copy.deepcopy(dict(end.model)))
    if point is None:
        return Check(
            name=name,
            problem="the trainer accepts resume, but RoundEnd.resume is None",
        )
    twin = _Bench(own, settings, facts, _deal(_with_states(chunks, states), members), resume=point)
    for number, (end, model) in enumerate(zip(twin.rounds(), models, strict=False)):
        if isinstance(end, Model) or not _same_state(dict(end.model), model):
            return Check(
                name=name,
                problem=f"the model differs {number + 1} rounds after the checkpoint",
            )
    return Check(name=name, problem="", detail=f"{len(models)} rounds after a checkpoint")


def _last_objectives(rows: Sequence[HistoryRow], calm: Sequence[Mapping[str, Any]]) -> str:
    """Compare the last objectives; the row of the final model has none, if nothing scored it."""
    last, undisturbed = (
        next((row.objective for row in reversed(some) if row.objective is not None), None)
        for some in (rows, [HistoryRow(row) for row in calm])
    )
    if last is None or undisturbed is None:
        return "the trainer reports no objective"
    return f"last objective {last:.6g}, undisturbed {undisturbed:.6g}"


def _check_simulated(job: Job, members: int, n_rows: int) -> list[Check]:
    faults = (
        Fault(round=2, lose=[0], how="kill", phase="compute"),
        Fault(round=3, lose=[1], how="notice"),
        Fault.model_validate({"round": 4, "return": 2}),
        Fault(round=5, lose=[2], how="kill", phase="reduce"),
    )
    ends = "a job with kills, a notice and returns ends"
    calm, _ = _simulate(job, members)
    disturbed = job.model_copy(update={"faults": faults})
    runs = [_simulate(disturbed, members) for _ in range(2)]
    outcome, story = runs[0]
    if outcome.state != "done":
        message = (outcome.error or {}).get("message", "")
        return [Check(name=ends, problem=f"it ended as {outcome.state}: {message}")]
    rows = [HistoryRow(row) for row in outcome.history]
    bad = [row.round for row in rows if not _is_finite(row.objective)]
    lost = summary_from_json(outcome.summary).lost
    detail = f"{lost} members lost; {_last_objectives(rows, calm.history)}"
    problem = f"the objective of round {bad[0]} is not finite" if bad else ""
    differs = "" if json.dumps(story) == json.dumps(runs[1][1]) else "two runs differ"
    wrong = [*miscounted(story, n_rows), *unsound(outcome.history)]
    return [
        Check(name=ends, problem=problem, detail=detail),
        Check(
            name="each example counts once, and gaps are sound",
            problem=wrong[0] if wrong else "",
            detail=f"{len(rows)} rows of the history",
        ),
        Check(name="the same seed gives the same story", problem=differs, detail="2 runs"),
    ]


def _is_finite(objective: object) -> bool:
    return objective is None or (isinstance(objective, float) and math.isfinite(objective))


def _simulate(job: Job, members: int) -> tuple[JobOutcome, list[dict[str, Any]]]:
    simulated = SimulatedJob(job.record("check", members), job.source)
    story = [dict(entry) for batch in simulated.batches() for entry in batch]
    return simulated.outcome(), story
