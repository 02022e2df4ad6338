"""Rounds of CoCoA with several passes each: their cost and their progress.

For the hierarchical figure, time to a gap against t2, and for the bench with network namespaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from distributed import Client
from support.asgd_figures import Line, Panel
from support.asgd_study import Figure, number
from support.elastic_comparison import markdown
from support.snapml_store import Store

import elasticml as em
from elasticml.policies.inner_iterations import CostModel, Observed, fit
from examples.papers.support.shaped_rows import synthetic

#: The gap, relative to the objective, below which rounds are assumed to be alike; smaller gaps than
#: rounding leaves count as that.
BEGIN, GAP_MIN = 1e-1, 1e-15
NOT_REACHED = "not reached"
#: Passes a round to which the cost model is fitted.
FITTED = (1, 4)
#: Columns of ``rounds``: when it ended, the gap relative to the objective, seconds computed.
Rounds = list[list[float]]


def train(
    client: Client,
    rows: int,
    *,
    l2: float,
    passes: int,
    stop: em.Stop,
    columns: int | None = None,
) -> dict[str, Any]:
    """Run one job; return costs and progress of its rounds, and the policy's decisions.

    Parameters
    ----------
    passes : int
        A round; 0 is the policy's choice.
    """
    job = em.Job(
        em.CoCoA(
            loss="logistic",
            l2=l2,
            tolerance=1e-12,
            local_epochs=float(passes or 1),
            gap_every=1,
            intercept=False,
            scale="none",
        ),
        synthetic("criteo", rows, seed=1, columns=columns, dtype="float32"),
        stop=stop,
        collective=em.settings.Collective(transport="stream"),
        policies=[] if passes else [em.policies.ChooseInnerIterations()],
        evaluate=False,
    )
    records: list[Any] = list(job.start(client).events())
    ended = [r for r in records if r["event"] == "RoundEnded"]
    computed = {k: 0.0 for k in range(len(ended))}
    for r in records:
        if r["event"] == "ExchangeEnded" and r["round"] in computed:
            computed[r["round"]] += max(r["compute_s"].values(), default=0.0)
    rounds = [
        [ended[k - 1]["t"], ended[k]["gap"] / ended[k]["objective"], computed[k - 1]]
        for k in range(1, len(ended))
    ]
    message = [r["why"] for r in records if r["event"] == "PolicyDecided" and "a pass" in r["why"]]
    return {"rounds": rounds, "said": message}


def stretch(rounds: Rounds, gap: float) -> Rounds:
    """Return the rounds from the first gap below ``BEGIN`` to the first that reaches ``gap``.

    Empty if gaps never fall below ``BEGIN``; up to the last round if they never reach ``gap``.
    """
    gaps = [entry[1] for entry in rounds]
    first = next((k for k, value in enumerate(gaps) if value <= BEGIN), len(gaps))
    last = next((k for k, value in enumerate(gaps) if value <= gap), len(gaps) - 1)
    return rounds[first : last + 1]


def observed(passes: float, rounds: Rounds) -> Observed:
    """Average over a stretch of at least two rounds."""
    n, first, last = len(rounds) - 1, rounds[0], rounds[-1]
    return Observed(
        inner=passes,
        seconds=(last[0] - first[0]) / n,
        computed_s=sum(entry[2] for entry in rounds[1:]) / n,
        decades=math.log10(max(first[1], GAP_MIN) / max(last[1], GAP_MIN)) / n,
    )


def to_gap_s(o: Observed, gap: float) -> float:
    """Return the seconds from ``BEGIN`` to a gap, at the observed pace."""
    return math.log10(BEGIN / gap) * o.seconds / o.decades if o.decades > 0.0 else math.inf


def predicted_s(model: CostModel, passes: float, gap: float) -> float:
    """Return the seconds from ``BEGIN`` to a gap, as the model predicts."""
    rate = model.rate(passes)
    return math.log10(BEGIN / gap) / rate if rate > 0.0 else math.inf


def _finite(points: Iterable[tuple[float, float]]) -> Line:
    return [(float(x), y) for x, y in points if math.isfinite(y)]


def figure(store: Store, members: int) -> Figure:
    """Run all numbers of passes, real processes of this machine."""
    rows, columns = store.few((100_000, None), (4_000, 2_000))
    tried, gap = store.few((1, 2, 3, 4, 6), FITTED), store.few(1e-8, 1e-4)
    results = {}
    with em.LocalCluster(members) as cluster, Client(cluster, set_as_default=False) as client:
        common = {"rows": rows, "columns": columns, "l2": 1e-5, "members": members, "gap": gap}
        for passes in (*tried, 0):
            report = store.run(
                f"t2 = {passes}" if passes else "policy",
                {**common, "passes": passes},
                lambda p=passes: train(
                    client,
                    rows,
                    l2=1e-5,
                    passes=p,
                    columns=columns,
                    stop=em.Stop(rounds=400, seconds=60, gap=0.1 * gap),
                ),
            )
            if report is not None:
                results[passes] = report
    lines, table = _measured_and_predicted(results, gap)
    return Figure(
        title="Hierarchical scheme: time to a gap against t2",
        panels=(
            Panel(
                title=f"{members} processes",
                x="t2, passes of a round",
                y=f"seconds from {BEGIN:g} to {gap:g}",
                lines=lines,
            ),
        ),
        tables=((f"{members} members, {rows:,} rows, to a gap of {gap:g}", table),),
    )


def _measured_and_predicted(found: dict[int, Any], gap: float) -> tuple[dict[str, Line], str]:
    """Make the lines and the table."""
    seen = {}
    for passes, entry in found.items():
        part = stretch(entry["rounds"], gap)
        if len(part) > 1:
            seen[passes] = observed(passes, part)
    fitted = [seen[passes] for passes in FITTED if passes in seen]
    model = fit(fitted) if len(fitted) == len(FITTED) else None
    tried = [t2 for t2 in sorted(seen) if t2]
    lines = {"measured": _finite((t2, to_gap_s(seen[t2], gap)) for t2 in tried)}
    if model is not None:
        lines["predicted"] = _finite((t2, predicted_s(model, t2, gap)) for t2 in tried)
    base = to_gap_s(seen[1], gap) if 1 in seen else math.nan
    rows = []
    for passes, o in sorted(seen.items(), key=lambda item: (item[0] == 0, item[0])):
        took = to_gap_s(o, gap)
        message = predicted_s(model, passes, gap) if model is not None and passes else math.nan
        first = predicted_s(model, 1, gap) if model is not None else math.nan
        rows.append(
            [
                str(passes) if passes else "policy",
                number(1e3 * o.seconds),
                f"{o.decades:.2f}",
                number(took) if math.isfinite(took) else NOT_REACHED,
                number(message),
                number(base / took),
                number(first / message),
            ]
        )
    for passes in sorted(found.keys() - seen):
        rows.append([str(passes) if passes else "policy", "–", "–", NOT_REACHED, "–", "–", "–"])
    head = ["t2", "ms a round", "decades a round", "s", "predicted s", "times t2 = 1", "predicted"]
    costs = "" if model is None else (
        f"\nFitted: {1e3 * model.outer_s:.0f} ms a round, {1e3 * model.inner_s:.0f} ms a pass, "
        f"theta {model.theta:.2f}, rho {model.rho:.3f}. The policy: "
        + ("; ".join(found[0]["said"]) if found.get(0, {}).get("said") else "–")
        + "\n"
    )  # fmt: skip
    return lines, markdown(head, rows) + costs
