"""Checkpoints of a run: the setting, the default directory, and finding an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elasticml.data.storage.filesystem import exists, is_url, join, names, remove
from elasticml.errors import ConfigError, ElasticmlError
from elasticml.jobs.run_directory import check_unwritten
from elasticml.protocol.job_record import CheckpointPlace, JobRecord
from elasticml.specification.sections import Checkpoint
from elasticml.specification.settings_model import read_settings
from elasticml.story.reader import parse_line
from elasticml.story.records import RoundEnded, record_from_json
from elasticml.story.summary import summary_from_json

CheckpointLike = Checkpoint | Mapping[str, Any] | str | Path | bool | None
#: The validated setting; False disables checkpoints.
CheckpointSetting = Checkpoint | Literal[False]
#: Subdirectory of a run directory that holds the checkpoints.
FOLDER = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedRun:
    """An interrupted run that can be resumed."""

    #: Path or URL of its checkpoints.
    place: str
    #: The last ``round`` and ``seconds`` in its story.
    reached: Mapping[str, Any]


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
    if isinstance(setting, Checkpoint):
        return setting
    if isinstance(setting, str | Path):
        return Checkpoint(path=str(setting))
    return read_settings(Checkpoint, setting, "checkpoint")


def checkpoint_place(
    setting: CheckpointSetting, run_dir: str | Path | None
) -> CheckpointPlace | None:
    """Return the setting as the job record has it; None if there is no directory to use.

    Parameters
    ----------
    run_dir : path or URL, optional
        The run directory; checkpoints go into a subdirectory of it unless a path is set.
    """
    if setting is False:
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


def interrupted_run(run_dir: str | Path, setting: CheckpointSetting) -> InterruptedRun:
    """Find the checkpoints from which a run in a directory can resume.

    Raises
    ------
    ConfigError
        When there is no run, the run has ended or another process is writing it, or there is no
        checkpoint.
    """
    path = job_file_of_run(Path(run_dir)).parent
    check_unwritten(path)
    entry = checkpoint_place(setting, path)
    place = "" if entry is None else entry.path
    if not place or not any(name.startswith("checkpoint-") for name in names(place)):
        why = "has ended" if _is_over(path) else "was interrupted before the first one"
        why = "keeps none (checkpoint: false)" if entry is None else why
        raise ConfigError(
            f"resume: there is no checkpoint of {path}: the run {why}; run it from its start: "
            f"elasticml run {path / 'job.yaml'}",
            path="resume",
        )
    return InterruptedRun(place=place, reached=reached(path))


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
            "interrupted run",
            path="resume",
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
