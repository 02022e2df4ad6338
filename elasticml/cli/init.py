"""``elasticml init``: write a commented job file from the head of a data file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from elasticml.errors import ConfigError, DataError

if TYPE_CHECKING:
    from elasticml.data.readers.tabular import TableHead

_HELP = """Write a job file for a data file, with comments; only the head of the file is read.

DATA is a CSV, Parquet, svmlight or npz file, a folder of such files, or one of a format of your
own. The label is a column with a
usual name (label, target, class, y, outcome), else the last one, unless that holds dates or
identifiers. Two different labels make a classification, numbers a regression. Check what it says,
then run it.

\b
Examples:
    elasticml init flights.csv
    elasticml init flights.parquet --label arr_delay --out delay.yaml
    elasticml run job.yaml
"""
_LABELS: Final = ("label", "target", "class", "y", "outcome")
_LAST: Final = "the last column"
#: Names of columns of numbers that only tell rows apart.
_IDS: Final = ("", "id", "index", "key", "row", "rownames")
#: Rows of data without columns whose labels are looked at.
_ROWS_MAX: Final = 1000
#: Integers with at most this many different values are classes.
_CLASSES_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    """What is known about the labels."""

    #: The column; None in formats without columns.
    name: str | None
    #: How it was found.
    why: str
    values: Sequence[Any]

    @property
    def counts(self) -> Counter[Any]:
        return Counter(value for value in self.values if value is not None)

    @property
    def is_classes(self) -> bool:
        some = list(self.counts)
        if any(not isinstance(value, int | float) for value in some):
            return True
        return len(some) <= _CLASSES_MAX and all(float(value).is_integer() for value in some)

    def summary(self) -> str:
        """Return the labels in words."""
        counts = self.counts
        if not self.is_classes:
            return f"numbers from {min(counts):g} to {max(counts):g}"
        shown = ", ".join(f"{_text(value)} ({n})" for value, n in counts.most_common(4))
        more = f" and {len(counts) - 4} more" if len(counts) > 4 else ""
        return f"{len(counts)} classes: {shown}{more}"


@click.command(help=_HELP, short_help="Write a job file for a data file.")
@click.argument("data", type=click.Path(path_type=str))
@click.option("--label", metavar="COLUMN", help="The column of the labels.")
@click.option("--format", "kind", metavar="FORMAT", help="Its format, or module:Class of your own.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("job.yaml"),
    show_default=True,
    help="The job file.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def init(data: str, label: str | None, kind: str | None, out: Path, verbose: bool) -> None:
    """Write a job file."""
    from elasticml.data.readers.files import files_of
    from elasticml.data.source import format_named, infer_format, source_from_spec
    from elasticml.data.storage.filesystem import is_url
    from elasticml.jobs.job_spec import JobSpec

    if out.exists():
        raise ConfigError(f"--out: {out} exists already; give another name or remove it")
    kind = kind or infer_format(data)
    path = data if is_url(data) else os.path.relpath(data, out.parent)
    if kind in ("csv", "parquet"):
        first = files_of(data, format_named(kind).suffixes)[0].path
        found, lines = _table(first, kind, label)
    elif kind is not None and label is None:
        source = source_from_spec({"format": kind, "path": data})
        values = next(iter(source.rows_of(0))).labels[:_ROWS_MAX].tolist()  # type: ignore[attr-defined]
        found, lines = _Label(name=None, why="", values=values), []
    else:
        wanted = "a known file name, or --format" if label is None else "--label with tables only"
        raise ConfigError(
            f"init: got {data!r}, wanted {wanted}; for other data write the job file yourself: "
            "elasticml schema prints its keys"
        )
    if not found.counts:
        raise DataError(f"{data} holds no labels in its first rows, wanted at least one")
    text = _job_file(Path(data).name.partition(".")[0], kind, path, found, lines)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    JobSpec.from_file(out)
    column = f"{found.name} ({found.why}): " if found.name else ""
    click.echo(f"job file    {out}")
    click.echo(f"label       {column}{found.summary()}")
    if found.why == _LAST:
        click.echo("            another column: elasticml init DATA --label COLUMN")
    click.echo(f"next        elasticml run {out}")


def _table(path: str, kind: str, label: str | None) -> tuple[_Label, list[str]]:
    """Return the labels of a table, and the lines of the data section about its columns."""
    from elasticml.data.readers.tabular import read_head
    from elasticml.specification.settings_model import did_you_mean

    head = read_head(path)
    words = _missing_words(head) if kind == "csv" else []
    if words:
        head = read_head(path, words)
    names = list(head.columns)
    if label is not None and label not in names:
        raise ConfigError(f"--label: {path} has no column {label!r}{did_you_mean(label, names)}")
    usual = next((name for name in names if name.lower() in _LABELS), None)
    chosen = label or usual or names[-1]
    if label is None and usual is None and (head.types[chosen] == "date" or _is_id(chosen, head)):
        raise ConfigError(
            f"--label: no column of {path} is called {', '.join(_LABELS)}, and the last one, "
            f"{chosen!r}, holds {'dates' if head.types[chosen] == 'date' else 'identifiers'}; name "
            f"the column of the labels, one of {_listed(names, 30)}"
        )
    why = "as given" if label else "by its name" if usual else _LAST
    found = _Label(name=chosen, why=why, values=head.columns[chosen])
    features = [name for name in names if name != chosen]
    lines = [f"  label: {_yaml(chosen)}  # {why}; {found.summary()} in the first rows"]
    if words:
        lines.append(f"  na_values: {_yaml(words)}  # among numbers; besides ?, NA, blanks, ...")
    if head.delimiter not in (None, ","):
        lines.append(f"  delimiter: {_yaml(head.delimiter)}  # as in the first line")
    lines += _about_features(head, features)
    return found, lines


def _about_features(head: TableHead, features: Sequence[str]) -> list[str]:
    lines = [f"  # {len(features)} columns besides the label:"]
    ids = [name for name in features if _is_id(name, head)]
    if len(ids) == len(features):
        ids = []
    features = [name for name in features if name not in ids]
    for kind, what in (("number", "numbers"), ("boolean", "true or false"), ("date", "dates")):
        some = [name for name in features if head.types[name] == kind]
        if some:
            lines.append(f"  #   {what}: {_listed(some)}")
    texts = {n: set(head.columns[n]) - {None} for n in features if head.types[n] == "text"}
    shown = [f"{name or repr(name)} ({len(values)} different)" for name, values in texts.items()]
    if shown:
        lines.append(f"  #   text, which becomes categories: {_listed(shown)}")
    if ids:
        lines.append(f"  ignore: {_yaml(ids)}  # a different value in every row says nothing")
    missing = {n: sum(v is None for v in vs) for n, vs in head.columns.items() if n not in ids}
    lacking = [f"{name} ({n})" for name, n in missing.items() if n]
    if lacking:
        lines.append(f"  missing: median  # of numbers, or mean, 0; missing in {_listed(lacking)}")
    else:
        lines.append("  # missing: median  # accepts missing values; the first rows have none")
    lines.append("  # test: FILE  # rows like these, for test metrics")
    return lines


def _is_id(name: str, head: TableHead) -> bool:
    """Whether a column tells its rows apart: texts that differ, or a number called an id.

    pandas and R write the numbers of the rows as a column without a name.
    """
    values = head.columns[name]
    if head.n_rows < 3 or len(set(values)) < head.n_rows:
        return False
    lower = name.strip().lower()
    is_called_id = lower in _IDS or lower.endswith(("_id", " id")) or lower.startswith("unnamed:")
    return head.types[name] == "text" or (head.types[name] == "number" and is_called_id)


def _job_file(name: str, kind: str, path: str, label: _Label, lines: Sequence[str]) -> str:
    """Return the text of the job file."""
    if label.is_classes:
        loss, told = "logistic", f"a classification: {len(label.counts)} different labels"
    else:
        loss, told = "squared", "a regression: the labels are numbers; classes need loss: logistic"
    return "\n".join(
        [
            "# Written by elasticml init from the head of the data: check it, and run it",
            "# All settings, also for editors: elasticml schema",
            f"name: {_yaml(name or 'job')}",
            "data:",
            f"  format: {kind}",
            f"  path: {_yaml(path)}",
            *(lines or ["  # test: FILE  # rows like these, for test metrics"]),
            "algorithm:",
            "  name: linear  # the engine follows from the loss; the result says which it was",
            f"  loss: {loss}  # {told}",
            "  l2: 1.0e-4  # penalty; more for few rows",
            "cluster: {kind: local, workers: 2}  # or address: tcp://host:8786, kind: yarn",
            "stop: {rounds: 200}  # at most; it ends before if its gradient is small (tolerance)",
            "# validate: 0.1  # holds out a tenth, and ends when its score no longer improves",
            "# absent: auto  # how to go on while members are away",
            "",
        ]
    )


def _missing_words(head: TableHead) -> list[str]:
    """Return texts that mean a missing value: each is the only one in a column of numbers.

    One with letters must be rarer than the numbers.
    """
    from elasticml.data.readers.tables import is_number

    words = set()
    for name, kind in head.types.items():
        cells = [cell for cell in head.columns[name] if cell is not None] if kind == "text" else []
        texts = [cell for cell in cells if not is_number(cell)]
        if len(set(texts)) != 1 or len(texts) == len(cells):
            continue
        if 2 * len(texts) < len(cells) or not any(letter.isalnum() for letter in texts[0]):
            words.add(texts[0])
    return sorted(words)


def _listed(words: Sequence[str], most: int = 8) -> str:
    more = f", and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(word or "''" for word in words[:most]) + more


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()
