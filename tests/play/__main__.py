"""``python -m tests.play``: play plans, and check what must hold after each."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticml.data.storage.filesystem import write_whole

if TYPE_CHECKING:
    from tests.play.campaign import Totals, Verdict
    from tests.play.plan import Plan
    from tests.play.process_campaign import GridTotals

_HELP = """Play small jobs under faults, and check what must hold after each.

On the simulator each plan is a job of a random algorithm in a random world: members are killed,
stopped, cut off, slowed, noticed and replaced, the driver is killed and resumes. Sums must be
exact, every example counted once, no gap below the true one, the result near the undisturbed one,
and the job must end. A plan that violates a rule is reduced to the fewest faults.

On processes the jobs run on the workers of em.LocalCluster (local), of distributed.LocalCluster
with nannies (nannies), of dask scheduler and dask worker (stock), and of the same in network
namespaces (hosts). Two more worlds are groups of plans on local: each builtin exception from the
job's own code (raising), and a wrong byte in the data's files (damaged). Nothing may be left:
process, descriptor, shared memory, file, task. Full disks and hosts need root. A world named yarn
is a mini Hadoop (yarn/mini).

\b
Examples:
    python -m tests.play --on simulator --minutes 60 --out figures.json
    python -m tests.play --on local,nannies,stock,hosts --plans 40 --seed 1
    python -m tests.play --on raising,damaged
    python -m tests.play --plan play-local-17.json

A plan that violates a rule is written as JSON, with the logs of its processes, beside --out.
Exit code 1 after a violation.
"""
_WORLDS = ("simulator", "local", "nannies", "stock", "hosts", "yarn", "raising", "damaged")
#: Plans of exceptions that share a world.
_GROUP = 10


@click.command(help=_HELP)
@click.option("--on", "where", default="simulator", show_default=True, help="Worlds, in turn.")
@click.option("--plans", type=click.IntRange(1), help="Number of plans; by default 100 or 4.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the first.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Start none afterwards.")
@click.option("--processes", type=click.IntRange(1), help="Of the simulator; one per core.")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="Play this plan again.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures to a JSON file.")
@click.option("-v", "--verbose", is_flag=True, help="One line for each plan of the simulator.")
@click.pass_context
def play(
    context: click.Context,
    where: str,
    plans: int | None,
    seed: int,
    minutes: float | None,
    processes: int | None,
    file: Path | None,
    out: Path | None,
    verbose: bool,
) -> None:
    """Play plans."""
    worlds = where.split(",")
    if unknown := [name for name in worlds if name not in _WORLDS]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(_WORLDS)}", param_hint="--on")
    if file is not None:
        context.exit(_again(file, out))
    if worlds == ["simulator"]:
        context.exit(_on_simulator(seed, plans, minutes, processes, out, verbose))
    context.exit(_on_processes(worlds, seed, plans, minutes, out))


def _on_simulator(
    seed: int,
    plans: int | None,
    minutes: float | None,
    processes: int | None,
    out: Path | None,
    verbose: bool,
) -> int:
    from tests.play.campaign import run_campaign

    count = 100 if plans is None and minutes is None else plans
    watch = _show if verbose else _show_wrong
    totals = run_campaign(seed, count, minutes, processes or os.cpu_count() or 1, watch)
    for line in table(totals):
        click.echo(line)
    if out is not None:
        write_whole(str(out), json.dumps(totals.to_json(), indent=1).encode())
    _minimise(totals, _folder(out))
    return 1 if totals.wrong else 0


def _on_processes(
    worlds: Sequence[str], seed: int, plans: int | None, minutes: float | None, out: Path | None
) -> int:
    """Play drawn plans on processes; return the exit code."""
    count = 4 if plans is None and minutes is None else plans
    return _play_groups(_groups(worlds, seed, count, minutes), out)


def _groups(
    worlds: Sequence[str], seed: int, plans: int | None, minutes: float | None
) -> Iterator[list[Plan]]:
    """Yield the plans of each group, until their number or the time is reached."""
    from tests.play.grid import draw, draw_damaged, draw_raising

    until_s = float("inf") if minutes is None else time.monotonic() + 60.0 * minutes
    numbers = itertools.count() if plans is None else range(plans)
    drawn = [name for name in worlds if name not in ("raising", "simulator")]
    for number in numbers if drawn else ():
        if time.monotonic() >= until_s:
            return
        on = drawn[number % len(drawn)]
        yield [draw_damaged(seed + number) if on == "damaged" else draw(seed + number, on)]
    if "raising" in worlds:
        raising = draw_raising()
        yield from (raising[k : k + _GROUP] for k in range(0, len(raising), _GROUP))


def _play_groups(groups: Iterator[list[Plan]], out: Path | None) -> int:
    from tests.play.process_campaign import run_grid

    totals = run_grid(groups, _folder(out), click.echo)
    for line in grid_table(totals):
        click.echo(line)
    if out is not None:
        write_whole(str(out), json.dumps(totals.to_json(), indent=1).encode())
    return 1 if totals.wrong else 0


def _folder(out: Path | None) -> Path:
    return Path() if out is None else out.parent


def grid_table(totals: GridTotals) -> list[str]:
    """Return the figures of a campaign on processes: a line of each kind of fault."""
    columns = ("recovered", "error", "wrong", "endless", "leak", "raw error")
    kinds = sorted({kind for kind, _ in totals.faults})
    rows = [["fault", "hit", *columns]]
    for kind in kinds:
        counts = [totals.faults[kind, outcome] for outcome in columns]
        rows.append([kind, *map(str, (sum(counts), *counts))])
    sums = [sum(totals.faults[kind, outcome] for kind in kinds) for outcome in columns]
    rows.append(["all", *map(str, (totals.hit, *sums))])
    lines = [
        "".join(f"{cell:>12}" if n else f"{cell:18}" for n, cell in enumerate(r)) for r in rows
    ]
    return [
        *lines,
        f"{totals.plans} plans, {totals.rounds:,} rounds, {totals.rows_checked:,} rows checked; "
        f"longest wait for a round {totals.stall_s_max:.0f} s; {len(totals.wrong)} violations; "
        f"{totals.seconds:.0f} s",
    ]


def table(totals: Totals) -> list[str]:
    """Return the figures of a campaign in the simulator, one a line."""
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
        click.echo(f"  again: python -m tests.play --plans 1 --seed {verdict.seed}")


def _minimise(totals: Totals, folder: Path) -> None:
    """Write the first failing plan of each rule with its fewest faults."""
    from tests.play.campaign import minimal_plan, rule_of
    from tests.play.virtual_plans import draw_plan

    rules: set[str | None] = set()
    for verdict in totals.wrong:
        if (rule := rule_of(verdict)) not in rules:
            rules.add(rule)
            least = minimal_plan(draw_plan(verdict.seed))
            path = folder / f"play-simulator-{verdict.seed}.json"
            write_whole(str(path), least.to_json().encode())
            click.echo(f"{len(least.faults)} faults suffice: python -m tests.play --plan {path}")


def _again(file: Path, out: Path | None) -> int:
    """Play a plan of a file; return the exit code."""
    from tests.play.campaign import judge

    plan = _read(file)
    if "on" in plan.world:
        return _play_groups(iter([[plan]]), out)
    verdict = judge(plan)
    _show(verdict)
    return 1 if verdict.violations else 0


def _read(file: Path) -> Plan:
    from elasticml.errors import ConfigError
    from tests.play.plan import Plan

    try:
        return Plan.from_json(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--plan: cannot read {file}: {error}") from error


if __name__ == "__main__":
    play()
