"""Submit a job to YARN and print its id, even if an interrupt comes: from then on the job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from elasticml.errors import ConfigError

if TYPE_CHECKING:
    import skein

    from elasticml.jobs.applications import Application
    from elasticml.jobs.yarn_submit import Plan

#: Exit code of a command that was ended by Ctrl-C.
INTERRUPTED = 130


@dataclass(slots=True, kw_only=True)
class Handed:
    """Progress of a submission, for the handler of an interrupt."""

    #: None until YARN has accepted the job.
    application: Application | None = None
    #: Whether ``elasticml status`` and ``result`` can find it by its id.
    is_listed: bool = False


def hand_over(
    client: skein.Client,
    plan: Plan,
    record: Mapping[str, Any],
    handed: Handed,
    *,
    evaluates: bool,
    announce: Callable[[Application], None],
) -> Application:
    """Submit a job and record its application in the user's home directory.

    Parameters
    ----------
    handed : Handed
        Updated with each step.
    announce : callable
        Called with the application, even after an interrupt. The application is recorded first, so
        that its id can be used as soon as it is printed. A failure to record it is only a warning,
        because the job runs.

    Raises
    ------
    ElasticmlError
        When the job is not submitted.
    """
    from elasticml.jobs.applications import remember
    from elasticml.jobs.yarn_submit import submit_plan

    application = handed.application = submit_plan(client, plan, record, evaluates=evaluates)
    try:
        remember(plan.conf, application)
        handed.is_listed = True
    except ConfigError as error:
        say(f"{application.id} is running, but status and result cannot find it: {error.message}")
    finally:
        announce(application)
    return application


@contextmanager
def nothing_submitted() -> Iterator[None]:
    """Report an interrupt that came before the submission."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; nothing was submitted")
        raise click.exceptions.Exit(INTERRUPTED) from None


def left_in_doubt(plan: Plan) -> click.exceptions.Exit:
    """Report an interrupt during the submission; return the command's exit."""
    say(
        f"interrupted while submitting the job {plan.name}, which may be running: check with yarn "
        "application -list, end it with elasticml kill APPLICATION_ID; "
        f"{plan.place} stays reserved for it"
    )
    return click.exceptions.Exit(INTERRUPTED)


def tell_how_to_get_back(application: Application, *, is_listed: bool) -> None:
    """Print the commands for a job that keeps running."""
    commands = [("kill", "end it")]
    if is_listed:
        result = f"fetch its run from {application.place}"
        commands = [("status", "show its state"), ("result", result), *commands]
    else:
        commands = [("logs", f"print its logs; its run is in {application.place}"), *commands]
    for command, purpose in commands:
        say(f"elasticml {command} {application.id}: {purpose}")


def say(text: str) -> None:
    """Print a message on standard error, apart from the output that scripts read."""
    click.echo(f"elasticml: {text}", err=True)
