"""A job's checkpoints as users see them: the setting, the default place, the interrupted run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from elasticml.data.places import exists, is_url, join, names, remove
from elasticml.errors import ConfigError, ElasticmlError
from elasticml.jobs.run_directory import check_unwritten
from elasticml.jobs.schema import read_settings
from elasticml.jobs.settings import Checkpoint

CheckpointLike = Checkpoint | Mapping[str, Any] | str | Path | bool | None
#: What a job goes by; False writes none.
CheckpointSetting = Checkpoint | Literal[False]
#: Where checkpoints are in a run's directory.
FOLDER = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """A run that has not come to its end, and can go on."""

    #: Where its checkpoints are.
    place: str
    #: ``round`` and ``seconds`` that its story had reached.
    reached: Mapping[str, Any]


def checkpoint_setting(given: CheckpointLike) -> CheckpointSetting:
    """Read what a job says of checkpoints; a path alone is the place.

    Raises
    ------
    ConfigError
        When it is nothing of the kind.
    """
    if given is None or given is False:
        return False
    if given is True:
        return Checkpoint()
    if isinstance(given, Checkpoint):
        return given
    if isinstance(given, str | Path):
        return Checkpoint(path=str(given))
    return read_settings(Checkpoint, given, "checkpoint")


def checkpoint_entry(
    setting: CheckpointSetting, run_dir: str | Path | None
) -> dict[str, Any] | None:
    """Write the setting as the job record has it; None where there is no place for checkpoints.

    Parameters
    ----------
    run_dir : path or URL, optional
        The run's directory, which has a folder for them unless a path is given.
    """
    if setting is False:
        return None
    if setting.path is not None:
        path = setting.path if is_url(setting.path) else str(Path(setting.path).absolute())
        return {"path": path, "every_s": setting.every}
    if run_dir is None:
        return None
    run = str(run_dir) if is_url(str(run_dir)) else str(Path(run_dir).absolute())
    place = join(run, FOLDER)
    # A run's directory may be renamed: its job file does not say where it is.
    return {"path": place, "every_s": setting.every, "in_run_dir": True}


def job_file_entry(entry: Mapping[str, Any] | None) -> dict[str, Any] | Literal[False]:
    """Write the record's entry as a job file says it."""
    if not entry:
        return False
    shown = {} if entry.get("in_run_dir") else {"path": entry["path"]}
    return {**shown, "every": entry["every_s"]}


def interrupted_run(run_dir: str | Path, setting: CheckpointSetting) -> Interrupted:
    """Find what a run in a directory can go on from.

    Raises
    ------
    ConfigError
        When there is no run, it has come to its end or is being written, or there is nothing to go
        on from.
    """
    path = described(Path(run_dir)).parent
    check_unwritten(path)
    entry = checkpoint_entry(setting, path)
    place = "" if entry is None else str(entry["path"])
    if not place or not any(name.startswith("checkpoint-") for name in names(place)):
        how = "has come to its end" if _is_over(path) else "was interrupted before the first one"
        how = "keeps none (checkpoint: false)" if entry is None else how
        raise ConfigError(
            f"resume: there is no checkpoint of {path}: the run {how}; run it anew: elasticml run "
            f"{path / 'job.yaml'}",
            path="resume",
        )
    return Interrupted(place=place, reached=reached(path))


def described(run_dir: Path) -> Path:
    """Return the file that says which job a run is of.

    Raises
    ------
    ConfigError
        When the directory holds no run.
    """
    path = run_dir / "job.yaml"
    if not path.is_file():
        raise ConfigError(
            f"resume: {run_dir} holds no run (there is no job.yaml); name the directory of an "
            "interrupted one",
            path="resume",
        )
    return path


def reached(run_dir: Path) -> dict[str, Any]:
    """Read from a run's story how far it had come: rounds that had ended, and seconds."""
    found: dict[str, Any] = {}
    try:
        with (run_dir / "story.jsonl").open(encoding="utf-8") as file:
            for line in file:
                record = _record(line)
                if record.get("event") == "RoundEnded":
                    found["round"] = int(record["round"]) + 1
                if "t" in record:
                    found["seconds"] = float(record["t"])
    except OSError:
        return {}
    return found


def forget_checkpoints(record: Mapping[str, Any]) -> None:
    """Remove the checkpoints of a job that is done, as far as that is possible from here."""
    from elasticml.runtime.checkpoints import remove_checkpoints

    entry = record.get("checkpoint")
    if not entry:
        return
    try:
        remove_checkpoints(entry["path"])
        if entry.get("in_run_dir") and exists(entry["path"]) and not names(entry["path"]):
            remove(entry["path"])
    except ElasticmlError:
        return  # the place is the scheduler's, and what is left there does no harm


def _record(line: str) -> dict[str, Any]:
    """Read a line of a story; what was cut off by a kill says nothing."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _is_over(path: Path) -> bool:
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and "error" not in summary and "reason" not in summary
