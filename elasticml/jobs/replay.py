"""Replay a run from its story, compare the result with the run's, and write it to a directory."""

from __future__ import annotations

import hashlib
import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays
from elasticml.data.chunks.digests import as_text, digest_of_arrays
from elasticml.data.source import Source, source_from_spec
from elasticml.data.validation import validated_as
from elasticml.errors import ConfigError, DataError, JobFailedError, one_line
from elasticml.jobs.run_directory import RunDirectory, default_run_path
from elasticml.jobs.warm_start import WarmStart, load_warm_start
from elasticml.jobs.yaml_text import load_yaml
from elasticml.models.file_format import own_arrays
from elasticml.models.loading import model_of_job
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.replaying.replay_engine import Replay
from elasticml.specification.algorithms import AsyncSGD, CoCoA, LocalSGD, PrimalCoCoA
from elasticml.story.reader import read_story
from elasticml.story.records import JobBegun, JobEnded, JobStarted, RoundEnded, StoryRecord
from elasticml.story.summary import RunSummary, summary_from_json

#: Called with the current round and the number of rounds.
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a bit-identical replay; a replay that differs raises instead.

    Examples
    --------
    >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop)
    >>> result = job.run(client, run_dir="runs/again")
    >>> em.replay("runs/again", data=em.from_arrays(X, y)).exchanges > 0
    True
    """

    #: The final model, or the one at the start of the requested round.
    arrays: Arrays
    #: First 16 hex digits of the SHA-256 of ``coef``'s bytes; None without ``coef``.
    digest: str | None
    #: Whether the model equals the run's ``model.npz``; None if there is nothing to compare.
    identical: bool | None
    rounds: int
    exchanges: int
    seconds: float
    #: The directory of the replay; None if it was not written.
    run_dir: Path | None = None
    summary: Mapping[str, Any] = field(repr=False, default_factory=dict)


def replay(
    run_dir: str | Path,
    *,
    out: str | Path | None = None,
    until: int | None = None,
    data: Source | None = None,
    warm_start: WarmStart | None = None,
    progress: ProgressCallback | None = None,
) -> Replayed:
    """Recompute a run from its story, on this machine alone, and compare it bit for bit.

    Parameters
    ----------
    run_dir : path
        The directory of a run, real or simulated. It is not modified.
    out : path, optional
        Directory for the replay: ``model.npz``, story, history and summary.
    until : int, optional
        Stop with the model at the start of this round, numbered as in ``history.csv``.
    data : Source, optional
        The data, if the run read them from memory.
    warm_start : model, mapping or path, optional
        The run's initial model, if it is not in the file that the job names.
    progress : callable (int, int), optional
        Called with the current round and the number of rounds.

    Raises
    ------
    ConfigError
        When there is no run, or its versions or CPU class differ from those of this machine.
    DataError
        When the story has been edited, or the data have changed.
    JobFailedError
        When the bits differ; the message names the first exchange with a difference.

    Examples
    --------
    >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop)
    >>> result = job.run(client, run_dir="runs/replayed")
    >>> again = em.replay("runs/replayed", data=em.from_arrays(X, y))
    >>> bool((again.arrays["coef"] == result.model.coef_).all())
    True
    """
    path, began_s = Path(run_dir), time.perf_counter()
    run_summary = _summary_of(path)
    records = read_story(path, run_summary.story)
    start = records[0]
    if not isinstance(start, JobStarted):
        raise DataError(f"{path}: the story does not begin with a job's start; nothing to replay")
    rounds = sum(isinstance(record, RoundEnded) for record in records)
    if until is not None and not 0 <= until <= rounds:
        raise ConfigError(f"until: got {until}, wanted 0 to {rounds}, the rounds of the run")
    job = job_record(start.spec)
    algorithm = _algorithm_of(job, start.warm_start_digest, warm_start)
    source = _source_of(job) if data is None else validated_as(data, job.data)
    engine = Replay(records, source, algorithm)
    replayed: list[StoryRecord] = []
    arrays: Arrays | None = None
    for record in engine.run():
        replayed.append(record)
        if not isinstance(record, RoundEnded):
            continue
        if progress is not None:
            progress(engine.round, rounds)
        if until == record.round:
            arrays = engine.model_of(record)
            break
    identical = None
    if arrays is None:
        arrays = engine.result_arrays()
        is_done = isinstance(records[-1], JobEnded) and records[-1].state == "done"
        identical = _compare(path, arrays, is_done=is_done)
    digest = coef_digest(arrays)
    reached = engine.round if until is None else until
    seconds = round(time.perf_counter() - began_s, 6)
    summary = {
        "name": start.name,
        "replay_of": str(path),
        "identical": identical,
        "coef_digest": digest,
        "until": until,
        "rounds": reached,
        "exchanges": engine.exchanges,
        "seconds": seconds,
        **(_result_of(run_summary) if until is None else {}),
        "examples": None if engine.facts is None else engine.facts.n_rows,
        "features": None if engine.facts is None else engine.facts.n_columns,
        "run_dir": None if out is None else str(out),
    }
    if out is not None:
        _write(Path(out), path, start, replayed, arrays, engine, summary)
    return Replayed(
        arrays=arrays,
        digest=digest,
        identical=identical,
        rounds=reached,
        exchanges=engine.exchanges,
        seconds=seconds,
        run_dir=None if out is None else Path(out),
        summary=summary,
    )


def replay_path(run_dir: Path, now: datetime) -> Path:
    """Return the default directory of a replay: ``runs/<run>-replay-<time>``."""
    return default_run_path(f"{run_dir.resolve().name}-replay", now)


def coef_digest(arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Return the digest of ``coef``'s bytes, 16 hex digits."""
    if "coef" not in arrays:
        return None
    content = np.ascontiguousarray(arrays["coef"], "<f8").tobytes()
    return hashlib.sha256(content).hexdigest()[:16]


def _summary_of(path: Path) -> RunSummary:
    """Read the run's summary; empty if the run was killed before its end."""
    try:
        text = (path / "summary.json").read_text(encoding="utf-8")
    except OSError:
        return summary_from_json({})
    try:
        summary = json.loads(text)
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise DataError(f"{path / 'summary.json'} is not a summary; replay an unchanged copy")
    return summary_from_json(summary)


def _result_of(summary: RunSummary) -> dict[str, Any]:
    """Return the results of the run that those of its replay equal."""
    return {"objective": summary.objective, "gap": summary.gap, "converged": summary.converged}


def _source_of(job: JobRecord) -> Source:
    try:
        source = source_from_spec(job.data)
        source.blocks()
    except ConfigError as error:
        raise ConfigError(
            f"the data of the run cannot be read here: {error.message}; put them back, or give "
            "them as data= in Python",
            **error.fields,
        ) from error
    return source


def _algorithm_of(
    job: JobRecord, run_digest: str | None, warm_start: WarmStart | None
) -> Mapping[str, Any]:
    """Return the algorithm's settings with the run's initial model, which has a digest."""
    section = dict(job.algorithm)
    if job.algorithm_name in (CoCoA.name, LocalSGD.name):
        section["device"] = "cpu"  # runs that computed on a GPU are rejected
    if run_digest is None:
        return section
    warm_start = job.warm_start if warm_start is None else warm_start
    if warm_start is None:
        raise ConfigError(
            "warm_start: the run started from a model that the story does not have; give it as "
            "warm_start= in Python"
        )
    model = load_warm_start(warm_start, _minimal_settings(job))
    digest = as_text(digest_of_arrays(model or {}))
    if digest != run_digest:
        raise DataError(
            f"warm_start: the model has digest {digest}, the one that the run started from had "
            f"{run_digest}; give that one"
        )
    return {**section, "warm_start": model}


def _minimal_settings(job: JobRecord) -> AsyncSGD | CoCoA | LocalSGD | PrimalCoCoA:
    """Return settings of the story's algorithm that suffice to read its initial model."""
    name, settings = job.algorithm_name, job.algorithm_settings
    if name == AsyncSGD.name:
        # Only mode "batch", which is K-Means, can be replayed; asynchronous runs cannot.
        return AsyncSGD("kmeans", k=settings["k"])
    if name == LocalSGD.name:
        return LocalSGD()
    if name == PrimalCoCoA.name:
        return PrimalCoCoA()
    return CoCoA(**{key: settings[key] for key in ("loss", "l2", "intercept") if key in settings})


def _compare(path: Path, arrays: Arrays, *, is_done: bool) -> bool | None:
    """Compare with the run's ``model.npz``; None if there is nothing to compare."""
    try:
        with np.load(path / "model.npz", allow_pickle=False) as file:
            run_arrays = own_arrays(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path / 'model.npz'} cannot be read: {one_line(error)}") from None
    if not is_done and not arrays:
        return None
    for name in sorted(run_arrays):
        here, there = np.asarray(arrays.get(name)), run_arrays[name]
        if here.shape == there.shape and here.tobytes() == there.tobytes():
            continue
        if here.shape != there.shape:
            what = f"has shape {here.shape}, the run's {there.shape}"
        else:
            different = np.flatnonzero(here.reshape(-1) != there.reshape(-1))
            largest = float(np.max(np.abs(here - there)))
            what = f"differs in {different.size} of {here.size} values, by at most {largest:.3g}"
        raise JobFailedError(
            f"{path / 'model.npz'} is not the model of the story: every exchange has the run's "
            f"bits, but {name} {what}; the file was changed, or belongs to another run",
            array=name,
        )
    return True


def _write(
    out: Path,
    path: Path,
    start: JobBegun,
    records: Sequence[StoryRecord],
    arrays: Arrays,
    engine: Replay,
    summary: Mapping[str, Any],
) -> None:
    """Write the replay as a separate run directory."""
    try:
        job = load_yaml((path / "job.yaml").read_text(encoding="utf-8"), "job.yaml")
    except (OSError, ValueError, ConfigError):
        job = {"name": start.name}
    model = model_of_job(job_record(start.spec).algorithm, engine.facts, arrays)
    with RunDirectory(out).open(job) as directory:
        directory.record([record.to_json() for record in records])
        if arrays:
            named = {} if model is None else model.file_arrays()
            directory.write_model({**arrays, **named})
        directory.write_summary({**summary, "story": directory.seal})
