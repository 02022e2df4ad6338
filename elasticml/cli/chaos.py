"""``elasticml chaos``: jobs under seeded fault plans, and the rules that must hold after each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticml.data.storage.filesystem import write_whole

if TYPE_CHECKING:
    from elasticml.chaos.campaign import Totals, Verdict
    from elasticml.chaos.plan import FaultPlan

_HELP = """Run small jobs under random faults, and check what must hold after each.

On the simulator each plan is a job of a random algorithm in a random world: members are killed,
stopped, cut off, slowed, noticed and replaced, the driver is killed and resumes. Sums must be
exact, every example counted once, no gap below the true one, the result near the undisturbed one,
and the job must end. A plan that violates a rule is reduced to the fewest faults and written as
JSON.

\b
Examples:
    elasticml chaos --on simulator --plans 200 --seed 1
    elasticml chaos --on simulator --minutes 60 --out ledger.json
    elasticml chaos --plan chaos-plan-17.json

On processes, the workers of a local cluster and of a stock Dask cluster are disturbed in turn.
Nothing of them may be left afterwards: no process, descriptor, shared memory, temporary file.

\b
    elasticml chaos --on processes --plans 4 --seed 1
    elasticml chaos --on processes --minutes 60 --kill-every 15

On hosts, stock workers run in network namespaces, joined by a switch in user space. In addition,
hosts are cut off, alone or several together, and their frames are delayed, reordered, lost and
slowed. Needs Linux and root.

\b
    elasticml chaos --on hosts --plans 4 --seed 1

On yarn, workers and scheduler are containers of a mini Hadoop (elasticml mini-yarn). In addition,
another queue pre-empts containers, and nodes and the ResourceManager are killed and come back.

\b
    elasticml chaos --on yarn --plans 2 --seed 1

Exit code 1 after a violation.
"""


@click.command(help=_HELP, short_help="Run jobs under random faults and check the results.")
@click.option(
    "--on",
    "where",
    type=click.Choice(["simulator", "processes", "hosts", "yarn"]),
    default="simulator",
    show_default=True,
    help="Virtual time; worker processes, on hosts in network namespaces, in YARN's containers.",
)
@click.option(
    "--plans",
    type=click.IntRange(1),
    help="Number of plans or, except on the simulator, jobs; without --minutes 100 or 4.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the first.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Start none afterwards.")
@click.option("--processes", type=click.IntRange(1), help="By default one per core.")
@click.option(
    "--kill-every",
    "kill_every_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="On processes: a soak of long jobs with one SIGKILL each time, instead of plans.",
)
@click.option("--plan", "file", type=click.Path(path_type=Path), help="Replay this plan.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures to a JSON file.")
@click.option("-v", "--verbose", is_flag=True, help="One line for each plan; tracebacks of errors.")
@click.pass_context
def chaos(
    context: click.Context,
    where: str,
    plans: int | None,
    seed: int,
    minutes: float | None,
    processes: int | None,
    kill_every_s: float | None,
    file: Path | None,
    out: Path | None,
    verbose: bool,
) -> None:
    """Run fault plans."""
    from elasticml.chaos.campaign import run_campaign

    if file is not None:
        context.exit(_replay(file))
    default = 100 if where == "simulator" else 4
    count = default if plans is None and minutes is None else plans
    watch = _show if verbose else _show_wrong
    if where != "simulator":
        context.exit(_on_processes(where, seed, count, minutes, kill_every_s, out))
    totals = run_campaign(seed, count, minutes, processes or os.cpu_count() or 1, watch)
    for line in table(totals):
        click.echo(line)
    if out is not None:
        write_whole(str(out), json.dumps(totals.to_json(), indent=1).encode())
    _minimise(totals, Path() if out is None else out.parent)
    context.exit(1 if totals.wrong else 0)


def _on_processes(
    where: str,
    seed: int,
    jobs: int | None,
    minutes: float | None,
    kill_every_s: float | None,
    out: Path | None,
) -> int:
    """Disturb real processes; return the exit code."""
    from elasticml.chaos.processes import Kind, run_on_processes

    kinds: dict[str, tuple[Kind, ...]] = {"hosts": ("hosts",), "yarn": ("yarn",)}
    some = kinds.get(where, ("local", "stock"))
    totals = run_on_processes(seed, jobs, minutes, kill_every_s, click.echo, some)
    rows = [
        ("jobs", f"{totals.jobs}, {totals.rounds:,} rounds"),
        ("faults", f"{totals.faults.total():,}, {totals.killed:,} workers ended"),
        *((f"  {kind}", f"{count:,}") for kind, count in totals.faults.most_common()),
        *([("pre-empted", f"{totals.preempted:,} containers")] if where == "yarn" else []),
        ("rows checked", f"{totals.rows_checked:,}"),
        ("violations", f"{len(totals.wrong)}"),
        ("seconds", f"{totals.seconds:.0f}"),
    ]
    for name, value in rows:
        click.echo(f"{name:16}{value}")
    if out is not None:
        figures = vars(totals) | {"faults": dict(totals.faults)}
        write_whole(str(out), json.dumps(figures, indent=1).encode())
    return 1 if totals.wrong else 0


def table(totals: Totals) -> list[str]:
    """Return the figures of a campaign, one a line."""
    rows = [
        ("plans", f"{totals.plans}, seeds {totals.seed} to {totals.seed + totals.plans - 1}"),
        ("rounds", f"{totals.rounds:,}"),
        ("faults", f"{totals.faults.total():,}"),
        *((f"  {kind}", f"{count:,}") for kind, count in totals.faults.most_common()),
        ("member-years", f"{totals.member_years:.3f}"),
        ("violations", f"{len(totals.wrong)}"),
        (
            "seconds",
            f"{totals.seconds:.0f} in {totals.processes} processes, {totals.cpu_s:.0f} of CPU",
        ),
    ]
    return [f"{name:16}{value}" for name, value in rows]


def _show(verdict: Verdict) -> None:
    click.echo(
        f"seed {verdict.seed}: {verdict.name}: {verdict.rounds} rounds, "
        f"{verdict.faults.total()} faults, {verdict.cpu_s:.1f} s"
    )
    _show_wrong(verdict)


def _show_wrong(verdict: Verdict) -> None:
    for text in verdict.violations[:5]:
        click.echo(f"VIOLATION seed {verdict.seed}: {verdict.name}: {text}")
    if verdict.violations:
        click.echo(f"  again: elasticml chaos --on simulator --plans 1 --seed {verdict.seed}")


def _minimise(totals: Totals, folder: Path) -> None:
    """Write the first failing plan of each rule with its fewest faults."""
    from elasticml.chaos.campaign import minimal_plan, rule_of
    from elasticml.chaos.plan import draw_plan

    rules: set[str | None] = set()
    for verdict in totals.wrong:
        if (rule := rule_of(verdict)) not in rules:
            rules.add(rule)
            least = minimal_plan(draw_plan(verdict.seed))
            path = folder / f"chaos-plan-{verdict.seed}.json"
            write_whole(str(path), least.to_json().encode())
            click.echo(f"{len(least.faults)} faults suffice: elasticml chaos --plan {path}")


def _replay(file: Path) -> int:
    from elasticml.chaos.campaign import judge

    verdict = judge(_read(file))
    _show(verdict)
    return 1 if verdict.violations else 0


def _read(file: Path) -> FaultPlan:
    from elasticml.chaos.plan import FaultPlan
    from elasticml.errors import ConfigError

    try:
        return FaultPlan.from_json(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--plan: cannot read {file}: {error}") from error
