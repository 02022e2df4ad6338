"""The findings of an earlier study of CoCoA, item by item, beside this implementation's figures.

    python tests/bench/cocoa_acceptance.py [--items 1 3 4 ...] [--seeds 3]

Runs are those of ``examples/papers/support/virtual_study.py``: real machines, policies and solvers
in one process, gaps certified in every round, time projected (1 unit = one epoch of one member).
Medians over seeds. Exits with status 1 if an item does not hold.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "papers")]

from support.cocoa_data import SETS, load  # noqa: E402
from support.elastic_comparison import markdown  # noqa: E402
from support.speedups import cost_of  # noqa: E402

import elasticml as em  # noqa: E402
from elasticml.policies.convergence import Point, is_knee  # noqa: E402
from elasticml.sim.simulation import Simulation  # noqa: E402
from elasticml.specification.simulator import Granted, Taken  # noqa: E402
from examples.papers.support.virtual_study import Curve, Plan, record_of, study, world_of  # noqa: E402
from tests.bench import harness  # noqa: E402

HINGE: dict[str, Any] = {"name": "cocoa", "loss": "hinge", "l2": 0.01}
PAPER = {**HINGE, "mode": "paper"}
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One expectation and its measurement."""

    text: str
    wanted: str
    measured: str
    holds: bool


def at_most(text: str, value: float, bound: float, study_: str = "") -> Finding:
    """Expect at most this value."""
    expected = f"<= {bound:g}" + (f" (study {study_})" if study_ else "")
    return Finding(text=text, wanted=expected, measured=f"{value:.4g}", holds=value <= bound)


def at_least(text: str, value: float, bound: float, study_: str = "") -> Finding:
    """Expect at least this value."""
    expected = f">= {bound:g}" + (f" (study {study_})" if study_ else "")
    return Finding(text=text, wanted=expected, measured=f"{value:.4g}", holds=value >= bound)


@cache
def source(name: str) -> Any:
    """Read a data set once."""
    return load(name)


@cache
def _curve(name: str, plan_text: str) -> Curve:
    return study(_PLANS[plan_text], source(name))


_PLANS: dict[str, Plan] = {}


def curves(name: str, plan: Plan) -> list[Curve]:
    """Run a plan with every seed, each once."""
    results = []
    for seed in range(SEEDS):
        seeded = replace(plan, seed=seed)
        _PLANS[repr(seeded)] = seeded
        results.append(_curve(name, repr(seeded)))
    return results


def rounds(name: str, plan: Plan, gap: float) -> float:
    """Median rounds to a gap; infinite if most seeds have not reached it."""
    cost = cost_of(curves(name, replace(plan, gap=gap)), gap, "rounds")
    return cost.value if cost.is_reached else math.inf


def fixed(members: int, algorithm: dict[str, Any] = PAPER, **more: Any) -> Plan:
    """Plan a static run on chunks that stay where they are."""
    return Plan(algorithm=algorithm, members=members, rounds_max=1500, **more)


def two_holders(members: int, algorithm: dict[str, Any] = HINGE) -> Plan:
    """Plan a static run in which every round draws owners among two holders."""
    return Plan(algorithm=algorithm, members=members, holders=2, chunks=256, rounds_max=1500)


def reshuffled(members: int, algorithm: dict[str, Any] = HINGE) -> Plan:
    """Plan a static run in which all chunks are reshuffled in every round, including bodies."""
    policies = ({"name": "redeal", "share": 1.0},)
    return Plan(
        algorithm=algorithm, members=members, chunks=256, policies=policies, rounds_max=1500
    )


# --- 1, 2: invariants --------------------------------------------------------------------------


def drift(simulation: Simulation, l2: float, d: int, n: int) -> float:
    """Relative distance of the last certified model from A alpha of the owners' chunks."""
    world = simulation.world
    total = np.zeros(d)
    for worker in world.workers.by_address.values():
        if worker.endpoint.is_alive and worker.life is not None and not worker.life.is_over:
            for chunk in worker.life.chunks:
                c = chunk.state["alpha"] * np.where(chunk.labels > 0, 1.0, -1.0)
                if chunk.layout.kind == "dense":
                    total += c @ chunk.values.astype(np.float64)
                    continue
                by_entry = np.repeat(c, np.diff(chunk.indptr))
                values = chunk.values if chunk.values.size else np.ones(len(chunk.indices))
                np.add.at(total, chunk.indices, by_entry * values)
    training = world.environment.session.training
    assert training is not None
    assert training.exchange is not None
    v = training.exchange.model["sent"]
    return float(np.linalg.norm(total / (l2 * n) - v) / np.linalg.norm(v))


def flapping(members: int, other: int, times: int, every: float) -> tuple[Taken | Granted, ...]:
    """Make members leave and return repeatedly."""
    count = members - other
    trace: list[Taken | Granted] = []
    for k in range(times):
        at = every * (2 * k + 1)
        trace.append(Taken(at=at, lose=count, how="notice", grace=1.0))
        trace.append(Granted(at=at + every, grant=count))
    return tuple(trace)


def invariants() -> Iterator[Finding]:
    """Item 1: v = A alpha and one owner each; item 2: D never falls, the gap is never negative."""
    least_gap, worst_fall = math.inf, 0.0
    for name, dtype in (("covtype", "float64"), ("covtype", "float32"), ("reuters", "float64")):
        X, y = SETS[name]()
        data = em.from_arrays(X, y, dtype=dtype)
        for what, plan in (
            ("moves", two_holders(8)),
            ("flaps 16-8", replace(reshuffled(16), trace=flapping(16, 8, 6, 0.5))),
        ):
            plan = replace(plan, rounds_max=100, gap=1e-13)
            simulation = Simulation(record_of(plan, data), data, options=world_of(plan, data))
            for _ in simulation.run():
                pass
            result = simulation.result()
            assert result.error is None, result.error
            away = drift(simulation, HINGE["l2"], X.shape[1], len(y))
            bound = 1e-12 if dtype == "float64" else 1e-4
            rows = simulation.world.driver.machine.state.ledger
            owned = sum(rows.rows_of(m) for m in rows.owned)
            text = f"1. v = A alpha, {name} {dtype}, {what}, {len(result.rows) - 1} rounds"
            yield at_most(text, away, bound)
            holds = owned == len(y)
            yield Finding(
                text=f"1. owned examples, {name} {dtype}, {what}",
                wanted=str(len(y)),
                measured=str(owned),
                holds=holds,
            )
            some = [r for r in result.rows if r.get("gap") is not None]
            least_gap = min(least_gap, *(float(r["gap"]) for r in some))
            if dtype == "float64":
                worst_fall = max(worst_fall, _fall(result.rows))
    for plan in (fixed(16), fixed(16, HINGE)):
        rows_ = curves("covtype", replace(plan, rounds_max=100, gap=1e-13))[0].rows
        worst_fall = max(worst_fall, _fall(rows_))
    yield at_most("2. largest relative fall of D, float64, all schedules", worst_fall, 1e-12)
    yield at_least("2. smallest gap, all schedules", least_gap, -1e-12)


def _fall(rows: Sequence[Any]) -> float:
    duals = [float(r["dual"]) for r in rows if r.get("dual") is not None]
    return max((a - b) / abs(a) for a, b in itertools.pairwise(duals) if a)


# --- 3, 4, 5: rounds ---------------------------------------------------------------------------


def reuters() -> Iterator[Finding]:
    """Item 3."""
    yield at_most("3. reuters 1e-6, K=1", rounds("reuters", fixed(1), 1e-6), 12, "7")
    yield at_most("3. reuters 1e-6, K=16 plain", rounds("reuters", fixed(16), 1e-6), 90, "58")
    searched = fixed(16, HINGE)
    yield at_most("3. reuters 1e-6, K=16 line search", rounds("reuters", searched, 1e-6), 25, "17")
    ratio = rounds("reuters", searched, 1e-8) / rounds("reuters", fixed(16), 1e-8)
    yield at_most("3. reuters 1e-8, K=16, line search / plain", ratio, 0.5, "0.19")


def ijcnn1() -> Iterator[Finding]:
    """Item 4."""
    yield at_most("4. ijcnn1 1e-6, K=1", rounds("ijcnn1", fixed(1), 1e-6), 12, "7")
    yield at_least("4. ijcnn1 1e-6, K=4 fixed", rounds("ijcnn1", fixed(4), 1e-6), 100, "298")
    yield at_most("4. ijcnn1 1e-6, K=4 dealt anew", rounds("ijcnn1", reshuffled(4), 1e-6), 30, "14")
    two = rounds("ijcnn1", two_holders(4), 1e-6)
    yield at_most("4. ijcnn1 1e-6, K=4 two holders", two, 30, "14")


def covtype() -> Iterator[Finding]:
    """Item 5."""
    plain = rounds("covtype", fixed(16), 1e-5)
    ratio = rounds("covtype", reshuffled(16), 1e-5) / plain
    yield at_most("5. covtype 1e-5, K=16, dealt anew + line search / plain", ratio, 1 / 3, "0.15")
    ratio = rounds("covtype", two_holders(16), 1e-5) / plain
    yield at_most("5. covtype 1e-5, K=16, two holders + line search / plain", ratio, 1 / 3, "0.17")
    yield at_most("5. covtype 1e-5, K=1", rounds("covtype", fixed(1), 1e-5), 20, "11")


# --- 6, 7: the elastic policy ------------------------------------------------------------------


def static_baseline(members: int) -> Plan:
    """Plan a static run, long enough to show that it is no better."""
    return fixed(members, partitions=16, gap=1e-6, placement="contiguous", units_max=25.0)


def elastic() -> Iterator[Finding]:
    """Item 6."""
    knee = {"name": "knee", "to": [4, 1], "layout": "partitions"}
    for name in ("covtype", "ijcnn1", "a9a"):
        scaled = fixed(16, partitions=16, policies=(knee,), gap=1e-6, placement="contiguous")
        runs = curves(name, scaled)
        for gap, least, rivals in ((1e-5, 1.5, (2, 4, 8, 16)), (1e-6, 0.8, (1,))):
            cost = cost_of(runs, gap)
            static = {k: cost_of(curves(name, static_baseline(k)), gap) for k in rivals}
            best = min(static, key=lambda k: static[k].value)
            ratio = static[best].value / cost.value if cost.is_reached else 0.0
            more = "" if static[best].is_reached else " (at least)"
            of = "the best of 2, 4, 8, 16" if len(rivals) > 1 else "K=1"
            yield at_least(f"6. {name} {gap:g}, 16-4-1 over {of}: K={best}{more}", ratio, least)
        gap = 1e-5
        ours = cost_of(runs, gap, "member_units").value
        most = cost_of(
            curves(name, static_baseline(16)),
            gap,
            "member_units",
        ).value
        text = f"6. {name} {gap:g}, container-units of 16-4-1 / static 16"
        yield at_most(text, ours / most, 0.25)


def slopes() -> Iterator[Finding]:
    """Item 7: knees of known gap curves."""

    def fires(gaps: Sequence[float], scale: Any) -> int | None:
        """First round at which the rule detects a knee."""
        points = [Point(rounds=k, seconds=float(k), gap=g) for k, g in enumerate(gaps)]
        for k in range(3, len(points) + 1):
            if is_knee(points[:k], scale=scale):
                return k - 1
        return None

    steady = [0.5**k for k in range(60)]
    kink = 20
    bent = [0.25**k for k in range(kink)] + [0.25**kink * 0.5**k for k in range(20)]
    yield Finding(
        text="7. log rule on an exact exponential",
        wanted="never",
        measured=str(fires(steady, "log")),
        holds=fires(steady, "log") is None,
    )
    at = fires(bent, "log")
    yield Finding(
        text=f"7. log rule after a kink of slope ratio 2 in round {kink}",
        wanted=f"{kink + 1} to {kink + 2}",
        measured=str(at),
        holds=at is not None and kink < at <= kink + 2,
    )
    linear = fires(steady, "linear")
    yield Finding(
        text="7. linear rule on an exact exponential",
        wanted="at once: by round 4",
        measured=str(linear),
        holds=linear is not None and linear <= 4,
    )


# --- 8, 9: members lost --------------------------------------------------------------------------


def absent() -> Iterator[Finding]:
    """Item 8: the bound over the true gap while 1 of 8 members is gone and no other arrives.

    The moments are those at which the gap is nearest to the study's at its losses (1.3e-3, 9e-3,
    7e-3); other moments between 0.15 and 1.5 units give ratios of up to 1.9.
    """
    for name, at in (("ijcnn1", 0.3), ("a9a", 0.4), ("covtype", 0.6)):
        X, y = SETS[name]()
        data = em.from_arrays(X, y)
        ratios: list[float] = []
        for seed in range(SEEDS):
            plan = fixed(8, HINGE, seed=seed, gap=1e-9, trace=(Taken(at=at, lose=1),))
            plan = replace(plan, rounds_max=round(8 * at) + 16)
            record = {**record_of(plan, data), "absent": "freeze", "evaluate": {"every": 1}}
            simulation = Simulation(record, data, options=world_of(plan, data))
            for _ in simulation.run():
                pass
            result = simulation.result()
            assert result.error is None, result.error
            lost = next(r["round"] for r in result.story if r["event"] == "MemberLost")
            for row in result.rows:
                taken = int(row["round"])
                if row.get("gap_is_bound") and taken in result.snapshots and taken <= lost + 13:
                    w = result.snapshots[taken]["coef"][0]
                    true = float(np.maximum(0.0, 1.0 - y * (X @ w)).mean() + 0.005 * (w @ w))
                    dual = float(row["objective"]) - float(row["gap"])
                    ratios.append(float(row["gap"]) / max(true - dual, 1e-300))
        text = f"8. {name}, bound / true gap within 12 rounds of a loss"
        yield at_most(f"{text}, largest of {len(ratios)}", max(ratios, default=math.inf), 1.5)
        yield at_least(f"{text}, smallest", min(ratios, default=0.0), 1 - 1e-9)


def killed() -> Iterator[Finding]:
    """Item 9: kill -9 of 1 of 8 with its duals mapped from the model, against kept duals."""
    for name, at, gap in (("reuters", 1.5, 1e-6), ("covtype", 2.0, 1e-5), ("a9a", 1.0, 1e-4)):
        plan = fixed(8, HINGE, gap=gap)
        kept = rounds(name, replace(plan, trace=(Taken(at=at, lose=1, how="notice"),)), gap)
        mapped = rounds(name, replace(plan, trace=(Taken(at=at, lose=1),)), gap)
        text = f"9. {name} {gap:g}, K=8, 1 killed: rounds (with the duals kept: {kept:g})"
        yield at_most(text, mapped, 1.25 * kept + 3)


# --- 10, 11: float32, shrinking ------------------------------------------------------------------


def single() -> Iterator[Finding]:
    """Item 10: data in float32, certificates in float64."""
    for name in ("reuters", "a9a", "covtype"):
        X, y = SETS[name]()
        gap = 1e-8
        plan = Plan(algorithm=HINGE, members=1, rounds_max=600, gap=gap)
        double = rounds(name, plan, gap)
        results = []
        for seed in range(SEEDS):
            curve = study(replace(plan, seed=seed), em.from_arrays(X, y, dtype="float32"))
            reached = curve.to(gap)
            results.append(math.inf if reached is None else reached.rounds)
        ratio = median(results) / double
        text = f"10. {name} 1e-8, K=1, rounds float32 / float64 ({double:g})"
        yield Finding(
            text=text, wanted="0.85 to 1.15", measured=f"{ratio:.3f}", holds=0.85 <= ratio <= 1.15
        )


def shrinking() -> Iterator[Finding]:
    """Item 11: rows visited until 1e-7."""
    for name in ("ijcnn1", "a9a", "covtype", "kdd"):
        visited = {}
        for shrinks in (False, True):
            plan = fixed(1, {**HINGE, "shrink": shrinks}, gap=1e-7)
            some = [
                sum(float(r["visited"]) for r in c.rows if r.get("visited") is not None)
                if c.to(1e-7)
                else math.inf
                for c in curves(name, plan)
            ]
            visited[shrinks] = median(some)
        ratio = visited[True] / visited[False]
        yield at_most(f"11. {name} 1e-7, rows visited, shrinking / plain", ratio, 0.5)


ITEMS: dict[str, Callable[[], Iterator[Finding]]] = {
    "1": invariants,
    "3": reuters,
    "4": ijcnn1,
    "5": covtype,
    "6": elastic,
    "7": slopes,
    "8": absent,
    "9": killed,
    "10": single,
    "11": shrinking,
}


def main() -> int:
    """Measure what the command line names; return the exit status."""
    parser = harness.parser(__doc__)
    parser.add_argument("--items", nargs="+", default=list(ITEMS), choices=list(ITEMS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    globals()["SEEDS"] = arguments.seeds
    results: list[Finding] = []
    for item in arguments.items:
        began_s = time.perf_counter()
        results += ITEMS[item]()
        print(f"item {item}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    rows = [(f.text, f.wanted, f.measured, "yes" if f.holds else "**no**") for f in results]
    print(markdown(["item", "wanted", "measured", "holds"], rows))
    return 0 if all(f.holds for f in results) else 1


if __name__ == "__main__":
    sys.exit(main())
