"""``python -m tests.play``: play plans, and check what must hold after each."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticml.data.storage.filesystem import write_whole

if TYPE_CHECKING:
    from tests.play.campaign import Verdict
    from tests.play.plan import Plan

_WORLDS = ("simulator", "local", "nannies", "stock", "hosts", "yarn", "raising", "damaged")
#: Plans of exceptions that share a world.
_GROUP = 10


@click.command()
@click.option("--on", "where", default="simulator", show_default=True, help="Worlds, in turn.")
@click.option("--plans", type=click.IntRange(1), help="Number of plans; by default 100 or 4.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the first.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Start none afterwards.")
@click.option("--processes", type=click.IntRange(1), help="Of the simulator; one per core.")
@click.option("--plan", "file", type=click.Path(path_type=Path), help="Play this plan again.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the figures to a JSON file.")
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
) -> None:
    """Play small jobs under faults, and check what must hold after each.

    On the simulator each plan is a job of a random algorithm in a random world: members are killed,
    stopped, cut off, slowed, noticed and replaced, the driver is killed and resumes. Sums must be
    exact, every example counted once, no gap below the true one, the result near the undisturbed
    one, and the job must end. A plan that violates a rule is reduced to the fewest faults.

    On processes the jobs run on the workers of em.LocalCluster (local), of distributed.LocalCluster
    with nannies (nannies), of dask scheduler and dask worker (stock), and of the same in network
    namespaces (hosts). Two more worlds are groups of plans on local: each builtin exception from
    the job's own code (raising), and a wrong byte in the data's files (damaged). Nothing may be
    left: process, descriptor, shared memory, file, task. Full disks and hosts need root. A world
    named yarn is a mini Hadoop (yarn/mini).

    \b
    Examples:
        python -m tests.play --on simulator --minutes 60 --out figures.json
        python -m tests.play --on local,nannies,stock,hosts --plans 40 --seed 1
        python -m tests.play --on raising,damaged
        python -m tests.play --plan play-local-17.json

    A plan that violates a rule is written as JSON, with the logs of its processes, beside --out.
    Exit code 1 after a violation.
    """
    from tests.play.campaign import Totals

    worlds = where.split(",")
    if unknown := [name for name in worlds if name not in _WORLDS]:
        raise click.BadParameter(f"{unknown[0]} is none of {', '.join(_WORLDS)}", param_hint="--on")
    folder = Path() if out is None else out.parent
    default = 100 if worlds == ["simulator"] else 4
    seeds = _seeds(seed, default, plans, minutes)
    totals, begin_s, rules = Totals(), time.monotonic(), set[str]()
    try:
        for verdict in _verdicts(worlds, seeds, processes or os.cpu_count() or 1, file, folder):
            totals.add(verdict)
            _show(verdict)
            if verdict.violations and file is None:
                _keep(verdict, folder, rules)
    except KeyboardInterrupt:
        click.echo("interrupted: the plans that were running do not count")
    totals.seconds = time.monotonic() - begin_s
    for line in totals.table():
        click.echo(line)
    if out is not None:
        write_whole(str(out), json.dumps(totals.to_json(), indent=1).encode())
    context.exit(1 if totals.wrong else 0)


def _seeds(first: int, default: int, plans: int | None, minutes: float | None) -> Iterator[int]:
    """Yield seeds until their number or the time is reached."""
    count = default if plans is None and minutes is None else plans
    until_s = float("inf") if minutes is None else time.monotonic() + 60.0 * minutes
    for number in itertools.count() if count is None else range(count):
        if time.monotonic() >= until_s:
            return
        yield first + number


def _verdicts(
    worlds: Sequence[str], seeds: Iterator[int], processes: int, file: Path | None, folder: Path
) -> Iterator[Verdict]:
    """Play the plan of a file, or drawn ones."""
    from tests.play.campaign import judge, judge_seeds
    from tests.play.process_campaign import judge_groups

    if file is not None:
        plan = _read(file)
        return judge_groups([[plan]], folder) if "on" in plan.world else iter([judge(plan)])
    if list(worlds) == ["simulator"]:
        return judge_seeds(seeds, processes)
    return judge_groups(_groups(worlds, seeds), folder)


def _groups(worlds: Sequence[str], seeds: Iterator[int]) -> Iterator[list[Plan]]:
    """Yield the plans of each group on processes."""
    from tests.play.grid import draw, draw_damaged, draw_raising

    drawn = [name for name in worlds if name not in ("raising", "simulator")]
    for number, seed in enumerate(seeds if drawn else ()):
        on = drawn[number % len(drawn)]
        yield [draw_damaged(seed) if on == "damaged" else draw(seed, on)]
    if "raising" in worlds:
        raising = draw_raising()
        yield from (raising[k : k + _GROUP] for k in range(0, len(raising), _GROUP))


def _show(verdict: Verdict) -> None:
    """Print a plan's line, and what it violates."""
    what = f"{verdict.seconds:.1f} s, {verdict.rounds} rounds, {dict(Counter(verdict.hits))}"
    error = f"; {verdict.error[:200]}" if verdict.error else ""
    click.echo(f"{verdict.name}: {what}{error}")
    for rule, text in verdict.violations[:5]:
        click.echo(f"VIOLATION {verdict.name}: {rule}: {text}")


def _keep(verdict: Verdict, folder: Path, rules: set[str]) -> None:
    """Write a plan that violates a rule.

    Parameters
    ----------
    rules : set of str
        Those violated in virtual time so far: the first plan of each is reduced.
    """
    from tests.play.campaign import minimal_plan

    plan, rule = verdict.plan, verdict.violations[0][0]
    if "on" not in plan.world and rule not in rules:
        rules.add(rule)
        plan = minimal_plan(plan)
        click.echo(f"{len(plan.faults)} faults suffice")
    path = folder / f"play-{plan.world.get('on', 'simulator')}-{plan.seed}.json"
    write_whole(str(path), plan.to_json().encode())
    click.echo(f"  again: python -m tests.play --plan {path}")


def _read(file: Path) -> Plan:
    from elasticml.errors import ConfigError
    from tests.play.plan import Plan

    try:
        return Plan.from_json(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--plan: cannot read {file}: {error}") from error


if __name__ == "__main__":
    play()
