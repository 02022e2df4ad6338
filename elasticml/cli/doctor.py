"""``elasticml doctor``: check this machine, and a YARN cluster, with remedies."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from elasticml.cli.checks import Check
from elasticml.ids import parse_size

_HELP = """Check what elasticml needs on this machine, with a remedy for each problem.

\b
Examples:
    elasticml doctor
    elasticml doctor --json | jq '.checks[] | select(.state != "ok")'
    elasticml doctor --yarn --queue ml

With --yarn it also checks the cluster that HADOOP_CONF_DIR or YARN_CONF_DIR names: the resource
manager, nodes and queue, the settings of pre-emption, and write access to HDFS. Nothing is started;
one small file is written and removed.

The exit code is 2 if something required is missing or broken.
"""
_SIGNS = {"ok": "ok", "missing": "--", "broken": "!!"}


@click.command(help=_HELP, short_help="Check this machine, and a YARN cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one line of JSON.")
@click.option("--yarn", "on_yarn", is_flag=True, help="Check the YARN cluster too.")
@click.option("--queue", help="Queue of the YARN cluster.  [default: dask-yarn's yarn.queue]")
@click.option(
    "--memory", default="2 GiB", show_default=True, help="Memory of a container, to count them."
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def doctor(
    context: click.Context,
    as_json: bool,
    on_yarn: bool,
    queue: str | None,
    memory: str,
    verbose: bool,
) -> None:
    """Check this machine, and the cluster."""
    from elasticml.cli.checks import all_checks
    from elasticml.user_cache import cache_directory

    checks = all_checks(os.environ, cache_directory())
    if on_yarn:
        checks = [check for check in checks if check.name != "YARN"] + _yarn_checks(queue, memory)
    is_usable = all(check.state == "ok" for check in checks if check.required)
    if as_json:
        click.echo(json.dumps({"usable": is_usable, "checks": [asdict(c) for c in checks]}))
    else:
        for check in checks:
            click.echo(f"{_SIGNS[check.state]}  {check.name:<11} {check.found}")
            if check.remedy:
                click.echo(f"    {'':<11} for {check.serves}: {check.remedy}")
    if not is_usable:
        context.exit(2)


def _yarn_checks(queue: str | None, memory: str) -> list[Check]:
    import dask.config

    from elasticml.cli.checks_yarn import yarn_checks

    queue = queue or str(dask.config.get("yarn.queue", "default"))
    try:
        memory_mib = max(1, parse_size(memory) // 2**20)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--memory") from None
    return yarn_checks(os.environ, queue, memory_mib)
