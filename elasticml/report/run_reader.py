"""Read a run directory, finished or not: story, history, summary and job."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import ConfigError
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.story.json_fields import finite
from elasticml.story.reader import parse_story
from elasticml.story.records import JobEnded, JobStarted, RoundEnded, StoryRecord, first_of
from elasticml.story.summary import RunSummary, summary_from_json
from elasticml.training.shortfall import NOT_CONVERGED

R = TypeVar("R", bound=StoryRecord)

#: Text columns of the history; all others are numeric.
TEXT_COLUMNS = ("objective_kind", "gap_is_bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history of a run by column; row ``r`` is the state at the beginning of round ``r``."""

    #: Column names in the file's order.
    names: tuple[str, ...] = ()
    #: Numeric columns, each (n_rows,) float64, NaN where the cell is blank or not a number.
    columns: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    #: The text of all cells by column, each of length n_rows.
    cells: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    n_rows: int = 0

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column as numbers (n_rows,), all NaN if the run does not have it."""
        values = self.columns.get(name)
        return np.full(self.n_rows, math.nan) if values is None else values

    def has(self, name: str) -> bool:
        """Whether any row has a finite number in this column."""
        return bool(np.isfinite(self.column(name)).any())

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each row's objective: exact, estimated or bound; exact by default."""
        cells = self.cells.get("objective_kind", ("",) * self.n_rows)
        return tuple(kind or "exact" for kind in cells)

    @property
    def gap_bounds(self) -> NDArray[np.bool_]:
        """Whether each row's gap is only an upper bound, (n_rows,)."""
        cells = self.cells.get("gap_is_bound", ("",) * self.n_rows)
        return np.array([cell.lower() == "true" for cell in cells], dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The data of one run for its report."""

    path: Path
    name: str
    records: tuple[StoryRecord, ...] = ()
    history: History = field(default_factory=History)
    summary: RunSummary = field(default_factory=lambda: summary_from_json({}))
    #: The job's record; None if the story lacks its beginning.
    job: JobRecord | None = None
    #: The text of ``job.yaml``; empty if there is none.
    job_text: str = ""
    state: Literal["finished", "unfinished", "failed", "cancelled"] = "unfinished"
    #: Sentences about missing or damaged data.
    notes: tuple[str, ...] = ()

    @property
    def unconverged(self) -> str:
        """How far the final model is from the job's tolerance or target; empty if it reached it."""
        ended = self.last(JobEnded)
        return self.summary.unconverged or ("" if ended is None else ended.unconverged)

    @property
    def badge(self) -> str:
        """The state as people read it."""
        return NOT_CONVERGED if self.unconverged else self.state

    def first(self, kind: type[R]) -> R | None:
        """Return the first record of a class, if there is one."""
        return first_of(kind, self.records)

    def last(self, kind: type[R]) -> R | None:
        """Return the last record of a class, if there is one."""
        return first_of(kind, reversed(self.records))


def read_run(run_dir: str | Path) -> RunData:
    """Read a run directory, as far as it has been written.

    Parameters
    ----------
    run_dir : path
        A directory with ``story.jsonl`` or ``history.csv``. All other files may be missing, and the
        last line of either may be incomplete.

    Raises
    ------
    ConfigError
        When there is no such directory, or it has neither file.
    """
    path = Path(run_dir)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise ConfigError(
            f"run directory {str(path)!r} {problem}; name a directory that 'elasticml run' wrote,"
            " such as runs/<name>-<time>"
        )
    story, table = path / "story.jsonl", path / "history.csv"
    if not story.is_file() and not table.is_file():
        raise ConfigError(
            f"{str(path)!r} is not a run directory: it has neither story.jsonl nor history.csv;"
            " name a directory that 'elasticml run' wrote, such as runs/<name>-<time>"
        )
    notes: list[str] = []
    summary = _read_summary(path / "summary.json", notes)
    records = parse_story(_read_text(story), notes)
    history = parse_history(_read_text(table), notes, finished=summary is not None)
    if history.n_rows == 0:
        history = _history_from_story(records, notes)
    started = first_of(JobStarted, records)
    ended = first_of(JobEnded, reversed(records))
    state = _state(summary, ended)
    summary = summary or summary_from_json({})
    return RunData(
        path=path,
        name=summary.name or (started and started.name) or path.resolve().name,
        records=records,
        history=history,
        summary=summary,
        job=None if started is None else job_record(started.spec),
        job_text=_read_text(path / "job.yaml"),
        state=state,
        notes=tuple(notes),
    )


def parse_history(text: str, notes: list[str], *, finished: bool) -> History:
    """Parse a history table; an incomplete last row is skipped, with a note."""
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    if not rows:
        return History()
    names, body = tuple(rows[0]), rows[1:]
    cut = body and (len(body[-1]) != len(names) or (not finished and not text.endswith("\n")))
    if cut:
        body = body[:-1]
        notes.append("The last line of history.csv is cut off and was left out.")
    width = len(names)
    return _history(names, [(row + [""] * width)[:width] for row in body])


def _history(names: tuple[str, ...], rows: list[list[str]]) -> History:
    """Build a history from rows with one cell per name."""
    cells = {name: tuple(row[i] for row in rows) for i, name in enumerate(names)}
    columns = {
        name: np.array([finite(cell) for cell in column], dtype=np.float64)
        for name, column in cells.items()
        if name not in TEXT_COLUMNS
    }
    if "round" not in columns:
        columns["round"] = np.arange(len(rows), dtype=np.float64)
    # Replace a damaged round number by the row's index, because every plot needs one.
    places = np.arange(len(rows), dtype=np.float64)
    columns["round"] = np.where(np.isfinite(columns["round"]), columns["round"], places)
    return History(names=names, columns=columns, cells=cells, n_rows=len(rows))


def _history_from_story(records: tuple[StoryRecord, ...], notes: list[str]) -> History:
    """Rebuild the history from the story of a run that has not written its table yet."""
    ended = [record.row.columns for record in records if isinstance(record, RoundEnded)]
    if not ended:
        return History()
    notes.append("The history was rebuilt from the story: history.csv has no rows.")
    return history_of_rows(ended)


def history_of_rows(rows: Sequence[Mapping[str, Any]]) -> History:
    """Build a history from rows by column; a row may lack columns of others."""
    names = tuple(dict.fromkeys(name for columns in rows for name in columns))
    return _history(names, [[_cell(columns.get(name)) for name in names] for columns in rows])


def _cell(value: object) -> str:
    """Format a value as a cell of the history."""
    return "" if value is None else str(value)


def _read_text(path: Path) -> str:
    """Read a file that may be missing; invalid UTF-8 is replaced."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_summary(path: Path, notes: list[str]) -> RunSummary | None:
    """Read the summary; None if it is missing or damaged."""
    text = _read_text(path)
    if not text.strip():
        return None
    try:
        summary = json.loads(text)
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        notes.append("summary.json could not be read; the key figures come from the history.")
        return None
    return summary_from_json(summary)


def _state(
    summary: RunSummary | None, ended: JobEnded | None
) -> Literal["finished", "unfinished", "failed", "cancelled"]:
    """Derive from the files how the run ended."""
    words = [] if ended is None else [ended.state, ended.reason]
    words += [] if summary is None else [summary.stopped_by or ""]
    text = " ".join(words).lower()
    if "cancel" in text or "interrupt" in text:
        return "cancelled"
    if "fail" in text or (summary is not None and summary.error):
        return "failed"
    return "unfinished" if summary is None and ended is None else "finished"
