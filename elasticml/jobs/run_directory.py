"""The run directory: its files are valid at every moment while the run grows."""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from elasticml.data.storage.filesystem import reason_of, write_whole
from elasticml.errors import ConfigError, JobFailedError
from elasticml.jobs.yaml_text import dump_yaml
from elasticml.models.file_format import npz_bytes
from elasticml.story.compressed_records import CompressedRecords
from elasticml.story.reader import parse_line
from elasticml.story.records import RoundEnded, records_of

Row = dict[str, Any]

#: Version of the run directory's format; summaries state it, since version 1.
FORMAT_VERSION = 1
#: ``reason`` of the error when the run directory cannot be written any more.
DIRECTORY_LOST = "run directory lost"

#: The first columns of every history.
FIRST_COLUMNS = (
    "round",
    "seconds",
    "objective",
    "gap",
    "gap_is_bound",
    "step",
    "members",
    "absent_examples",
    "stand_ins",
    "moved_bytes",
    "sent_bytes",
    "objective_kind",
)
#: Files written at the end of a run; a resumed run removes them.
_END_FILES = ("summary.json", "report.html")
_MODEL = "model.npz"
FINAL_FILES = (*_END_FILES, _MODEL)
#: Files written from the start of a run.
_FIRST_FILES = ("job.yaml", "story.jsonl", "history.csv")


def columns_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of a history in order: fixed ones, the algorithm's, the test scores."""
    names = dict.fromkeys(name for row in rows for name in row if name not in FIRST_COLUMNS)
    return [*FIRST_COLUMNS, *sorted(names, key=lambda name: name.startswith("test_"))]


def read_history(text: str) -> list[Row]:
    """Return the rows of a ``history.csv``, without their blank cells.

    Numbers are those that were written, to the last bit.
    """
    rows = csv.DictReader(io.StringIO(text))
    return [{k: _cell(v) for k, v in row.items() if v and k is not None} for row in rows]


def _cell(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def history_row(record: RoundEnded) -> Row:
    """Return the history row in a record of the story."""
    return {**record.row.columns, "seconds": record.row.columns.get("seconds", record.t)}


def run_name(name: str, now: datetime) -> str:
    """Return the name of a run: the job's name and the time."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'job'}-{now:%Y%m%d-%H%M%S}"


def default_run_path(name: str, now: datetime) -> Path:
    """Return the default run directory: ``runs/<name>-<time>``, with a number if it exists."""
    stem = run_name(name, now)
    path = Path("runs") / stem
    count = 2
    while path.exists():
        path = Path("runs") / f"{stem}-{count}"
        count += 1
    return path


def check_free(path: Path) -> None:
    """Check, without writing, that a run can be written to a directory.

    Raises
    ------
    ConfigError
        When the directory holds a run or a file that a run would overwrite, is a file, or cannot
        be created or written.
    """
    if (path / "story.jsonl").exists():
        raise ConfigError(f"{path}: holds a run already; give another directory or remove it")
    existing = [name for name in (*_FIRST_FILES, *FINAL_FILES) if (path / name).exists()]
    if existing:
        raise ConfigError(
            f"{path}: holds {existing[0]}, which a run would overwrite; give another directory"
        )
    # The root of an absolute path always exists.
    nearest = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not nearest.is_dir():
        raise _cannot_write(path, f"{nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise _cannot_write(path, f"no permission to write to {nearest}")


def check_unwritten(path: Path) -> None:
    """Check that no process is writing the run in a directory.

    Raises
    ------
    ConfigError
        When one is.
    """
    story = path / "story.jsonl"
    if story.exists():
        with story.open("a", encoding="utf-8") as file:
            _lock(file, path)


def _lock(story: IO[str], path: Path) -> None:
    try:
        fcntl.flock(story, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"{path}: another process is writing this run; end that one first"
        ) from None
    except OSError:
        return  # the file system does not support locks


def _cannot_write(path: Path, why: str | None) -> ConfigError:
    return ConfigError(f"{path}: a run cannot be written there: {why}; give another directory")


class RunDirectory:
    """Writes a run: story and history line by line, the other files atomically at its end.

    Parameters
    ----------
    path : Path
        :meth:`open` creates it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._story: IO[str] | None = None
        self._job = b""
        #: The directory was removed while the run was written, and was written again.
        self.was_removed = False
        self._history: IO[str] | None = None
        #: Columns of the history file.
        self._columns: list[str] = []
        self._rows = CompressedRecords()
        #: Directories created for the run, innermost first.
        self._made: list[Path] = []
        self._continues = False
        #: The directory still holds the interrupted run, unchanged.
        self.is_as_before = False
        #: Number of rounds of the interrupted run.
        self._rounds_before = 0

    def open(self, job: Mapping[str, Any], *, continues: bool = False) -> RunDirectory:
        """Create the directory and write ``job.yaml``.

        Parameters
        ----------
        job : mapping
            The sections of the job file.
        continues : bool
            Whether the directory holds the run to resume. Its story is rewritten from the start,
            once the first records arrive; its model stays until there is a later one.

        Raises
        ------
        ConfigError
            When the directory holds another run, another process is writing it, or it cannot be
            written.
        """
        self._continues = continues
        if not continues:
            check_free(self.path)
        self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            text = dump_yaml(dict(job), default_flow_style=None, width=100)
            self._job = text.encode()
            self._story = self._own_story()
            write_whole(str(self.path / "job.yaml"), self._job)
            if continues:
                self.is_as_before = True
                self._rounds_before = _rounds_in(self.path / "story.jsonl")
            else:
                self._begin()
        except (OSError, ConfigError) as error:
            raise _cannot_write(self.path, reason_of(error.__cause__ or error)) from None
        return self

    def _begin(self) -> None:
        """Truncate story and history, and remove the files of a former end."""
        assert self._story is not None
        self.is_as_before = False
        self._story.truncate(0)
        for name in _END_FILES if self._continues else ():
            (self.path / name).unlink(missing_ok=True)
        self._set_columns(list(FIRST_COLUMNS))

    def _own_story(self) -> IO[str]:
        """Open and lock the story, for appending, and for reading it after its removal."""
        story = (self.path / "story.jsonl").open("a+", encoding="utf-8")
        try:
            _lock(story, self.path)
        except ConfigError:
            story.close()
            raise
        return story

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records to the story, and rows to the history; both are flushed on return.

        Raises
        ------
        JobFailedError
            When they cannot be written, as on a full disk.
        """
        if self._story is None or (self._history is None and not self.is_as_before):
            raise ValueError("the run directory is not open")
        with self._writing():
            self._restore()
            if self.is_as_before:
                self._begin()
            assert self._history is not None
            for record in records:
                self._story.write(json.dumps(record, default=_plain, allow_nan=True) + "\n")
            for ended in records_of(RoundEnded, records):
                self._append(history_row(ended))
                self._outgrow(ended.row.round)
            self._story.flush()
            self._history.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ConfigError) as error:
            why = reason_of(error.__cause__ or error)
            raise JobFailedError(
                f"{self.path}: the run cannot be written any more: {why}; make room there",
                reason=DIRECTORY_LOST,
            ) from error

    def _restore(self) -> None:
        """Write the run again if its directory was removed; the open file keeps the story."""
        removed, path = self._story, self.path / "story.jsonl"
        if removed is None or path.exists():
            return
        self.was_removed = True
        self.path.mkdir(parents=True, exist_ok=True)
        removed.flush()
        removed.seek(0)
        write_whole(str(path), removed.read().encode())
        self._story = self._own_story()
        removed.close()
        write_whole(str(self.path / "job.yaml"), self._job)
        if self._history is not None:
            self._set_columns(self._columns)

    def _append(self, row: Row) -> None:
        assert self._history is not None
        self._rows.append(row)
        if not set(row) <= set(self._columns):
            self._set_columns(columns_of([dict.fromkeys(self._columns), row]))
        else:
            self._history.write(_csv_text([row], self._columns, header=False))

    def _outgrow(self, round: int) -> None:
        """Remove the model of the interrupted run once the resumed one has more rounds."""
        if self._continues and round >= self._rounds_before:
            self._rounds_before = sys.maxsize
            (self.path / _MODEL).unlink(missing_ok=True)

    def _set_columns(self, columns: list[str]) -> None:
        """Rewrite the history with more columns, and reopen it for appending."""
        if self._history is not None:
            self._history.close()
        self._columns = columns
        write_whole(str(self.path / "history.csv"), _csv_text(self._rows, columns).encode())
        self._history = (self.path / "history.csv").open("a", encoding="utf-8", newline="")

    def write_history(self, rows: Sequence[Row]) -> None:
        """Replace the history by the final one."""
        if self._history is not None:
            self._history.close()
            self._history = None
        self._write("history.csv", _csv_text(rows, columns_of(rows)).encode())

    def write_model(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write ``model.npz``."""
        self._write(_MODEL, npz_bytes(arrays))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``."""
        text = json.dumps(json_safe(summary), indent=2)
        self._write("summary.json", (text + "\n").encode())

    def _write(self, name: str, content: bytes) -> None:
        with self._writing():
            self._restore()
            if not self.path.is_dir():  # write_whole would create it again, with this file alone
                raise FileNotFoundError(errno.ENOENT, "it has been removed", str(self.path))
            write_whole(str(self.path / name), content)

    def discard(self) -> bool:
        """Remove a run that never started, and the directories created for it.

        Returns
        -------
        bool
            Whether it was removed. A resumed run started before and is kept.
        """
        self.close()
        if self._continues:
            return False
        for name in _FIRST_FILES:
            (self.path / name).unlink(missing_ok=True)
        for made in self._made:
            try:
                made.rmdir()
            except OSError:  # the directory holds other files
                break
        return True

    def close(self) -> None:
        """Close the files."""
        for file in (self._story, self._history):
            with suppress(
                OSError
            ):  # a write that failed was reported; on a full disk it fails again
                if file is not None:
                    file.close()
        self._story = self._history = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _rounds_in(story: Path) -> int:
    """Count the rounds in a story; a truncated line is skipped."""
    rounds = 0
    for line in story.read_text(encoding="utf-8", errors="replace").splitlines():
        values = parse_line(line) if '"RoundEnded"' in line else None
        for ended in records_of(RoundEnded, () if values is None else (values,)):
            rounds = ended.row.round + 1
    return rounds


def json_safe(value: Any) -> Any:
    """Convert NumPy values to plain ones and non-finite floats to None."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    if isinstance(value, np.generic | np.ndarray):
        return json_safe(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def _csv_text(rows: Iterable[Mapping[str, Any]], columns: list[str], header: bool = True) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return buffer.getvalue()
