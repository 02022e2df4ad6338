"""``elasticml convert``: write data as chunk files, which jobs map instead of parsing text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from elasticml.data.source import Source

#: Seconds between two progress lines.
PAUSE_S = 2.0

_HELP = """Write data as chunk files: a folder that jobs map into memory instead of parsing text.

SOURCE is a file in any format that jobs read, or a job file, whose data section is used. DEST is
the new folder; it appears when it is complete, and an existing folder is not overwritten. Use it as
the data of a job; the data may be larger than the memory of the job's members:

\b
    data: {format: chunks, path: DEST}

\b
Examples:
    elasticml convert train.svm.gz train.chunks
    elasticml convert train.csv train.chunks --set label=y --set categorical=[city]
    elasticml convert test.csv test.chunks --set label=y --like train.chunks
    elasticml convert job.yaml train.chunks --set dtype=float32
    elasticml convert points.txt points.chunks --format svmlight --chunk-size "256 KiB"

With --like, test data get the columns and categories of the converted training data. A job reads
the converted data only: convert them again when the source changes.
"""


@click.command(help=_HELP, short_help="Write data as chunk files that jobs map.")
@click.argument("source", type=click.Path(path_type=str))
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--format", "kind", help="The source's format; default: from its file name.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the reader."
)
@click.option("--chunk-size", default="1 MiB", show_default=True, help="Largest size of a chunk.")
@click.option(
    "--like", type=click.Path(path_type=str), help="The converted training data, for test data."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def convert(
    source: str,
    dest: Path,
    kind: str | None,
    settings: tuple[str, ...],
    chunk_size: str,
    like: str | None,
    as_json: bool,
    verbose: bool,
) -> None:
    """Convert data."""
    from elasticml.cli.submit_flow import INTERRUPTED
    from elasticml.data.readers.chunk_folder import compute_stats, read_chunks
    from elasticml.data.readers.chunk_folder import convert as write
    from elasticml.jobs.job_spec import parse_chunk_size

    data = _source(source, kind, settings)
    size = parse_chunk_size(chunk_size)
    facts = None if like is None else compute_stats(read_chunks(like))
    began_s = time.monotonic()
    progress = _Progress()
    chunking = {} if size is None else {"chunk_bytes": size}
    try:
        made = write(data, dest, like=facts, on_progress=progress, **chunking)
    except KeyboardInterrupt:
        click.echo("elasticml: interrupted; nothing was written", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    seconds = time.monotonic() - began_s
    if as_json:
        summary = {
            "path": made.path,
            "rows": progress.rows,
            "bytes": progress.nbytes,
            "seconds": seconds,
        }
        click.echo(json.dumps({**summary, "blocks": len(made.blocks())}))
        return
    size_text = _mib(progress.nbytes)
    click.echo(f"converted   {progress.rows} examples, {size_text}, {seconds:.1f} s")
    click.echo(f"data        {{format: chunks, path: {made.path}}}")


def _source(source: str, kind: str | None, settings: tuple[str, ...]) -> Source:
    from elasticml.data.source import source_from_spec
    from elasticml.jobs.job_spec import apply_override, data_section, readers_part

    path, folder = Path(source), Path.cwd()
    wrapped: dict[str, Any] = {"data": {"format": kind, "path": source}}
    if kind is None and path.suffix in (".yaml", ".yml"):
        wrapped, folder = {"data": data_section(path)}, path.absolute().parent
    for setting in settings:
        apply_override(wrapped, f"data.{setting}")
    return source_from_spec(readers_part(wrapped["data"], folder))


class _Progress:
    """Print the progress of a conversion every few seconds."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self._began_s = self._printed_s = time.monotonic()

    def __call__(self, n_read: int, n_blocks: int, rows: int, nbytes: int) -> None:
        self.rows, self.nbytes = rows, nbytes
        now_s = time.monotonic()
        if now_s - self._printed_s < PAUSE_S:
            return
        self._printed_s = now_s
        rate = nbytes / max(1e-9, now_s - self._began_s)
        click.echo(
            f"block {n_read} of {n_blocks}, {rows} examples, {_mib(nbytes)}, {_mib(rate)}/s",
            err=True,
        )


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
