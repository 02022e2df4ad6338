"""The command line ``elasticml``: its commands, errors and exit codes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from elasticml.cli.announce import announce
from elasticml.cli.applications import kill, logs, result, status
from elasticml.cli.convert import convert
from elasticml.cli.demo import demo
from elasticml.cli.doctor import doctor
from elasticml.cli.init import init
from elasticml.cli.jobs import jobs
from elasticml.cli.predict import predict
from elasticml.cli.report import report
from elasticml.cli.run import run
from elasticml.cli.schema import schema
from elasticml.cli.simulate import simulate
from elasticml.cli.submit import submit
from elasticml.cli.submit_flow import INTERRUPTED
from elasticml.cli.warm import warm
from elasticml.errors import ConfigError, DataError, ElasticmlError, SubmissionError, one_line
from elasticml.ids import VERSION

#: Exit codes: success; bad job, data or command line; failed at run time.
OK, BAD_INPUT, FAILED = 0, 2, 3
#: New objects before Python looks for garbage, 700 by default: imports create many and leave none.
_OBJECTS_BEFORE_COLLECTION = 50_000

_HELP = """Train models on a Dask cluster whose workers come and go.

A job file specifies the algorithm, the data, and what to do when workers are lost:

\b
    name: first
    data: {format: svmlight, path: train.svm, test: test.svm}
    algorithm: {name: linear, loss: logistic, l2: 1.0e-4}
    cluster: {kind: local, workers: 4}
    stop: {rounds: 100}

\b
    elasticml demo                          see it survive failures, in three minutes
    elasticml init data.csv                 write a job file for a data file
    elasticml run job.yaml                  run a job file
    elasticml submit job.yaml               run it on a Hadoop cluster; status, logs, result, kill
    elasticml simulate job.yaml             simulate it in virtual time, in seconds
    elasticml jobs --scheduler ADDRESS      list the jobs of a Dask scheduler
    elasticml predict RUN data.csv --out p.parquet    predict with the model of a run
    elasticml report runs/first-*           compare runs
    elasticml convert data.svm data.chunks  convert data to chunk files, which jobs map
    elasticml schema --out job.schema.json  write the JSON schema of job files, for editors
    elasticml announce --grace 120 ...      tell jobs that workers will be stopped
    elasticml doctor                        check this machine
    elasticml warm                          compile all kernels ahead, once per machine

Completion of commands and options: _ELASTICML_COMPLETE=bash_source elasticml prints what bash reads
(also zsh_source, fish_source).

Exit codes: 0 success; 2 wrong job, data or command line, or refused by the cluster; 3 failed at run
time; 130 interrupted.
"""


@click.group(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="elasticml")
def elasticml() -> None:
    """Group the commands."""


for _command in (
    demo,
    init,
    run,
    submit,
    status,
    logs,
    result,
    kill,
    jobs,
    simulate,
    predict,
    report,
    convert,
    schema,
    announce,
    doctor,
    warm,
):
    elasticml.add_command(_command)


def main(arguments: Sequence[str] | None = None, command: click.Command = elasticml) -> NoReturn:
    """Run a command line and exit; errors are one line on standard error."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # has the losses, formats and algorithms that a job file names
    try:
        code = command.main(words, prog_name=command.name, standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = BAD_INPUT
    except (KeyboardInterrupt, click.Abort) as error:
        # click converts the interrupt to an error of its own, which older versions raise from None;
        # the notes say what is left of a run.
        interrupt = error.__context__ if isinstance(error, click.Abort) else error
        notes = getattr(interrupt, "__notes__", [])
        _say("; ".join(["interrupted", *notes]))
        code = INTERRUPTED
    except Exception as error:
        if "--verbose" in words or "-v" in words:
            traceback.print_exc()
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else OK)


def _explain(error: Exception) -> int:
    """Print an error in one line; return the exit code."""
    if isinstance(error, ElasticmlError):
        _say(error.message)
        return BAD_INPUT if isinstance(error, ConfigError | DataError | SubmissionError) else FAILED
    _say(
        f"internal error: {type(error).__name__}: {one_line(error)} (--verbose shows the traceback)"
    )
    return FAILED


def _say(text: str) -> None:
    click.echo(f"elasticml: {' '.join(text.split())}", err=True)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Treat SIGTERM like Ctrl-C, so that the run directory is completed and workers exit."""
    raise KeyboardInterrupt
