"""What must hold after every plan, whatever happened to the job, and after plans of one fault."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from elasticml.control.driver_settings import OVERTIME, OVERTIME_S_MIN
from elasticml.errors import JobFailedError
from elasticml.ids import member_id
from elasticml.sim.simulation import simulate
from elasticml.story import records as story
from elasticml.story.history import HistoryRow
from elasticml.story.records import records_of
from elasticml.story.summary import summary_from_json
from tests.play.plan import SILENT, STUCK_FACTOR_MAX, Plan
from tests.play.problems import TOY, source_of, true_objective
from tests.play.virtual_world import PlayedPlan

#: Relative difference of two sums of the same losses in another order.
SLACK: Final = 1e-9
#: Share of the way from zero to the optimum that may be left after the quiet rounds.
_LEFT_MAX: Final = 0.1
#: Rounds whose models are compared with all rows, at most.
_ROUNDS_MAX: Final = 60
#: Rounds without faults after which the model must be near the optimum.
_QUIET_ROUNDS_MIN: Final = 10
_NO_OBJECTIVE: Final = ("async_sgd", TOY)
_CERTIFIED: Final = ("cocoa", "primal_cocoa")
#: A learning rate with which no weight changes in 32 bits. The losses that are summed in an epoch
#: are then those of the initial model over all examples, if each was visited exactly once.
FIXED_RATE: Final = 1e-30
#: Relative error of a sum of losses in 32 bits; an example's loss is thousands of times larger.
_SUM_ERROR: Final = 1e-7
#: Epochs have six decimals in a history.
_EPOCH_ERROR: Final = 1e-6


def violations(played: PlayedPlan) -> list[str]:
    """Return what is violated, each as ``rule: what was found``."""
    return [
        f"{name}: {text}" for name in played.plan.rules for text in (RULES | _RULES)[name](played)
    ]


def other_losses(records: Iterable[Mapping[str, Any]], wanted: int) -> Iterator[str]:
    """Check the number of members that are lost in all."""
    lost = [f"{r['member']} ({r['reason']})" for r in records if r["event"] == "MemberLost"]
    if len(lost) != wanted:
        yield f"{len(lost)} members, wanted {wanted}: {', '.join(lost)}"


def _losses(played: PlayedPlan) -> Iterator[str]:
    yield from other_losses(played.result.story, played.plan.rules["losses"])


def _ends(played: PlayedPlan) -> Iterator[str]:
    """Check that the job ends by its own rule and in its time, or fails as the rule's pattern."""
    result = played.result
    message, may_fail = (result.error or {}).get("message", ""), played.plan.rules["end"]
    if result.state == "failed" and isinstance(may_fail, str) and re.search(may_fail, message):
        return
    if result.state != "done":
        yield f"state {result.state}: {message}"
    end_s = summary_from_json(result.summary).seconds or math.inf
    limit_s = played.plan.record.stop.seconds or math.inf
    # A step of the trainer under way may end.
    step_s = max(OVERTIME_S_MIN, OVERTIME * limit_s) + 2.0 * float(played.plan.world["tick_s"])
    if end_s > limit_s + step_s:
        yield f"ended at {end_s:g} s, stop.seconds is {limit_s:g}"


def _once(played: PlayedPlan) -> Iterator[str]:
    """Check that each example is in a sum once, or absent from it and accounted for."""
    if played.result.state == "failed":
        return
    ledger = played.world.driver.machine.state.ledger
    expected = played.plan.data["rows"]
    if played.plan.record.algorithm_name == "primal_cocoa":
        expected = played.plan.data["columns"] + 1  # the column of the targets
    rows = ledger.total_rows
    if rows != expected:
        yield f"{rows} in the ledger, wanted {expected}"
    yield from miscounted(played.result.story, rows)
    owned = [chunk for chunks in ledger.owned.values() for chunk in chunks]
    if len(owned) != len(set(owned)):
        yield "a chunk has two owners"


def miscounted(records: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    """Yield the exchanges of a story whose examples and absent ones are not all rows."""
    for ended in records_of(story.ExchangeEnded, records):
        if ended.examples + ended.absent_examples != rows:
            yield (
                f"exchange {ended.exchange} ({ended.operation}): {ended.examples} examples and "
                f"{ended.absent_examples} absent, wanted {rows} together"
            )
        if int(ended.contributors, 16) & int(ended.missing, 16):
            yield f"exchange {ended.exchange}: a member contributes and is missing"


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


def _undeserved(played: PlayedPlan) -> Iterator[str]:
    """Check that no healthy member is lost, unless faults make members silent or slow."""
    is_slow = played.plan.record.collective.stuck_factor < STUCK_FACTOR_MAX
    if is_slow or played.faults["driver"] or any(f.kind in SILENT for f in played.plan.faults):
        return
    victims = played.touched | {
        w.address
        for w in played.world.workers.by_address.values()
        if not w.endpoint.is_alive or w.is_closing
    }
    records = played.result.story
    joined = {r.member: f"sim://{r.pid}" for r in records_of(story.MemberJoined, records)}
    for lost in records_of(story.MemberLost, records):
        if lost.reason == "deadline" and joined.get(lost.member) not in victims:
            yield f"{lost.member} in round {lost.round}: {lost.reason}"


def _truth(played: PlayedPlan) -> Iterator[str]:
    """Check that objectives are those of the models over all rows, and no gap is too small."""
    plan, result = played.plan, played.result
    algorithm = plan.record.algorithm
    if "costs" in plan.world or algorithm["name"] in _NO_OBJECTIVE:
        return
    best = best_objective(plan) if algorithm["name"] in _CERTIFIED else -math.inf
    rows = [row for row in map(HistoryRow, result.rows) if row.objective is not None]
    for row in rows[:: max(1, len(rows) // _ROUNDS_MAX)] + rows[-1:]:
        model = result.snapshots.get(row.round)
        if model:
            yield from untrue(row, true_objective(algorithm, plan.data, model), best)


def untrue(row: HistoryRow, true: float, best: float) -> Iterator[str]:
    """Yield what a row says wrongly of its model.

    Parameters
    ----------
    true : float
        The model's objective over all rows.
    best : float
        An objective that a model has; minus infinity if the gap is not checked.
    """
    at, slack = f"round {row.round}", SLACK * max(1.0, abs(true))
    if row.objective is None:
        return
    if row.gap_is_bound:
        if row.objective < true - slack:
            yield f"{at}: the bound {row.objective} is below the objective {true}"
    elif row.objective_kind == "exact" and abs(row.objective - true) > slack:
        yield f"{at}: objective {row.objective}, of the model over all rows {true}"
    if row.gap is not None and (row.gap < 0.0 or row.gap < true - best - slack):
        yield f"{at}: gap {row.gap} is below the true one, at least {true - best}"


def _same_result(played: PlayedPlan) -> Iterator[str]:
    """Check that after quiet rounds no example is absent and the model is near the optimum."""
    plan, result = played.plan, played.result
    algorithm = plan.record.algorithm
    if "costs" in plan.world or algorithm["name"] in _NO_OBJECTIVE or not result.arrays:
        return
    absent = played.world.driver.machine.state.ledger.absent_rows()
    rounds = [r for r in map(HistoryRow, result.rows) if (r.seconds or 0.0) > played.last_fault_s]
    if len(rounds) < _QUIET_ROUNDS_MIN:
        return
    # Groups wait for members that own nothing: with the last newcomers, there are enough.
    has_newcomers = played.last_grant_s > played.last_fault_s
    if absent:
        if has_newcomers and plan.record.absent != "ignore":
            yield f"{absent} examples are absent after {len(rounds)} quiet rounds"
        return
    true = true_objective(algorithm, plan.data, result.arrays)
    best, zero = best_objective(plan), _at_zero(plan)
    if true - best > _LEFT_MAX * (zero - best):
        yield f"objective {true} after {len(rounds)} quiet rounds, optimum {best}, of zero {zero}"


RULES: Final[Mapping[str, Callable[[PlayedPlan], Iterator[str]]]] = {
    "end": _ends,
    "once": _once,
    "undeserved loss": _undeserved,
    "truth": _truth,
    "result": _same_result,
}


# --- rules of plans whose outcome is known --------------------------------------------------------


def _as_lost(played: PlayedPlan) -> Iterator[str]:
    """Check the reasons of the losses, sorted, against the plan's pattern."""
    wanted = played.plan.rules["lost"]
    found = " ".join(sorted(r.reason for r in records_of(story.MemberLost, played.result.story)))
    if not re.fullmatch(wanted, found):
        yield f"lost members: {found!r}, wanted {wanted!r}"


def _as_absent(played: PlayedPlan) -> Iterator[str]:
    """Check the slots of all groups, in order, against the plan's pattern."""
    wanted, groups = (
        played.plan.rules["absent"],
        records_of(story.ChunksAbsent, played.result.story),
    )
    found = " ".join(str(member_id(name).slot) for group in groups for name in group.members)
    if not re.fullmatch(wanted, found):
        yield f"groups of the slots {found!r}, wanted {wanted!r}"


def _all_back(played: PlayedPlan) -> Iterator[str]:
    """Check that no example is absent at the end."""
    absent = played.result.rows[-1]["absent_examples"]
    if absent:
        yield f"{absent} examples are absent at the end"


def _computed_once(played: PlayedPlan) -> Iterator[str]:
    """Check that the first members that are not lost have computed each exchange once.

    A member that a fault hits may miss the first ones.
    """
    records = played.result.story
    lost = {r.member for r in records_of(story.MemberLost, records)}
    (ended,) = (r for r in records if r["event"] == "JobEnded")
    n_exchanges = sum(1 for _ in records_of(story.ExchangeEnded, records))
    for joined in records_of(story.MemberJoined, records):
        n = ended["computations"].get(joined.member, 0)
        is_first = member_id(joined.member).slot < played.plan.record.members.start
        is_hit = bool(joined.round) or f"sim://{joined.pid}" in played.touched
        least = n_exchanges if is_first and not is_hit else 0
        if joined.member not in lost and not least <= n <= n_exchanges:
            yield f"{joined.member} has computed {n} of {n_exchanges} exchanges"


_RULES: Final[Mapping[str, Callable[[PlayedPlan], Iterator[str]]]] = {
    "losses": _losses,
    "lost": _as_lost,
    "absent": _as_absent,
    "all back": _all_back,
    "computed once": _computed_once,
}


def best_objective(plan: Plan) -> float:
    """Return the objective of the plan's job after many undisturbed rounds."""
    return undisturbed_objective(plan.record.algorithm, plan.data)


def undisturbed_objective(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> float:
    """Return the objective of an undisturbed job after many rounds: the optimum or little more."""
    section = {k: v for k, v in algorithm.items() if k != "gap_every"}
    return _undisturbed(json.dumps(section, sort_keys=True), json.dumps(data))


def _at_zero(plan: Plan) -> float:
    zero = {"coef": [0.0] * plan.data["columns"], "intercept": [0.0]}
    return true_objective(plan.record.algorithm, plan.data, zero)  # type: ignore[arg-type]


@functools.cache
def _undisturbed(algorithm_json: str, data_json: str) -> float:
    algorithm, data = json.loads(algorithm_json), json.loads(data_json)
    record = {
        "version": 1,
        "job": "undisturbed",
        "name": "undisturbed",
        "chunk_bytes": 65536,
        "algorithm": algorithm,
        "absent": "stall",
        "stop": {"rounds": 400, "gap": 1e-9},
        "seed": 0,
        "members": {"start": 1, "min": 1},
    }
    result = simulate(record, source_of(algorithm, data))
    if result.state != "done":
        raise JobFailedError(f"the undisturbed job ended as {result.state}: {result.error}")
    return true_objective(algorithm, data, result.arrays)
