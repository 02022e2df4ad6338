"""``python -m yarn.mini``: a real Hadoop on this machine, for experiments and tests."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import click

from elasticml.cli.main import main
from yarn.mini.daemons import default_root
from yarn.mini.demo import preemption_options, yarn_demo
from yarn.mini.mini_settings import Preemption
from yarn.mini.mini_yarn import MiniYarn

_HELP = """Run a real Hadoop on this machine, for experiments: a ResourceManager, NodeManagers and
HDFS, all on loopback addresses.

\b
Examples:
    python -m yarn.mini up                        start it; the queues are ml and prod
    eval "$(python -m yarn.mini env)"             point this shell's programs to it
    elasticml submit job.yaml --queue ml          run a job on it
    python -m yarn.mini status
    python -m yarn.mini down
    python -m yarn.mini demo                      start one and see a job being pre-empted on it

It requires Java and, the first time, Maven, which fetches Hadoop (90 MB).
"""

_root = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for configuration, data and logs; default: one per user in the temporary "
    "directory.",
)
_verbose = click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")


@click.group(
    name="python -m yarn.mini", help=_HELP, short_help="Start a real Hadoop on this machine."
)
def mini_yarn() -> None:
    """Group the commands."""


mini_yarn.add_command(yarn_demo)


@mini_yarn.command(short_help="Start it.")
@_root
@click.option("--nodes", type=click.IntRange(1, 100), default=2, show_default=True)
@click.option(
    "--node-memory", default="6 GiB", show_default=True, help="Memory of a node for containers."
)
@click.option("--node-vcores", type=click.IntRange(1), default=16, show_default=True)
@preemption_options
@_verbose
def up(
    root: Path | None,
    nodes: int,
    node_memory: str,
    node_vcores: int,
    max_wait: float,
    sigkill_delay: float,
    verbose: bool,
) -> None:
    """Start a ResourceManager, NodeManagers and HDFS; return when YARN can grant containers."""
    began_s = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - began_s:5.1f} s] {line}", err=True)

    yarn = MiniYarn(
        root or default_root(),
        say=say,
        nodes=nodes,
        node_memory=node_memory,
        node_vcores=node_vcores,
        preemption=Preemption(max_wait_s=max_wait),
        sigkill_delay_s=sigkill_delay,
    ).up()
    where = "" if root is None else f" --root {shlex.quote(str(yarn.root))}"
    click.echo(f"ResourceManager  {yarn.rm_url}")
    click.echo(f"HDFS             {yarn.hdfs_url}  {yarn.webhdfs_url}")
    click.echo(f'in this shell    eval "$(python -m yarn.mini env{where})"')
    click.echo("then             elasticml submit job.yaml --queue ml")
    click.echo(f"at the end       python -m yarn.mini down{where}")


@mini_yarn.command(short_help="End it.")
@_root
@_verbose
def down(root: Path | None, verbose: bool) -> None:
    """End every process: daemons, containers and their remaining children."""
    count = MiniYarn.end_at(root or default_root())
    click.echo(f"ended {count} processes" if count else "nothing was running")


@mini_yarn.command(short_help="Show its daemons and nodes.")
@_root
@click.option("--json", "as_json", is_flag=True, help="Print it as one line of JSON.")
@_verbose
@click.pass_context
def status(context: click.Context, root: Path | None, as_json: bool, verbose: bool) -> None:
    """Show daemons and nodes; the exit code is 3 if a daemon is not running."""
    yarn = _at(root)
    pids, nodes, daemons = yarn.pids(), yarn.nodes(), yarn.daemons()
    missing = [name for name in daemons if name not in pids]
    if as_json:
        facts = {"root": str(yarn.root), "daemons": pids, "missing": missing, "nodes": nodes}
        urls = {"rm": yarn.rm_url, "hdfs": yarn.hdfs_url, "webhdfs": yarn.webhdfs_url}
        click.echo(json.dumps({**facts, **urls}))
    else:
        click.echo(f"ResourceManager  {yarn.rm_url}")
        click.echo(f"HDFS             {yarn.hdfs_url}  {yarn.webhdfs_url}")
        click.echo(f"files and logs   {yarn.root}")
        for name in daemons:
            click.echo(f"{name:<16} {f'pid {pids[name]}' if name in pids else 'not running'}")
        for node, state in sorted(nodes.items()):
            click.echo(f"{node:<16} {state}")
    if missing:
        context.exit(3)


@mini_yarn.command(short_help="Print the environment variables for a shell.")
@_root
@_verbose
def env(root: Path | None, verbose: bool) -> None:
    """Print environment variables for a shell: ``eval "$(python -m yarn.mini env)"``."""
    for name, value in _at(root).environment().items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _at(root: Path | None) -> Any:
    return MiniYarn.at(root or default_root())


if __name__ == "__main__":
    main(command=mini_yarn)
