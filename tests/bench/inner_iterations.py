"""Time to a gap against t2, the passes in a round, on a slow link and on a fast one.

    python tests/bench/inner_iterations.py [--rates 1gbit 20gbit] [--members 2] [--rows 200000]

Every member and the driver have separate hosts (network namespaces); links between them are shaped.
Runs CoCoA with fixed numbers of passes and with the policy that chooses them. The cost model is
fitted to the rounds with 1 and 4 passes; its prediction for every number is printed beside the
measurement. Needs root and iproute2. Source of the figure: Snap ML, Figure 4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from distributed import Client

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "papers")]

from support import snapml_rounds  # noqa: E402
from support.snapml_rounds import FITTED, observed, stretch  # noqa: E402

import elasticml as em  # noqa: E402
from elasticml.chaos.namespaces import address  # noqa: E402
from elasticml.policies.inner_iterations import Observed, fit  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.namespaces import PORT, hosts, serving  # noqa: E402


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run the job as its client; return costs and progress of its rounds."""
    with Client(f"tcp://{address(0)}:{PORT}", set_as_default=False) as client:
        client.wait_for_workers(options.members)
        return snapml_rounds.train(
            client,
            options.rows,
            l2=options.l2,
            passes=options.passes,
            collective=em.Collective(transport="stream"),
            stop=em.Stop(rounds=400, seconds=60),
        )


def one_run(names: list[str], options: argparse.Namespace, passes: int) -> Any:
    """Start all processes, each on its host, and run one job; 0 passes is the policy's choice."""
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
            seen[passes] = observed(
                passes, stretch(one_run(names, options, passes)["rounds"], options.gap)
            )
        chosen = one_run(names, options, 0)
    model = fit([seen[passes] for passes in FITTED])
    base = seen[1].decades / seen[1].seconds
    print(f"link {rate}: c1 {1e3 * model.outer_s:.0f} ms a round, c {1e3 * model.inner_s:.0f} ms a")
    print(f"pass, theta {model.theta:.2f}, rho {model.rho:.3f}")
    harness.head(
        "t2", "ms a round", "decades a round", "decades a second", "times t2 = 1", "predicted"
    )
    for passes, o in seen.items():
        rate_s = o.decades / o.seconds
        predicted = model.rate(passes) / model.rate(1)
        print(
            f"| {passes} | {1e3 * o.seconds:.0f} | {o.decades:.2f} | {rate_s:.2f} "
            f"| {rate_s / base:.2f} | {predicted:.2f} |"
        )
    part = stretch(chosen["rounds"], options.gap)
    o = observed(0, part)
    rate_s = o.decades / o.seconds
    means = f"{1e3 * o.seconds:.0f} | {o.decades:.2f} | {rate_s:.2f} | {rate_s / base:.2f}"
    print(f"| policy | {means} | |")
    for words in chosen["said"]:
        print(f"  {words}")
    sys.stdout.flush()


def main() -> None:
    """Run the study, or one of its processes."""
    parser = harness.parser(__doc__)
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
