"""``elasticml replay``: compute a run again from its story and compare it bit for bit."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import click

#: Seconds from one word of progress to the next.
PAUSE_S = 2.0

_HELP = """Compute a run again from its story, here, without a cluster, and compare it bit for bit.

RUN_DIR is a run's directory (of run, simulate, or result). Its data are read again; kills, returns,
moves and re-tries are followed as the story tells them, and no time is waited for. After each
exchange a digest of all sums and models is compared with the run's.

\b
Examples:
    elasticml replay runs/first-20260101-120000
    elasticml replay runs/first-20260101-120000 --until 40 --out runs/first-at-40
    elasticml replay runs/first-20260101-120000 --json | tail -1

\b
It says "identical", with a digest of coef; or in one line
    why it is refused (exit 2): the story was edited, or versions, processor or data are others
    what differs (exit 3): the first round and exchange with other bits, or what of model.npz
The replay's own directory holds the model, the story as far as it was followed, and a summary.
"""


@click.command(help=_HELP, short_help="Compute a run again from its story, bit for bit.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--until",
    type=click.IntRange(min=0),
    metavar="ROUND",
    help="Stop with the model at the beginning of this round.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The replay's directory; by default runs/RUN-replay-TIME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def replay(
    run_dir: Path, until: int | None, out: Path | None, as_json: bool, verbose: bool
) -> None:
    """Replay a run."""
    from elasticml.jobs.replay import replay as replay_run
    from elasticml.jobs.replay import replay_path
    from elasticml.jobs.run_directory import check_free, json_safe

    path = out or replay_path(run_dir, datetime.now())
    check_free(path)
    done = replay_run(run_dir, out=path, until=until, progress=_Told(run_dir.resolve().name, until))
    if as_json:
        click.echo(json.dumps(json_safe(done.summary)))
        return
    click.echo(f"rounds      {done.rounds}, {done.exchanges} exchanges, {done.seconds:.1f} s")
    if until is not None:
        click.echo(f"identical   up to round {until}: every exchange has the run's bits")
    elif done.identical:
        click.echo("identical   every exchange and the model have the run's bits")
    else:
        click.echo("identical   every exchange has the run's bits; the run has left no model")
    click.echo(f"coef        {done.digest}")
    click.echo(f"model       {path / 'model.npz'}")


class _Told:
    """Says on standard error how far a replay is, every few seconds."""

    def __init__(self, name: str, until: int | None) -> None:
        self._name = name
        self._until = until
        self._next_s = time.monotonic() + PAUSE_S

    def __call__(self, reached: int, rounds: int) -> None:
        """Take note of the round that was reached."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PAUSE_S
            last = rounds if self._until is None else self._until
            click.echo(f"{self._name}: replayed round {reached}/{last}", err=True)
