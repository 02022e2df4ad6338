"""``elasticml doctor``: what of this machine is usable, and what to do about the rest."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

_HELP = """Say what of this machine elasticml can use, with the remedy for what it cannot.

\b
Examples:
    elasticml doctor
    elasticml doctor --json | jq '.checks[] | select(.state != "ok")'

Exit code 2 when something is unusable without which nothing works.
"""
_SIGNS = {"ok": "ok", "missing": "--", "broken": "!!"}


@click.command(help=_HELP, short_help="See what of this machine is usable.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one line of JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
@click.pass_context
def doctor(context: click.Context, as_json: bool, verbose: bool) -> None:
    """Check this machine."""
    from elasticml.cli.checks import all_checks
    from elasticml.data.cache import cache_directory

    checks = all_checks(os.environ, cache_directory())
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
