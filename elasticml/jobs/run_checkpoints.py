"""Checkpoints of a run: the setting, the default directory, and finding an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from elasticml.data.source import how_to_give_again
from elasticml.data.storage.filesystem import exists, is_url, join, names, remove
from elasticml.errors import ConfigError, ElasticmlError
from elasticml.jobs.rpc import JobOutcome
from elasticml.jobs.run_directory import check_unwritten, history_row
from elasticml.protocol.job_record import CheckpointPlace, JobRecord
from elasticml.specification.sections import Checkpoint
from elasticml.specification.settings_model import read_settings
from elasticml.story.reader import parse_line
from elasticml.story.records import RoundEnded, record_from_json, records_of
from elasticml.story.summary import summary_from_json

CheckpointLike = Checkpoint | Mapping[str, Any] | str | Path | bool | None
#: The validated setting; False disables checkpoints.
CheckpointSetting = Checkpoint | Literal[False]
#: Subdirectory of a run directory that holds the checkpoints.
FOLDER = "checkpoint"


def checkpoint_setting(setting: CheckpointLike) -> CheckpointSetting:
    """Validate a job's ``checkpoint`` setting; a path alone is the directory.

    Raises
    ------
    ConfigError
        When it is invalid.
    """
    if setting is None or setting is False:
        return False
    if setting is True:
        return Checkpoint()
    if isinstance(setting, str | Path):
        return Checkpoint(path=str(setting))
    return read_settings(Checkpoint, setting, "checkpoint")


def checkpoint_place(
    setting: CheckpointSetting | None, run_dir: str | Path | None
) -> CheckpointPlace | None:
    """Return the setting as the job record has it; None if there is no directory to use.

    Parameters
    ----------
    run_dir : path or URL, optional
        The run directory; checkpoints go into a subdirectory of it unless a path is set.
    """
    if not setting:
        return None
    if setting.path is not None:
        path = setting.path if is_url(setting.path) else str(Path(setting.path).absolute())
        return CheckpointPlace(path=path, every_s=setting.every)
    if run_dir is None:
        return None
    run = str(run_dir) if is_url(str(run_dir)) else str(Path(run_dir).absolute())
    # The job file must not name the path: the run directory may be renamed.
    return CheckpointPlace(path=join(run, FOLDER), every_s=setting.every, in_run_dir=True)


def job_file_entry(place: CheckpointPlace | None) -> dict[str, Any] | Literal[False]:
    """Convert the entry of a job record back to the job file's setting."""
    if place is None:
        return False
    shown = {} if place.in_run_dir else {"path": place.path}
    return {**shown, "every": place.every_s}


def interrupted_run(run_dir: str | Path, setting: CheckpointSetting | None) -> CheckpointPlace:
    """Find the checkpoints from which a run in a directory can resume.

    Raises
    ------
    ConfigError
        When there is no run, the run has ended or another process is writing it, or there is no
        checkpoint.
    """
    path = job_file_of_run(Path(run_dir)).parent
    check_unwritten(path)
    place = checkpoint_place(setting, path)
    # Another directory may be on the scheduler's host; then the scheduler looks for checkpoints.
    if place and (
        (not place.in_run_dir and not exists(place.path)) or _has_checkpoints(place.path)
    ):
        return place
    why = "has ended" if _is_over(path) else "was interrupted before the first one"
    why = "keeps none (checkpoint: false)" if place is None else why
    raise ConfigError(
        f"resume: there is no checkpoint of {path}: the run {why}; run it from its start: "
        f"elasticml run {path / 'job.yaml'}"
    )


def _has_checkpoints(place: str) -> bool:
    return any(name.startswith("checkpoint-") for name in names(place))


def how_to_resume(record: JobRecord, run_dir: Path | None, *, is_command: bool) -> str:
    """Say how to resume a job whose scheduler is lost, or why that is impossible.

    Parameters
    ----------
    run_dir : path, optional
        The run directory.
    is_command : bool
        Whether ``elasticml run`` can resume the run: its job file names the cluster.
    """
    place = record.checkpoint
    if place is None:
        return "it wrote no checkpoints: set checkpoint.path to be able to resume such a job"
    with suppress(ElasticmlError):
        is_here = place.in_run_dir or exists(place.path)
        if is_here and not _has_checkpoints(place.path):
            return "it had not written a checkpoint yet: run it again"
    if run_dir is not None and is_command:
        return f"resume it: elasticml run --resume {run_dir}"
    path = place.path if run_dir is None else run_dir
    return f"resume it: {resume_call(path, record)}"


def lost_data(record: JobRecord) -> dict[str, str]:
    """Return how to give again the data of a job that were in memory alone."""
    scored = record.data.get("scored") or {}
    parts = {
        "data": record.data,
        "validate": scored.get("validation"),
        "test": scored.get("test"),
    }
    again = {name: how_to_give_again((part or {}).get("format")) for name, part in parts.items()}
    return {name: call for name, call in again.items() if call}


def resume_call(path: str | Path, record: JobRecord) -> str:
    """Return the call that resumes a job."""
    given = [f", {name}={call}" for name, call in lost_data(record).items()]
    return f'em.Job.resume(client, "{path}"{"".join(given)})'


def saved_outcome(record: JobRecord, story: Sequence[Mapping[str, Any]], reason: str) -> JobOutcome:
    """Return a job's results without its scheduler: its story so far, and its last checkpoint.

    The model is that of the last checkpoint; there is none if this process cannot read it.
    """
    from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint

    checkpoint = None
    if record.checkpoint is not None:
        with suppress(ElasticmlError):
            checkpoint = read_checkpoint(record.checkpoint.path)
    rows = [history_row(ended) for ended in records_of(RoundEnded, story)]
    summary: dict[str, Any] = {"name": record.name, "rounds": len(rows), "reason": reason}
    if checkpoint is not None and checkpoint.resume_point.model:
        point = checkpoint.resume_point
        summary["model_round"] = point.round if point.model_round is None else point.model_round
    return JobOutcome(
        state="failed",
        arrays={} if checkpoint is None else dict(checkpoint.resume_point.model),
        snapshots={},
        history=rows,
        summary=summary,
        facts=None if checkpoint is None else checkpoint.facts,
        error={"kind": "JobFailedError", "message": reason, "fields": {}},
    )


def job_file_of_run(run_dir: Path) -> Path:
    """Return the path of a run's ``job.yaml``.

    Raises
    ------
    ConfigError
        When the directory holds no run.
    """
    path = run_dir / "job.yaml"
    if not path.is_file():
        raise ConfigError(
            f"resume: {run_dir} holds no run (there is no job.yaml); name the directory of an "
            "interrupted run"
        )
    return path


def reached(run_dir: Path) -> dict[str, Any]:
    """Return how far a run got, from its story: the number of ended rounds, and seconds."""
    progress: dict[str, Any] = {}
    try:
        with (run_dir / "story.jsonl").open(encoding="utf-8") as file:
            for line in file:
                values = parse_line(line)
                if values is None:
                    continue  # cut off by a kill
                record = record_from_json(values)
                if isinstance(record, RoundEnded):
                    progress["round"] = record.row.round + 1
                progress["seconds"] = record.t
    except OSError:
        return {}
    return progress


def forget_checkpoints(record: JobRecord) -> None:
    """Remove the checkpoints of a finished job, if this process can access them."""
    from elasticml.runtime.checkpoints.checkpoint_store import remove_checkpoints

    place = record.checkpoint
    if place is None:
        return
    try:
        remove_checkpoints(place.path)
        if place.in_run_dir and exists(place.path) and not names(place.path):
            remove(place.path)
    except ElasticmlError:
        return  # only the scheduler can access the directory; leftover checkpoints are harmless


def _is_over(path: Path) -> bool:
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(summary, dict):
        return False
    ended = summary_from_json(summary)
    return ended.error is None and ended.reason is None
