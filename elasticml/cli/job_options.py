"""Options and output that the commands for job files share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from elasticml.story.summary import RunSummary, summary_from_json

F = TypeVar("F", bound=Callable[..., Any])


def job_options(run_dir: str, verbose: str, required: bool = True) -> Callable[[F], F]:
    """Add the argument JOB and the options ``--set --out --json --quiet --verbose`` to a command.

    Parameters
    ----------
    run_dir : str
        The default run directory, for the help.
    verbose : str
        Help text of ``--verbose``.
    required : bool
        Whether JOB is required.
    """
    options = (
        click.argument("job", type=click.Path(path_type=Path), required=required),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="SECTION.KEY=VALUE",
            help="Override one setting of the file; may be repeated.",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help=f"The run directory; default: {run_dir}.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line."),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=_keep_quiet,
            help="Print errors only, and what --json prints.",
        ),
        click.option("-v", "--verbose", is_flag=True, help=verbose),
    )

    def add_options(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


_QUIET: Final = "elasticml.quiet"


def _keep_quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[_QUIET] = value


def is_quiet() -> bool:
    """Whether the command that runs was given ``--quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def print_summary(summary: Mapping[str, Any], as_json: bool) -> None:
    """Print a run's summary as text, or as one line of JSON; nothing as text with ``--quiet``.

    That the model missed the job's tolerance is the last line, or on standard error.
    """
    read = summary_from_json(summary)
    if read.unconverged and (as_json or is_quiet()):
        click.echo(f"elasticml: {read.unconverged}", err=True)
    if is_quiet() and not as_json:
        return
    if as_json:
        from elasticml.jobs.run_directory import json_safe

        click.echo(json.dumps(json_safe(summary)))
        return
    for line in summary_lines(read):
        click.echo(line)


def summary_lines(summary: RunSummary) -> list[str]:
    """Return a run's summary as lines of text."""
    lines = [f"rounds      {summary.rounds} ({summary.stopped_by})"]
    if summary.engine is not None:
        lines.append(f"engine      {summary.engine}")
    if summary.objective is None:
        lines.append(f"objective   unknown: {summary.objective_missing_because}")
    else:
        lines.append(f"objective   {summary.objective:.8g}")
    if summary.gap is not None:
        bound = "at most " if summary.gap_is_bound else ""
        lines.append(f"gap         {bound}{summary.gap:.3g}")
    for name, metrics in (("train", summary.train), ("test", summary.test)):
        if metrics:
            lines.append(f"{name:<12}" + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    if summary.validation and summary.validation.get("score") is not None:
        kept = summary.validation
        lines.append(
            f"validation  {kept['metric']} {kept['score']:.6g} on {kept['rows']} rows, with the "
            f"model of round {kept['round']}"
        )
    if summary.lost:
        lines.append(f"members     {summary.lost} lost, {summary.returned} returned")
    if summary.retired:
        lines.append(f"members     {summary.retired} emptied and given back")
    if summary.decisions:
        decided = ", ".join(f"{name} {n}" for name, n in summary.decisions.items())
        lines.append(f"decisions   {decided}")
    lines += [f"note        {note}" for note in summary.notes or ()]
    folder = Path(str(summary.run_dir))
    if not folder.is_dir() or (folder / "report.html").exists():  # a full disk: a note says so
        lines.append(f"report      {folder / 'report.html'}")
    return [*lines, summary.unconverged] if summary.unconverged else lines
