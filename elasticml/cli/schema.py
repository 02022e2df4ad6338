"""The command ``elasticml schema``."""

from __future__ import annotations

import json
from pathlib import Path

import click

_HELP = """Print the JSON schema of job files, for editors.

Editors with a YAML language server, such as VS Code with the extension "YAML", complete keys,
show their documentation and mark mistakes if the first line of a job file names the schema:

\b
    elasticml schema --out elasticml-job.schema.json
    # yaml-language-server: $schema=elasticml-job.schema.json
"""


@click.command(help=_HELP)
@click.option(
    "--out",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the schema to FILE instead of printing it.",
)
def schema(out: Path | None) -> None:
    """Print the schema, or write it."""
    from elasticml.data.storage.filesystem import write_whole
    from elasticml.jobs.job_schema import job_schema

    text = json.dumps(job_schema(), indent=2) + "\n"
    if out is None:
        click.echo(text, nl=False)
        return
    write_whole(str(out), text.encode())
    click.echo(f"wrote {out}; name it in the first line of a job file:")
    click.echo(f"# yaml-language-server: $schema={out}")
