"""The steps of a submission: defer interrupts, submit, record the application, print its id.

Once YARN has accepted a job it runs, so its id must be printed whatever happens in between: a
Ctrl-C without it would leave behind a job that the user cannot find.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import click

from elasticml.errors import ConfigError

if TYPE_CHECKING:
    from elasticml.clusters.yarn.jobs.applications import Application
    from elasticml.clusters.yarn.jobs.submit import SubmissionPlan
    from elasticml.clusters.yarn.yarn_client import YarnClient
    from elasticml.protocol.job_record import JobRecord


#: Signals that end a command: Ctrl-C, and SIGTERM from other processes.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DeferredInterrupts:
    """The interrupt that arrived while interrupts were deferred, if any."""

    def __init__(self) -> None:
        self._is_pending = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Defer the first SIGINT; raise on the second."""
        if self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True

    def act(self) -> None:
        """Raise the deferred interrupt, if there is one.

        Raises
        ------
        KeyboardInterrupt
        """
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Iterator[DeferredInterrupts]:
    """Defer the first Ctrl-C or SIGTERM; enter it in the main thread.

    Call :meth:`DeferredInterrupts.act` afterwards, where an interrupt can be handled.
    """
    held = DeferredInterrupts()
    before = {number: signal.signal(number, held.note) for number in _SIGNALS}
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


#: Exit code of a command that was ended by Ctrl-C.
INTERRUPTED = 130


@dataclass(slots=True, kw_only=True)
class SubmissionState:
    """Progress of a submission, for the handler of an interrupt."""

    #: None until YARN has accepted the job.
    application: Application | None = None
    #: Whether ``elasticml status`` and ``result`` can find it by its id.
    is_listed: bool = False


def submit_and_record(
    client: YarnClient,
    plan: SubmissionPlan,
    record: JobRecord,
    state: SubmissionState,
    *,
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
    from elasticml.clusters.yarn.jobs.applications import save_application
    from elasticml.clusters.yarn.jobs.submit import submit_plan

    application = state.application = submit_plan(client, plan, record)
    try:
        save_application(plan.conf, application)
        state.is_listed = True
    except ConfigError as error:
        say(f"{application.id} is running, but status and result cannot find it: {error.message}")
    finally:
        announce(application)
    return application


@contextmanager
def abort_before_submission() -> Iterator[None]:
    """Report an interrupt that came before the submission."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; nothing was submitted")
        raise click.exceptions.Exit(INTERRUPTED) from None


def submission_in_doubt(plan: SubmissionPlan) -> click.exceptions.Exit:
    """Report an interrupt during the submission; return the command's exit."""
    say(
        f"interrupted while submitting the job {plan.name}, which may be running: check with yarn "
        "application -list, end it with elasticml kill APPLICATION_ID; "
        f"{plan.place} stays reserved for it"
    )
    return click.exceptions.Exit(INTERRUPTED)


def print_follow_up_commands(application: Application, *, is_listed: bool) -> None:
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
