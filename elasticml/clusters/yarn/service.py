"""Entry point of the containers: ``python -m elasticml.clusters.yarn.service SERVICE``.

The commands, their options and environment variables are those of ``dask-yarn services``, so that
dask-yarn's specifications run unchanged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from elasticml.clusters.yarn.container_context import EXIT_MESSAGE_KEY
from elasticml.clusters.yarn.skein_client import current_application
from elasticml.clusters.yarn.yarn_client import YarnCallError
from elasticml.errors import ConfigError, ElasticmlError, one_line

#: Exit status for errors that the user can fix.
BAD_INPUT = 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m elasticml.clusters.yarn.service")
    services = parser.add_subparsers(dest="service", required=True)
    services.add_parser("scheduler", help="run Dask's scheduler in this container")
    worker = services.add_parser("worker", help="run a Dask worker in this container")
    worker.add_argument(
        "--nthreads", type=int, help="number of threads; default: the container's vcores"
    )
    worker.add_argument(
        "--memory_limit",
        "--memory-limit",
        help="bytes, a size such as '5 GiB', or 0 for none; default: the container's memory",
    )
    client = services.add_parser("client", help="run a script in this container, then exit")
    client.add_argument("script")
    client.add_argument("args", nargs=argparse.REMAINDER)
    return parser


def run_client(script: str, arguments: Sequence[str]) -> int:
    """Run a user's script in this container, then end the application.

    Parameters
    ----------
    script : str
        Path of a Python script.
    arguments : sequence of str
        Its command-line arguments.

    Returns
    -------
    int
        The script's exit status.

    Raises
    ------
    ConfigError
        When the file does not exist.
    """
    application = current_application()
    if not os.path.exists(script):
        line = (
            f"client: there is no file {script!r} in the container; add it to the service's files"
        )
        application.shutdown("FAILED", line)
        raise ConfigError(line)
    status = subprocess.call([sys.executable, script, *arguments])
    if status == 0:
        application.shutdown("SUCCEEDED")
    else:
        application.shutdown(
            "FAILED", f"{script} exited with status {status}; see the log of dask.client"
        )
    return status


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the service that the command line names; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.service == "scheduler":
            from elasticml.clusters.yarn.scheduler_service import serve

            serve()
            return 0
        if options.service == "worker":
            from elasticml.clusters.yarn.worker_service import run_worker

            return run_worker(options.nthreads, options.memory_limit)
        return run_client(options.script, options.args)
    except ElasticmlError as error:
        _post_exit_message(str(error))
        sys.stderr.write(f"{error}\n")
        return BAD_INPUT
    except Exception as error:
        _post_exit_message(f"{type(error).__name__}: {one_line(error)}")
        raise


def _post_exit_message(line: str) -> None:
    """Write to the application's store why the process exits, for its container manager.

    YARN reports only the exit status.
    """
    name = os.environ.get("SKEIN_CONTAINER_ID")
    if name is None:
        return
    with suppress(YarnCallError, OSError), current_application() as application:
        application.store.put(EXIT_MESSAGE_KEY.format(name), " ".join(line.split()).encode())


def main() -> None:
    """Run a service, then exit at once: skein's threads may still be waiting."""
    status = run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
