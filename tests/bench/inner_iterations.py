"""Time to a gap against t2, the passes in a round, on a slow link and on a fast one.

    python tests/bench/inner_iterations.py [--rates 1gbit 20gbit] [--members 2] [--rows 200000]

Every member has a host of its own (a network namespace), the driver too; links between them are
shaped. Runs CoCoA with fixed numbers of passes and with the policy that chooses them. The cost
model is fitted to the rounds with 1 and 4 passes; what it predicts for every number stands beside
what was measured. Needs root and iproute2. Source of the figure: Snap ML, Figure 4.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em
from elasticml.data.shapes import synthetic
from elasticml.policies.cost_model import Observed, fit
from tests.bench.namespaces import PORT, address, hosts, serving

FITTED = (1, 4)
#: The gap, relative to the objective, from which on rounds are taken to be alike.
BEGIN = 1e-1


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job as its client; return what rounds took and brought."""
    policies = [] if options.passes else [em.ChooseInnerIterations()]
    with Client(f"tcp://{address(0)}:{PORT}", set_as_default=False) as client:
        client.wait_for_workers(options.members)
        job = em.Job(
            em.CoCoA(
                loss="logistic",
                l2=options.l2,
                tolerance=1e-12,
                local_epochs=float(options.passes or 1),
                gap_every=1,
            ),
            synthetic("criteo", options.rows, seed=1, dtype="float32"),
            stop=em.Stop(rounds=400, seconds=60),
            collective=em.Collective(transport="stream"),
            policies=policies,
            evaluate=False,
        )
        records: list[Any] = list(job.start(client).events())
    ended = [r for r in records if r["event"] == "RoundEnded"]
    computed = {k: 0.0 for k in range(len(ended))}
    for r in records:
        if r["event"] == "ExchangeEnded" and r["round"] in computed:
            computed[r["round"]] += max(r["compute_s"].values(), default=0.0)
    rounds = [
        (ended[k - 1]["t"], ended[k]["gap"] / ended[k]["objective"], computed[k - 1])
        for k in range(1, len(ended))
    ]
    said = [r["why"] for r in records if r["event"] == "PolicyDecided" and "a pass" in r["why"]]
    return {"rounds": rounds, "said": said}


def stretch(told: dict[str, Any], gap: float) -> list[Any]:
    """Return the rounds from the first gap below ``BEGIN`` to the first that reaches ``gap``."""
    gaps = [entry[1] for entry in told["rounds"]]
    first = next(k for k, value in enumerate(gaps) if value <= BEGIN)
    last = next((k for k, value in enumerate(gaps) if value <= gap), len(gaps) - 1)
    return told["rounds"][first : last + 1]


def observed(passes: float, rounds: list[Any]) -> Observed:
    """Average over a stretch of rounds."""
    n, first, last = len(rounds) - 1, rounds[0], rounds[-1]
    return Observed(
        inner=passes,
        seconds=(last[0] - first[0]) / n,
        computed_s=sum(entry[2] for entry in rounds[1:]) / n,
        decades=math.log10(first[1] / last[1]) / n,
    )


def one_run(names: list[str], options: argparse.Namespace, passes: int) -> Any:
    """Start everybody, each on its host, and run one job; 0 passes is the policy's choice."""
    with serving(names, options.threads):
        command = [sys.executable, __file__, "--role", "client", "--passes", str(passes)]
        for name in ("members", "rows", "l2"):
            command += [f"--{name}", str(getattr(options, name))]
        done = subprocess.run(
            ["ip", "netns", "exec", names[0], *command],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        return json.loads(done.stdout.splitlines()[-1])


def study(rate: str, options: argparse.Namespace) -> None:
    """Run all numbers of passes on links of one rate."""
    seen: dict[int, Observed] = {}
    with hosts(options.members + 1, rate) as names:
        for passes in options.passes_tried:
            seen[passes] = observed(passes, stretch(one_run(names, options, passes), options.gap))
        chosen = one_run(names, options, 0)
    model = fit([seen[passes] for passes in FITTED])
    base = seen[1].decades / seen[1].seconds
    print(f"link {rate}: c1 {1e3 * model.outer_s:.0f} ms a round, c {1e3 * model.inner_s:.0f} ms a")
    print(f"pass, theta {model.theta:.2f}, rho {model.rho:.3f}")
    print("| t2 | ms a round | decades a round | decades a second | times t2 = 1 | predicted |")
    print("|---|---|---|---|---|---|")
    for passes, o in seen.items():
        rate_s = o.decades / o.seconds
        predicted = model.rate(passes) / model.rate(1)
        print(
            f"| {passes} | {1e3 * o.seconds:.0f} | {o.decades:.2f} | {rate_s:.2f} "
            f"| {rate_s / base:.2f} | {predicted:.2f} |"
        )
    part = stretch(chosen, options.gap)
    o = observed(0, part)
    rate_s = o.decades / o.seconds
    means = f"{1e3 * o.seconds:.0f} | {o.decades:.2f} | {rate_s:.2f} | {rate_s / base:.2f}"
    print(f"| policy | {means} | |")
    for words in chosen["said"]:
        print(f"  {words}")
    sys.stdout.flush()


def main() -> None:
    """Run the study, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "20gbit"], help="of all links")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--l2", type=float, default=1e-5)
    parser.add_argument("--gap", type=float, default=1e-8, help="relative, that a run goes to")
    parser.add_argument("--passes-tried", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12])
    parser.add_argument("--passes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not {*FITTED} <= {*options.passes_tried}:
        parser.error(
            f"--passes-tried must have {' and '.join(map(str, FITTED))}, as the model does"
        )
    if options.role:
        print(json.dumps(train(options)))
        return
    for rate in options.rates:
        study(rate, options)


if __name__ == "__main__":
    main()
