"""``elasticml predict``: predict the rows of a file with a saved model, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_HELP = """Predict the rows of a file with a saved model.

MODEL is a run directory, its model.npz, or a file that model.save wrote. DATA is a CSV or Parquet
file with the columns of the training data, of any size, or rows of numbers (.svm, .npz, .npy, a
folder of `elasticml convert`). The label may be missing. The predictions are in the order of the
rows: the column `prediction`, and probabilities or margins of classifiers; `cluster` and `distance`
of K-Means.

\b
Examples:
    elasticml predict runs/flights-2026 new.csv --out predictions.parquet
    elasticml predict model.npz new.parquet --out predictions.csv --keep id --keep date

The output appears when it is complete, and replaces an older one.
"""


@click.command(help=_HELP, short_help="Predict the rows of a file with a saved model.")
@click.argument("model", type=click.Path(path_type=str))
@click.argument("data", type=click.Path(path_type=str))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="A .parquet or .csv file."
)
@click.option("--format", "kind", metavar="FORMAT", help="Of DATA, or module:Class of your own.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="A column of DATA to write as well.")
@click.option(
    "--trust",
    multiple=True,
    metavar="MODULE:NAME",
    help="Import this network or loss, which MODEL names. It runs the module's code.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def predict(
    model: str,
    data: str,
    out: Path,
    kind: str | None,
    keep: tuple[str, ...],
    trust: tuple[str, ...],
    verbose: bool,
) -> None:
    """Predict a file."""
    from elasticml.data.source import source_from_spec
    from elasticml.models.loading import load_model

    if out.suffix not in (".parquet", ".csv"):
        raise click.UsageError(f"--out: got {str(out)!r}, wanted a name ending in .parquet or .csv")
    if out.exists() and any(Path(one).exists() and out.samefile(one) for one in (model, data)):
        raise click.UsageError(f"--out: {out} is the file to read; give another name")
    rows = data if kind is None else source_from_spec({"format": kind, "path": data})
    n_rows = _write(load_model(model, trust=trust), rows, out, keep)
    click.echo(f"predicted   {n_rows} rows")
    click.echo(f"output      {out}")


def _write(model: Any, data: Any, out: Path, keep: tuple[str, ...]) -> int:
    """Write predictions batch by batch under a temporary name; return the number of rows."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    from elasticml.data.storage.filesystem import part_name
    from elasticml.errors import ConfigError, DataError

    part, n_rows, writer = out.with_name(part_name(out.name)), 0, None
    make = pyarrow.parquet.ParquetWriter if out.suffix == ".parquet" else pyarrow.csv.CSVWriter
    try:
        for batch in model.batches(data, keep):
            table = pyarrow.table(model.outputs(batch.X))
            for name in keep:
                table = table.append_column(name, batch.kept.column(name))
            writer = writer or make(str(part), table.schema)
            writer.write_table(table)
            n_rows += table.num_rows
        if writer is None:
            raise DataError(f"{data} holds no rows, wanted at least one")
        writer.close()
        writer = None
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written: {error.strerror or error}") from None
    finally:
        if writer is not None:
            writer.close()
        part.unlink(missing_ok=True)
    return n_rows
