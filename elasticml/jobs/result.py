"""A job's result: model, history, summary, story, report."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.storage.filesystem import exists, is_url, join, read_bytes
from elasticml.errors import ConfigError, DataError, how_to_install, one_line
from elasticml.jobs.rpc import JobOutcome
from elasticml.jobs.run_directory import FORMAT_VERSION, RunDirectory, read_history
from elasticml.jobs.yaml_text import load_yaml
from elasticml.models.file_format import Arrays
from elasticml.report.preemptions import preemptions
from elasticml.report.waiting import time_use
from elasticml.specification.algorithms import engine_of
from elasticml.story.compressed_records import CompressedRecords
from elasticml.story.reader import parse_line
from elasticml.story.records import (
    DataLoaded,
    EarlierModelKept,
    record_from_json,
    records_of,
)
from elasticml.story.summary import RunSummary, summary_from_json

if TYPE_CHECKING:
    from elasticml.models.model import Model

#: The first columns of a history's table: those that people look for. Metrics follow, then others.
HEADLINE = ("round", "seconds", "epoch", "objective", "objective_full", "gap")
_METRICS = ("validation_", "holdout_", "test_", "train_")
_MEMBERS = ("members", "absent_examples", "objective_kind", "gap_is_bound")


class History(list[dict[str, Any]]):
    """One row per round, as a mapping, with the state at the start of the round.

    ``history[-1]["gap"]`` is a value of the last row, which is that of the final model.
    :meth:`to_frame` makes a table of all.
    """

    def to_frame(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``, (n_rounds + 1, n_columns).

        Raises
        ------
        ConfigError
            When pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigError(f"pandas is not installed; {how_to_install('pandas')}") from None
        names = list(dict.fromkeys(name for row in self for name in row))
        metrics = [name for name in names if name.startswith(_METRICS)]
        first = [name for name in (*HEADLINE, *metrics, *_MEMBERS) if name in names]
        return pandas.DataFrame(list(self), columns=list(dict.fromkeys([*first, *names])))

    def __repr__(self) -> str:
        last: Mapping[str, Any] = self[-1] if self else {}
        shown = ((name, last.get(name)) for name in ("objective", "gap", "members"))
        end = ", ".join(f"{name} {value:.6g}" for name, value in shown if value is not None)
        return f"<History of {len(self)} rows{': ' + end if end else ''}>"

    def _repr_html_(self) -> str | None:
        """Return the table, for a notebook; None without pandas."""
        try:
            html: str = self.to_frame()._repr_html_()
        except ConfigError:
            return None
        return html


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """A job's result.

    ``model`` is None if the job ended before its first round. ``history`` has one row per round,
    with the state at the start of the round, and a last row for the final model: a list of
    mappings, of which ``result.history.to_frame()`` makes a ``pandas.DataFrame``.

    Examples
    --------
    >>> result = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=em.Stop(rounds=3)).run(client)
    >>> result.model.coef_.shape, len(result.history)
    ((1, 5), 4)
    """

    model: Model | None
    arrays: Mapping[str, NDArray[np.float64]]
    history: History
    summary: dict[str, Any]
    #: The job as the sections of a job file.
    job: Mapping[str, Any]
    story: Sequence[Mapping[str, Any]] = ()
    #: The models with which the rounds began that the job's ``evaluate`` names, by round; none in a
    #: result that was read from a run directory.
    kept: Mapping[int, Mapping[str, NDArray[np.float64]]] = field(default_factory=dict)
    #: The run directory; None if none was written.
    run_dir: Path | None = None

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result from a run directory: what ``result.save`` or a run wrote.

        Nothing in it is pickled.

        Parameters
        ----------
        path : path or URL

        Raises
        ------
        ConfigError
            When it holds no run, or one that has not ended.
        DataError
            When it is damaged, or was written by a later version.

        Examples
        --------
        >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop)
        >>> result = job.run(client, run_dir="runs/first")
        >>> em.Result.load("runs/first").summary["job"] == result.summary["job"]
        True
        """
        name = str(path)
        if not exists(join(name, "summary.json")):
            why = "the run in it has not ended" if exists(join(name, "story.jsonl")) else "no run"
            raise ConfigError(
                f"{name}: holds no result, {why}; name a directory that result.save or a run wrote"
            )
        try:
            summary = json.loads(read_bytes(join(name, "summary.json")))
            version = summary_from_json(summary).format_version
            if version is not None and version > FORMAT_VERSION:
                raise DataError(
                    f"{name} has version {version} of the format of runs, wanted {FORMAT_VERSION} "
                    "or less; read it with a later elasticml"
                )
            job = load_yaml(read_bytes(join(name, "job.yaml")).decode(), "its job.yaml")
            history = read_history(read_bytes(join(name, "history.csv")).decode())
            lines = read_bytes(join(name, "story.jsonl")).decode().split("\n")
            story = CompressedRecords(r for line in lines if (r := parse_line(line)) is not None)
            model: Model | None = None
            arrays: Arrays = {}
            if exists(join(name, "model.npz")):
                from elasticml.models.loading import read_model

                model, arrays = read_model(join(name, "model.npz"), job.get("algorithm") or {})
        except (ValueError, AttributeError, TypeError, ConfigError) as error:
            raise DataError(
                f"{name} is damaged ({type(error).__name__}: {one_line(error)}); use another copy "
                "of the run"
            ) from None
        return cls(
            model=model,
            arrays=arrays,
            history=History(history),
            summary=summary,
            job=job,
            story=story,
            run_dir=None if is_url(name) else Path(name),
        )

    def __repr__(self) -> str:
        summary = summary_from_json(self.summary)
        numbers = {"objective": summary.objective, "gap": summary.gap, **(summary.test or {})}
        told = [f"{name} {value:.6g}" for name, value in numbers.items() if value is not None]
        why = summary.error or summary.stopped_by or summary.reason or "no end"
        end = f"{summary.name or 'job'}: {summary.rounds or 0} rounds ({why})"
        engine = [] if summary.engine is None else [f"engine {summary.engine}"]
        lost = [f"{summary.lost} members lost"] if summary.lost else []
        place = [] if self.run_dir is None else [f"in {self.run_dir}"]
        made = f"model {self.model!r}"
        if self.model is None:
            made = f"arrays {', '.join(self.arrays)}" if self.arrays else "no model"
        of = f"Result of {', '.join([end, *told, *engine, *lost, *place])}; {made}"
        return f"<{summary.unconverged}. {of}>" if summary.unconverged else f"<{of}>"

    def save(self, path: str | Path) -> Path:
        """Write the whole result as a run directory and return its path.

        ``em.Result.load`` reads it: job, story, history, model, summary, and the report besides.

        Raises
        ------
        ConfigError
            When the directory holds another run, or cannot be written.
        """
        from elasticml.report.run_page import write_report

        run_dir = Path(path)
        if self.run_dir is None or not run_dir.exists() or not run_dir.samefile(self.run_dir):
            self._write_run(run_dir)
            write_report(run_dir)
        return run_dir

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the report as one HTML page and return its path.

        Raises
        ------
        ConfigError
            When the page cannot be written there.
        """
        from elasticml.report.run_page import write_report

        if self.run_dir is not None:
            return write_report(self.run_dir, Path(path))
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder) / (summary_from_json(self.summary).name or "job")
            self._write_run(run_dir)
            return write_report(run_dir, Path(path))

    def _write_run(self, run_dir: Path) -> None:
        with RunDirectory(run_dir).open(self.job) as directory:
            directory.on_records(self.story)
            summary = {**self.summary, "run_dir": str(run_dir)}
            replace(self, summary=summary, run_dir=run_dir).write(directory)

    def _repr_html_(self) -> str:
        """Return the result's figures and curves, for a notebook."""
        from elasticml.report.live import read_story
        from elasticml.report.panel import panel_html  # loads matplotlib

        if not self.story:
            return html.escape(repr(self))
        live = read_story(summary_from_json(self.summary).job or "", self.story)
        return panel_html(live, live.status.seconds, self.history)

    def write(self, directory: RunDirectory) -> None:
        """Write history, model and summary into the directory of a run; :meth:`save` writes all."""
        directory.write_history(self.history)
        if self.arrays:
            named = {} if self.model is None else self.model.file_arrays()
            directory.write_model({**self.arrays, **named})
        directory.write_summary(self.summary)


def make_result(
    outcome: JobOutcome,
    *,
    job: Mapping[str, Any],
    story: Sequence[Mapping[str, Any]],
    run_dir: Path | None,
) -> Result:
    """Assemble the result from the scheduler's data."""
    from elasticml.evaluation.scoring import incomplete_notes
    from elasticml.models.loading import model_of_job  # a job starts without models

    loaded = next(records_of(DataLoaded, story), None)
    records = [record_from_json(record) for record in story]
    notes = [*([] if loaded is None else loaded.notes), *time_use(records).advice()]
    notes += [kept.text for kept in records_of(EarlierModelKept, story)]
    if outcome.history:
        notes += incomplete_notes(outcome.history[-1])
    algorithm = job.get("algorithm") or {}
    if outcome.state == "done":
        warning = _constant_warning(algorithm, outcome.facts, summary_from_json(outcome.summary))
        notes += [] if warning is None else [warning]
    summary = {"train": {}, "test": {}, **outcome.summary, "notes": notes}
    summary["format_version"] = FORMAT_VERSION
    engine = engine_of(algorithm, _optimizer_of(outcome.history))
    if engine is not None:
        summary["engine"] = engine
    if outcome.error is not None:
        summary["error"] = outcome.error.get("message")
    preempted = preemptions(records)
    if preempted is not None:
        summary["preemptions"] = preempted
    if run_dir is not None:
        summary["run_dir"] = str(run_dir)
    return Result(
        model=model_of_job(algorithm, outcome.facts, outcome.arrays),
        arrays=outcome.arrays,
        history=History(outcome.history),
        summary=summary,
        job=job,
        story=story,
        kept=outcome.snapshots,
        run_dir=run_dir,
    )


def _optimizer_of(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the optimizer that a job has chosen itself."""
    return next((str(row["optimizer"]) for row in history if row.get("optimizer")), None)


def _constant_warning(
    algorithm: Mapping[str, Any], facts: DatasetStats | None, summary: RunSummary
) -> str | None:
    """Return a sentence if a constant predicts the training data as well as the model."""
    from elasticml.evaluation.constant_model import constant_loss  # loads SciPy's optimisers

    train = summary.train or {}
    least = None if facts is None else constant_loss(algorithm, facts)
    likelihood = None if algorithm.get("class_weight") else train.get("neg_log_loss")
    loss = summary.objective if likelihood is None else -likelihood
    if least is not None and loss is not None:
        if loss < least * (1.0 - 1e-9):
            return None
        what = "objective" if likelihood is None else "loss"
        return (
            f"the training {what} {loss:.6g} is not below {least:.6g}, the loss of the best "
            f"constant: {_remedies(algorithm)}"
        )
    # The loss of these is squared: the best constant is the mean.
    minimised = algorithm.get("loss", "squared") in ("squared", "mse")
    if minimised and train.get("r2", 0.0) < 0.0:
        return (
            f"the predictions are worse than the mean of the labels (r2 {train['r2']:.4f}): "
            f"{_remedies(algorithm)}"
        )
    return None


def _remedies(algorithm: Mapping[str, Any]) -> str:
    remedies = "let the job run longer, or scale the columns"
    return remedies if algorithm.get("intercept") else f"{remedies}, or set intercept: true"
