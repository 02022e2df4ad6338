"""What must hold after a plan, in virtual time and on processes, whatever happened to the job.

A plan names its rules and their parameters:

ends : seconds
    The job has ended at most so long after ``stop.seconds`` and the time that a step may take.
goes_on : rounds
    After the last fault, when all members are back for a while, at least this number of rounds has
    ended, and no example is absent.
sums : True
    In each exchange the examples of the sum and the absent ones are all examples, each once; whom
    the sum lacks was lost meanwhile.
truth : True
    Reported objectives are those of the models over all rows, estimated ones up to their bounds; no
    gap is below the true one, and CoCoA's model is the image of its coordinates.
result : share
    After some rounds without faults the model's objective is the optimum up to its certified gap,
    and to this share of the way from zero.
undeserved : True
    No healthy member is lost for a deadline, unless faults make members silent or slow.
fails : pattern
    The job fails, and its error fits this pattern.
may_fail : pattern
    It may fail with such an error. Any other error is a violation.
one_line : True
    The job's error is elasticml's, in one line.
hits : count
    At least this number of faults have hit the running job.
losses : count
    This number of members is lost in all.
lost : pattern
    The reasons of the losses, sorted, fit this pattern.
absent : pattern
    The slots of all groups that were absent, in order, fit this pattern.
computed_once : True
    The first members that are not lost have computed each exchange once; those that a fault hits
    may miss the first ones.
leaves_nothing : True
    The job leaves nothing on the cluster; the runner looks at processes, files and logs.
all_back : True
    No example is absent at the end.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from elasticml.errors import ElasticmlError
from elasticml.ids import member_id
from elasticml.story import records as story
from elasticml.story.history import HistoryRow
from elasticml.story.records import records_of
from elasticml.story.soundness import SLACK, miscounted, unsound, untrue
from tests.play.plan import SILENT, STUCK_FACTOR_MAX, Played
from tests.play.problems import TOY, least_objective, true_objective

#: Rounds whose models are compared with all rows, at most.
_ROUNDS_MAX: Final = 60
_NO_OBJECTIVE: Final = ("async_sgd", TOY)
#: Relative error of a sum of losses in 32 bits; an example's loss is thousands of times larger.
_SUM_ERROR: Final = 1e-7
#: Epochs have six decimals in a history.
_EPOCH_ERROR: Final = 1e-6
#: Which outcome each rule's violation is; of the others it is "wrong".
OUTCOMES: Final = {
    "ends": "endless",
    "goes_on": "endless",
    "fails": "raw error",
    "may_fail": "raw error",
    "one_line": "raw error",
    "leaves_nothing": "leak",
}


def violations(played: Played) -> list[tuple[str, str]]:
    """Return what is violated: the rule, and what was found."""
    rules = {"fails": None, "may_fail": None, **played.plan.rules}
    return [(name, text) for name, wanted in rules.items() for text in _RULES[name](played, wanted)]


def _ends(played: Played, seconds: float) -> Iterator[str]:
    if played.late_s > seconds:
        yield f"not over {seconds:g} s after stop.seconds"


def _goes_on(played: Played, rounds: int) -> Iterator[str]:
    if played.state != "done" or not played.is_whole:
        return
    if played.quiet_rounds < rounds:
        yield f"{played.quiet_rounds} quiet rounds"
    if played.absent and played.plan.job["absent"] != "ignore":
        yield f"{played.absent} examples are absent after {played.quiet_rounds} quiet rounds"


def _sums(played: Played, _: Any) -> Iterator[str]:
    data = played.plan.data
    is_by_columns = played.plan.job["algorithm"]["name"] == "primal_cocoa"
    # With the column of the targets.
    yield from miscounted(played.story, data["columns"] + 1 if is_by_columns else data["rows"])


def _has_objective(played: Played) -> bool:
    name = played.plan.job["algorithm"]["name"]
    return "costs" not in played.plan.world and name not in _NO_OBJECTIVE


def _truth(played: Played, _: Any) -> Iterator[str]:
    algorithm, data = played.plan.job["algorithm"], played.plan.data
    if not _has_objective(played):
        return
    if algorithm["name"] == "local_sgd":
        if played.arrays:
            loss = true_objective(algorithm, data, played.arrays)
            is_fixed = algorithm["learning_rate"] < 1e-20
            yield from missampled(played.history, data["rows"], loss if is_fixed else None)
        return
    best = least_objective(algorithm, data)
    rows = [row for row in map(HistoryRow, played.history) if row.objective is not None]
    estimated = [row for row in rows if row.objective_kind == "estimated"]
    for row in rows[:: max(1, len(rows) // _ROUNDS_MAX)] + rows[-1:] + estimated[:_ROUNDS_MAX]:
        model = played.snapshots.get(row.round)
        if model:
            yield from untrue(row, true_objective(algorithm, data, model), best)
    yield from unsound(played.history)


def _result(played: Played, share: float) -> Iterator[str]:
    if not played.arrays or not _has_objective(played):
        return
    algorithm, data = played.plan.job["algorithm"], played.plan.data
    at_zero = {name: array * 0.0 for name, array in played.arrays.items()}
    true, zero = (true_objective(algorithm, data, m) for m in (played.arrays, at_zero))
    best = 0.0 if algorithm["name"] == "local_sgd" else least_objective(algorithm, data)
    gap = played.summary.get("gap")
    if played.has_settled and not true - best <= share * (zero - best):  # NaN, too
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


def _one_line(played: Played, _: Any) -> Iterator[str]:
    if played.error is None:
        return
    if not isinstance(played.error, ElasticmlError):
        yield f"{type(played.error).__name__}: {played.error}"
    elif "\n" in str(played.error) or "Traceback" in str(played.error):
        yield f"not one line: {played.error}"


def _undeserved(played: Played, _: Any) -> Iterator[str]:
    faults = played.plan.faults
    is_slow = played.plan.job["collective"].get("stuck_factor", 0.0) < STUCK_FACTOR_MAX
    if is_slow or any(fault.kind in SILENT or fault.kind == "driver" for fault in faults):
        return
    pids = {r.member: r.pid for r in records_of(story.MemberJoined, played.story)}
    for lost in records_of(story.MemberLost, played.story):
        if lost.reason == "deadline" and pids.get(lost.member) not in played.hit_pids:
            yield f"{lost.member} in round {lost.round}: {lost.reason}"


def _hits(played: Played, wanted: int) -> Iterator[str]:
    if len(played.hits) < wanted:
        yield f"{len(played.hits)} faults have hit the job, wanted {wanted}"


def _losses(played: Played, wanted: int) -> Iterator[str]:
    lost = [f"{r.member} ({r.reason})" for r in records_of(story.MemberLost, played.story)]
    if len(lost) != wanted:
        yield f"{len(lost)} members, wanted {wanted}: {', '.join(lost)}"


def _lost(played: Played, wanted: str) -> Iterator[str]:
    found = " ".join(sorted(r.reason for r in records_of(story.MemberLost, played.story)))
    if not re.fullmatch(wanted, found):
        yield f"lost members: {found!r}, wanted {wanted!r}"


def _absent(played: Played, wanted: str) -> Iterator[str]:
    groups = records_of(story.ChunksAbsent, played.story)
    found = " ".join(str(member_id(name).slot) for group in groups for name in group.members)
    if not re.fullmatch(wanted, found):
        yield f"groups of the slots {found!r}, wanted {wanted!r}"


def _computed_once(played: Played, _: Any) -> Iterator[str]:
    records = played.story
    lost = {r.member for r in records_of(story.MemberLost, records)}
    (ended,) = (r for r in records if r["event"] == "JobEnded")
    n_exchanges = sum(1 for _ in records_of(story.ExchangeEnded, records))
    for joined in records_of(story.MemberJoined, records):
        n = ended["computations"].get(joined.member, 0)
        is_first = member_id(joined.member).slot < played.plan.job["members"]["start"]
        is_hit = bool(joined.round) or joined.pid in played.hit_pids
        least = n_exchanges if is_first and not is_hit else 0
        if joined.member not in lost and not least <= n <= n_exchanges:
            yield f"{joined.member} has computed {n} of {n_exchanges} exchanges"


def _leaves_nothing(played: Played, _: Any) -> Iterator[str]:
    yield from played.left


def _all_back(played: Played, _: Any) -> Iterator[str]:
    if played.absent:
        yield f"{played.absent} examples are absent at the end"


_RULES: Final[Mapping[str, Callable[[Any, Any], Iterator[str]]]] = {
    "ends": _ends,
    "goes_on": _goes_on,
    "sums": _sums,
    "truth": _truth,
    "result": _result,
    "undeserved": _undeserved,
    "fails": _fails,
    "may_fail": _may_fail,
    "one_line": _one_line,
    "hits": _hits,
    "losses": _losses,
    "lost": _lost,
    "absent": _absent,
    "computed_once": _computed_once,
    "leaves_nothing": _leaves_nothing,
    "all_back": _all_back,
}


def missampled(
    history: Sequence[Mapping[str, Any]], n_rows: int, loss: float | None
) -> Iterator[str]:
    """Yield the epochs in which examples were lost or visited twice.

    Parameters
    ----------
    history : sequence of mapping
        Rows with ``epoch`` (at the start of a round), ``samples``, ``skipped`` and ``objective``,
        the mean loss of the round's samples.
    n_rows : int
        Examples of an epoch.
    loss : float or None
        Mean loss of all examples with a model that does not change; None for one that does.
    """
    rounds = [row for row in map(HistoryRow, history) if "samples" in row.columns]
    visited: Counter[int] = Counter()
    losses: dict[int, float] = {}
    # A history that begins within a job has lost nothing before.
    lost = rounds[0].columns["skipped"] if rounds and _epoch(rounds[0]) else 0
    for row, then in itertools.zip_longest(rounds, rounds[1:]):
        samples, skipped = row.columns["samples"], row.columns["skipped"] - lost
        lost += skipped
        at = _epoch(row)
        if then is not None and abs((_epoch(then) - at) * n_rows - samples - skipped) > (
            2 * _EPOCH_ERROR * n_rows
        ):
            yield (
                f"round {row.round}: {samples} samples and {skipped} skipped ones, the epoch goes "
                f"from {at} to {_epoch(then)}"
            )
        number = int(at + _EPOCH_ERROR)
        visited[number] += samples + skipped
        loss_sum = samples * (row.objective or 0.0) if not skipped else math.nan
        losses[number] = losses.get(number, 0.0) + loss_sum
    for number in visited:
        if number < _epoch(rounds[0]) or number == max(visited):
            continue  # not whole
        if visited[number] != n_rows:
            yield f"epoch {number} has {visited[number]} examples, wanted {n_rows}"
        found = losses[number]
        if loss is not None and abs(found - n_rows * loss) > _SUM_ERROR * n_rows * loss:
            yield f"the losses of epoch {number} are {found}, wanted {n_rows * loss}"


def _epoch(row: HistoryRow) -> float:
    """Return the epochs at the start of a round."""
    assert row.epoch is not None
    return row.epoch
