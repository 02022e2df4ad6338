"""``elasticml replay``: repeat a run's computation from its story and compare it bit for bit."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path

import click

#: Seconds between two progress lines.
PAUSE_S = 2.0

_HELP = """Repeat a run's computation from its story, without a cluster, and compare it bit for bit.

RUN_DIR is a run directory (of run, simulate or result). Its data are read again; kills, returns,
moves and retries follow the story, without waiting. After each exchange a digest of all sums and
models is compared with the run's.

\b
Examples:
    elasticml replay runs/first-20260101-120000
    elasticml replay runs/first-20260101-120000 --until 40 --out runs/first-at-40
    elasticml replay runs/first-20260101-120000 --json | tail -1

\b
Prints "identical" with a digest of coef; or in one line
    why it is refused (exit 2): the story was edited, or versions, processor or data differ
    what differs (exit 3): the first round and exchange, or the arrays of model.npz
The replay's own directory holds the model, the story up to that point, and a summary.
"""


@click.command(help=_HELP, short_help="Repeat a run's computation, bit for bit.")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option(
    "--until",
    type=click.IntRange(min=0),
    metavar="ROUND",
    help="Stop at the beginning of this round, and keep the model.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The replay's directory; default: runs/RUN-replay-TIME.",
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
    progress = _Progress(run_dir.resolve().name, until)
    done = replay_run(run_dir, out=path, until=until, progress=progress)
    if as_json:
        click.echo(json.dumps(json_safe(done.summary)))
        return
    click.echo(f"rounds      {done.rounds}, {done.exchanges} exchanges, {done.seconds:.1f} s")
    if until is not None:
        click.echo(f"identical   every exchange up to round {until}, bit for bit")
    elif done.identical:
        click.echo("identical   every exchange and the model, bit for bit")
    else:
        click.echo("identical   every exchange, bit for bit; the run has no model to compare")
    click.echo(f"coef        {done.digest}")
    click.echo(f"model       {path / 'model.npz'}")


class _Progress:
    """Print the progress of a replay on standard error every few seconds."""

    def __init__(self, name: str, until: int | None) -> None:
        self._name = name
        self._until = until
        self._next_s = time.monotonic() + PAUSE_S

    def __call__(self, reached: int, rounds: int) -> None:
        """Report that round ``reached`` of ``rounds`` is done."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PAUSE_S
            last = rounds if self._until is None else self._until
            click.echo(f"{self._name}: replayed round {reached}/{last}", err=True)
