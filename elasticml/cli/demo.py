"""``elasticml demo``: half of the members are killed and come back, under four rules."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from elasticml.job import Job
    from elasticml.jobs.result import Result

#: A scenario's label, its directory, and its rule for absent examples; None is without faults.
SCENARIOS = (
    ("no failure", "no-failure", None),
    ("stall", "stall", "stall"),
    ("ignore", "ignore", "ignore"),
    ("taylor", "taylor", "taylor"),
)
L2, POSITIVE_SHARE = 3e-3, 0.1

_HELP = """Train on 14 worker processes; kill 7 in round 100 of 300; bring 7 back in round 200.

Runs four times on one cluster: without failure, and with three ways to handle it: wait (stall),
continue with the remaining examples (ignore), or replace the others by a first-order estimate
(taylor). Prints objective and test average precision at five rounds, and the path of the plot.

\b
Examples:
    elasticml demo
    elasticml demo --out runs/demo --rows 10000
    elasticml demo --json | tail -1
"""


@click.command(help=_HELP, short_help="See elasticml survive failures, in three minutes.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder for the four run directories and the plot; a former demo in it is removed.",
)
@click.option("--rows", default=30_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--rounds", default=300, show_default=True, type=click.IntRange(min=6))
@click.option("--workers", default=14, show_default=True, type=click.IntRange(min=2))
@click.option("--json", "as_json", is_flag=True, help="Print the results as the last line.")
@click.option("-v", "--verbose", is_flag=True, help="Show Dask's log, and tracebacks of errors.")
def demo(out: Path, rows: int, rounds: int, workers: int, as_json: bool, verbose: bool) -> None:
    """Run the demonstration."""
    from elasticml.cli.cluster import client_of
    from elasticml.specification.algorithms import BatchGradient
    from elasticml.specification.sections import LocalWorkers

    started_s = time.monotonic()
    directories = [out / folder for _, folder, _ in SCENARIOS]
    _clear(directories)
    half = workers // 2
    click.echo(
        f"Training on {rows} synthetic splice sites with {workers} worker processes; {half} are "
        f"killed in round {rounds // 3} and come back in round {2 * rounds // 3}."
    )
    click.echo(f"Starting {workers} workers; the first time on a machine they compile kernels.")
    cluster = LocalWorkers(workers=workers)
    summaries: dict[str, Any] = {}
    with client_of(cluster, BatchGradient.name, verbose=verbose) as client:
        click.echo(f"Started after {time.monotonic() - started_s:.0f} s.")
        for (label, _, absent), directory in zip(SCENARIOS, directories, strict=True):
            job = _job(label, absent, rows, rounds, workers)
            summaries[label] = _run(job, client, label, directory, cluster.model_dump())
    _show(out, directories, summaries, time.monotonic() - started_s, as_json)


def _job(label: str, absent: Any, rows: int, rounds: int, workers: int) -> Job:
    from elasticml.data.synthetic.splice_sites import synthetic_splice
    from elasticml.job import Job
    from elasticml.specification.algorithms import BatchGradient
    from elasticml.specification.sections import Evaluate, Members, Stop, read_faults

    half, back_at = workers // 2, 2 * rounds // 3
    faults = [{"round": rounds // 3, "lose": half}, {"round": back_at, "return": half}]
    return Job(
        # The paper's stand-ins, without the guard of the default mode.
        BatchGradient(
            loss="logistic",
            l2=L2,
            optimizer="gd",
            intercept=False,
            tolerance=0.0,
            mode="paper",
            roll_back=0,
        ),
        synthetic_splice(rows, seed=1, positive_share=POSITIVE_SHARE),
        test=synthetic_splice(rows // 2, seed=2, positive_share=POSITIVE_SHARE),
        name=label,
        absent=absent or "taylor",
        stop=Stop(rounds=rounds),
        faults=read_faults(faults if absent else []),
        members=Members(start=workers),
        evaluate=Evaluate(every=max(1, rounds // 30), rounds=(back_at - 1,)),
    )


def _run(job: Job, client: Any, label: str, directory: Path, cluster: dict[str, Any]) -> Any:
    from rich.console import Console

    from elasticml.jobs.progress_bar import ProgressBar
    from elasticml.jobs.run_directory import RunDirectory
    from elasticml.report.run_page import write_report

    handle = job.start(client)
    with ProgressBar(Console(stderr=True), label=f"{label:<10}") as progress:
        result = handle.result(
            run_dir=directory, callbacks=[progress], cluster=cluster, cancels=True
        )
    handle.forget()
    _over_all_examples(result, job).write(RunDirectory(directory))
    write_report(directory)
    return result.summary


def _over_all_examples(result: Result, job: Job) -> Result:
    """Return a result with the objective and the test score over all examples, lost ones too."""
    from elasticml.data.dataset_stats import merge_summaries
    from elasticml.data.scored_rows import test_source, training_source
    from elasticml.evaluation.scoring import scores_here
    from elasticml.jobs.result import History
    from elasticml.story.history import HistoryRow

    train, test, section = (
        training_source(job.source),
        test_source(job.source),
        result.job["algorithm"],
    )
    assert test is not None
    facts = merge_summaries([train.survey(block.index) for block in train.blocks()])
    history = [dict(row) for row in result.history]
    # The last row of a round is that of its model.
    rows = {HistoryRow(row).round: row for row in history}
    models = {r: model for r, model in result.kept.items() if r in rows}
    models |= {HistoryRow(history[-1]).round: result.arrays}
    parts = (section, facts, list(models.values()))
    losses = scores_here(*parts, train, ["neg_log_loss"])
    ranks = scores_here(*parts, test, ["average_precision"])
    for at, loss, rank in zip(models, losses, ranks, strict=True):
        coef = models[at]["coef"]
        penalty = 0.5 * L2 * float((coef * coef).sum())
        rows[at]["objective_full"] = penalty - (loss["neg_log_loss"] or 0.0)
        rows[at]["test_average_precision"] = rank["average_precision"]
    return replace(result, history=History(history))


def _clear(directories: list[Path]) -> None:
    """Remove the runs of a former demo; keep directories that are not runs."""
    for directory in directories:
        if (directory / "story.jsonl").is_file():
            shutil.rmtree(directory)


def _show(
    out: Path, directories: list[Path], summaries: dict[str, Any], seconds: float, as_json: bool
) -> None:
    from elasticml.jobs.run_directory import json_safe
    from elasticml.report.overlay_page import table, text_table, write_overlay

    labels = list(summaries)
    page = write_overlay(directories, labels, out / "demo.html")
    click.echo()
    click.echo(text_table(table(directories, labels, None)))
    click.echo(f"picture     {out / 'overlay.png'}")
    click.echo(f"report      {page}")
    click.echo(f"time        {seconds:.0f} s")
    if as_json:
        click.echo(json.dumps(json_safe({"seconds": seconds, "runs": summaries})))
