"""A job handed over to YARN: its id is said whatever comes between, since it runs from then on."""

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

#: The exit code of a command that Ctrl-C has ended.
INTERRUPTED = 130


@dataclass(slots=True, kw_only=True)
class Handed:
    """What is known of a job on its way to YARN, at the moment of an interrupt, too."""

    #: None until YARN has accepted it.
    application: Application | None = None
    #: Whether ``elasticml status`` and ``result`` find it by its id.
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
    """Submit a job and write down which application it is.

    Parameters
    ----------
    handed : Handed
        Is filled in as soon as something is known.
    announce : callable
        Is told the application, whatever comes between: an interrupt, too. Where it is written
        down, that comes first, for whoever reads the id may use it at once; that it cannot be is a
        warning, since the job runs.

    Raises
    ------
    ElasticmlError
        When it is not submitted.
    """
    from elasticml.jobs.applications import remember
    from elasticml.jobs.yarn_submit import submit_plan

    application = handed.application = submit_plan(client, plan, record, evaluates=evaluates)
    try:
        remember(plan.conf, application)
        handed.is_listed = True
    except ConfigError as error:
        say(f"{application.id} runs, but status and result will not know it: {error.message}")
    finally:
        announce(application)
    return application


@contextmanager
def nothing_submitted() -> Iterator[None]:
    """Say of an interrupt that it came before there was anything to interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; nothing has been submitted")
        raise click.exceptions.Exit(INTERRUPTED) from None


def left_in_doubt(plan: Plan) -> click.exceptions.Exit:
    """Say of an interrupt that it came while YARN was given the job; return the command's end."""
    say(
        f"interrupted while YARN was given the job {plan.name}, which may run all the same: yarn "
        "application -list tells, and elasticml kill APPLICATION_ID ends it; "
        f"{plan.place} stays taken"
    )
    return click.exceptions.Exit(INTERRUPTED)


def tell_how_to_get_back(application: Application, *, is_listed: bool) -> None:
    """Name the commands for a job that goes on."""
    ways = [("kill", "end it")]
    if is_listed:
        fetching = f"fetch its run, which is in {application.place}"
        ways = [("status", "how it stands"), ("result", fetching), *ways]
    else:
        ways = [("logs", f"what is said in it; its run is in {application.place}"), *ways]
    for command, what in ways:
        say(f"elasticml {command} {application.id}: {what}")


def say(text: str) -> None:
    """Tell people something, beside what scripts read."""
    click.echo(f"elasticml: {text}", err=True)
