"""What must hold after a plan on processes, whatever happened to the job.

A plan names its rules and their parameters:

ends : seconds
    The job has ended at most so long after ``stop.seconds``.
goes_on : rounds
    Ten seconds after the last fault is over and all workers are back, at least this
    number of rounds have ended, and no example is absent.
sums : True
    In each exchange the examples of the sum and the absent ones are all examples, each once.
truth : True
    Reported objectives are those of the models over all rows; no gap is below the true one.
result : share
    The model's objective is the optimum up to its certified gap, or without a certificate to this
    share of the way from zero.
fails : pattern
    The job fails, and its error fits this pattern.
may_fail : pattern
    It may fail with such an error. Any other error is a violation.
hits : count
    At least this number of faults have hit the running job.
losses : count
    This number of members is lost in all.
one_line : True
    The job's error is elasticml's, in one line.
leaves_nothing : True
    The job leaves nothing on the cluster; the runner looks at processes, files and logs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from elasticml.errors import ElasticmlError
from elasticml.story.history import HistoryRow
from tests.play.problems import least_objective, true_objective
from tests.play.virtual_rules import SLACK, miscounted, missampled, other_losses, untrue

if TYPE_CHECKING:
    from tests.play.processes import Played

#: Seconds without faults after which a job must have gone on.
_QUIET_S: Final = 10.0
#: Without them, a job with this many rounds is near the optimum; a busy machine may make fewer.
_ROUNDS_MIN: Final = 100
#: Which outcome each rule's violation is.
OUTCOMES: Final = {
    "ends": "endless",
    "goes_on": "endless",
    "sums": "wrong",
    "truth": "wrong",
    "result": "wrong",
    "fails": "raw error",
    "may_fail": "raw error",
    "one_line": "raw error",
    "hits": "wrong",
    "losses": "wrong",
    "leaves_nothing": "leak",
}


def violations(played: Played) -> Iterator[tuple[str, str]]:
    """Yield what is violated: the rule, and what was found."""
    rules = {"fails": None, "may_fail": None, **played.plan.rules}
    for name, wanted in rules.items():
        for text in _RULES[name](played, wanted):
            yield name, text


def _ends(played: Played, seconds: float) -> Iterator[str]:
    if played.state == "endless":
        yield f"not over {seconds:g} s after stop.seconds: {played.status}"


def _goes_on(played: Played, rounds: int) -> Iterator[str]:
    if played.state != "done" or played.quiet_s < _QUIET_S:
        return
    if played.quiet_rounds < rounds:
        yield f"{played.quiet_rounds} rounds in {played.quiet_s:.0f} quiet seconds"
    status = played.status
    if status is not None and status.absent_examples and played.plan.job["absent"] != "ignore":
        yield f"{status.absent_examples} examples are absent after {played.quiet_s:.0f} quiet s"


def _sums(played: Played, _: Any) -> Iterator[str]:
    yield from miscounted(played.story, _n_rows(played))


def _truth(played: Played, _: Any) -> Iterator[str]:
    if played.result is None:
        return
    algorithm, data = played.plan.job["algorithm"], played.plan.data
    if algorithm["name"] == "local_sgd":
        loss = true_objective(algorithm, data, played.result.arrays)
        is_fixed = algorithm["learning_rate"] < 1e-20
        yield from missampled(played.result.history, data["rows"], loss if is_fixed else None)
        return
    best = least_objective(algorithm, data)
    for values in played.result.history:
        true = values.get("objective_full")
        if true is not None:
            yield from untrue(HistoryRow(values), true, best)


def _result(played: Played, share: float) -> Iterator[str]:
    if played.result is None or not played.result.arrays:
        return
    algorithm, data = played.plan.job["algorithm"], played.plan.data
    at_zero = {name: array * 0.0 for name, array in played.result.arrays.items()}
    true, zero = (true_objective(algorithm, data, m) for m in (played.result.arrays, at_zero))
    best = 0.0 if algorithm["name"] == "local_sgd" else least_objective(algorithm, data)
    gap = played.result.summary.get("gap")
    had_time = played.quiet_s >= _QUIET_S or played.rounds >= _ROUNDS_MIN
    if had_time and not true - best <= share * (zero - best):  # NaN, too
        yield f"objective {true}, optimum {best}, of zero {zero}"
    if gap is not None and not true - best - SLACK <= gap:
        yield f"the gap {gap} is certified, and the objective {true - best} above the optimum"


def _fails(played: Played, pattern: str | None) -> Iterator[str]:
    if pattern is None:
        return
    if played.error is None:
        yield f"the job is {played.state} without an error, wanted {pattern}"
    elif not re.search(pattern, str(played.error)):
        yield f"{type(played.error).__name__}: {played.error} does not fit {pattern}"


def _may_fail(played: Played, pattern: str | None) -> Iterator[str]:
    if played.error is None or played.plan.rules.get("fails"):
        return
    if pattern is None or not re.search(pattern, str(played.error)):
        yield f"the job failed: {type(played.error).__name__}: {played.error}"


def _hits(played: Played, wanted: int) -> Iterator[str]:
    if len(played.hits) < wanted:
        yield f"{len(played.hits)} faults have hit the job, wanted {wanted}"


def _losses(played: Played, wanted: int) -> Iterator[str]:
    yield from other_losses(played.story, wanted)


def _one_line(played: Played, _: Any) -> Iterator[str]:
    if played.error is None:
        return
    if not isinstance(played.error, ElasticmlError):
        yield f"{type(played.error).__name__}: {played.error}"
    elif "\n" in str(played.error) or "Traceback" in str(played.error):
        yield f"not one line: {played.error}"


def _leaves_nothing(played: Played, _: Any) -> Iterator[str]:
    yield from played.left


def _n_rows(played: Played) -> int:
    data = played.plan.data
    is_by_columns = played.plan.job["algorithm"]["name"] == "primal_cocoa"
    return int(data["columns"] + 1 if is_by_columns else data["rows"])


_RULES: Final[Mapping[str, Callable[[Any, Any], Iterator[str]]]] = {
    "ends": _ends,
    "goes_on": _goes_on,
    "sums": _sums,
    "truth": _truth,
    "result": _result,
    "fails": _fails,
    "may_fail": _may_fail,
    "hits": _hits,
    "losses": _losses,
    "one_line": _one_line,
    "leaves_nothing": _leaves_nothing,
}
