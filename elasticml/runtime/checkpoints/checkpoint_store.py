"""Checkpoints in a directory or under a URL: written atomically, numbered, the last two kept.

Checkpoints of one job share the files of its journal and of the models kept for its evaluation;
each of these is written once. Specified in ``docs/how-to/checkpoints.md``. All functions block:
callers on an event loop use a thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from elasticml.algorithms.base import Arrays, Resume
from elasticml.control.checkpoint_state import progress_of
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.storage.filesystem import join, names, read_bytes, remove, write_whole
from elasticml.errors import ConfigError, one_line
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.runtime.checkpoints.attempt_claim import FILE_NAME, AttemptClaim, attempt_of
from elasticml.runtime.checkpoints.checkpoint_format import (
    UNREADABLE,
    DamagedError,
    decode,
    decode_lines,
    encode,
    encode_lines,
)
from elasticml.training.checkpoint import Checkpoint, ResumePoint

#: Number of checkpoints to keep: if the last one is damaged, the previous one is used.
KEPT: Final = 2
#: Seconds for which a new job waits until a former one, which is ending, has released its place.
HANDOVER_S: Final = 5.0
#: Prefix of the model's arrays in a checkpoint, beside those of the trainer.
_MODEL: Final = "model:"
#: Temporary files of writes that were killed.
_PART = re.compile(r"\.(checkpoint|journal|model|attempt)-.*\.part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file with a part of the journal: the entries from ``start`` up to ``end``.

    Both count records of the story, rows of the history, and finished rounds.
    """

    name: str
    sha256: str
    start: tuple[int, int, int]
    end: tuple[int, int, int]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(self.end) - sum(self.start)


def checkpoint_name(attempt: int, number: int) -> str:
    """Return the name of a checkpoint's file; names sort in the order of writing."""
    return f"checkpoint-{attempt:03d}-{number:08d}.bin"


def read_checkpoint(place: str, skipped: list[str] | None = None) -> Checkpoint | None:
    """Read the newest undamaged checkpoint in a place; None if there is none.

    ``notes`` of the result lists newer ones that were skipped: they are damaged, cannot be read, or
    name another version in their first line, which no digest covers.

    Checkpoints share parts of the journal and models kept for the evaluation. If such a file is
    damaged in all of them, the newest checkpoint is read without it: the state of the job is in the
    checkpoint's own file. Then ``notes`` says what is missing.

    Parameters
    ----------
    place : str
        A local directory or a URL, as ``checkpoint.path`` of a job.
    skipped : list of str, optional
        The notes are appended to it, also if there is no result.

    Raises
    ------
    ConfigError
        When none can be read, and another version of elasticml wrote the newest of them, or the
        place cannot be read.
    """
    notes = [] if skipped is None else skipped
    refusals: list[ConfigError] = []
    incomplete: Checkpoint | None = None
    for _, _, name in sorted(_checkpoints(place), reverse=True):
        try:
            checkpoint = _read(place, name, tuple(notes))
        except (FileNotFoundError, *UNREADABLE) as error:
            notes.append(f"{name} is damaged and skipped: {_reason(error)}")
        except ConfigError as error:
            refusals.append(error)
            notes.append(f"{name} is skipped: {error.message}")
        else:
            if checkpoint.is_whole:
                return checkpoint
            incomplete = incomplete or checkpoint
            notes.append(f"{name} is incomplete and skipped: {checkpoint.notes[-1]}")
    if incomplete is None and refusals:
        raise refusals[0]
    return incomplete


def last_number(place: str) -> int:
    """Return the number of the last checkpoint in a place, damaged or not; 0 if there is none."""
    return max((number for _, number, _ in _checkpoints(place)), default=0)


def remove_checkpoints(place: str) -> None:
    """Remove all checkpoints of a place, and the place itself if it contains nothing else."""
    files = names(place)
    ours = [name for name in files if attempt_of(name) is not None or _PART.fullmatch(name)]
    if files and len(ours) == len(files):
        remove(place)
        return
    for name in ours:
        remove(join(place, name))


def check_unused(place: str) -> None:
    """Check that a new job does not overwrite the checkpoints of another one.

    Raises
    ------
    ConfigError
        When the place contains a checkpoint from which a job can be resumed.
    """
    checkpoint = read_checkpoint(place)
    if checkpoint is not None:
        raise ConfigError(
            f"checkpoint.path: {place} holds a checkpoint of job {checkpoint.record.job}, "
            f"round {checkpoint.round}; resume that job, remove it, or name another place"
        )


def checkpoint_of(record: JobRecord, claim: AttemptClaim | None = None) -> Checkpoint | None:
    """Read the checkpoint from which a job resumes; None for a new job.

    Parameters
    ----------
    claim : AttemptClaim, optional
        To the job's own place; taken before anything is read. The caller releases it.

    Raises
    ------
    ConfigError
        When there is no such checkpoint, when a new job would overwrite another one's, or when a
        running job holds the place.
    """
    try:
        if claim is not None:
            claim.take(HANDOVER_S)
    except ConfigError as error:
        # A place that cannot be written is a failed checkpoint, which a job survives.
        if "held_by" in error.fields:
            raise
    if record.resume:
        skipped: list[str] = []
        checkpoint = read_checkpoint(record.resume, skipped)
        if checkpoint is None:
            why = f": {skipped[0]}" if skipped else ""
            raise ConfigError(
                f"resume: there is no readable checkpoint in {record.resume}{why}; name the "
                "directory of an interrupted run, or start the job again"
            )
        return checkpoint
    if record.checkpoint is not None:
        check_unused(record.checkpoint.path)
    return None


def write_checkpoint(
    place: str,
    *,
    attempt: int,
    number: int,
    resume_point: ResumePoint,
    about: Mapping[str, Any],
    parts: Sequence[Part],
    models: Mapping[int, str],
) -> tuple[str, int]:
    """Write a checkpoint's own file, after its journal and models; return its name and size.

    Parameters
    ----------
    about : mapping
        Record, fingerprint, dataset statistics and owners, as plain values.
    parts : sequence of Part
        The whole journal, in order.
    models : mapping
        Names of the files with the models kept for the evaluation, by round.
    """
    resume = resume_point.resume
    values = {
        **about,
        "attempt": attempt,
        "number": number,
        "round": resume_point.round,
        "seconds": resume_point.seconds,
        "values": dict(resume.values),
        "tuned": dict(resume.tuned),
        "machine": dict(resume_point.machine),
        "counts": dict(resume_point.counts),
        "journal": [asdict(part) for part in parts],
        "models": {str(round): name for round, name in models.items()},
        "model_round": resume_point.model_round,
    }
    model = {f"{_MODEL}{name}": array for name, array in resume_point.model.items()}
    content = encode(values, {**resume.arrays, **model})
    name = checkpoint_name(attempt, number)
    write_whole(join(place, name), content)
    return name, len(content)


def write_part(
    place: str,
    name: str,
    start: tuple[int, int, int],
    end: tuple[int, int, int],
    entries: Mapping[str, Iterable[Any]],
) -> tuple[Part, int]:
    """Write a part of the journal; return its description and its size in bytes."""
    content = encode_lines(entries)
    write_whole(join(place, name), content)
    digest = hashlib.sha256(content).hexdigest()
    return Part(name=name, sha256=digest, start=start, end=end), len(content)


def write_model(place: str, name: str, round: int, arrays: Arrays) -> int:
    """Write a model that is kept for the evaluation; return its size in bytes."""
    content = encode({"round": round}, arrays)
    write_whole(join(place, name), content)
    return len(content)


def leftovers(place: str, attempt: int, used: Sequence[str]) -> list[str]:
    """List files of earlier attempts in a place that are not in ``used``.

    Files of later attempts are not listed: this attempt may be the earlier one, still alive.
    """
    unused = []
    for name in names(place):
        of = attempt_of(name)
        is_ours = of is not None and of <= attempt and name not in used
        if is_ours or _PART.fullmatch(name):
            unused.append(name)
    return unused


def _checkpoints(place: str) -> list[tuple[int, int, str]]:
    """List attempt, number and name of every checkpoint in a place."""
    matches = [FILE_NAME.fullmatch(name) for name in names(place)]
    return [(int(m[2]), int(m[3]), m[0]) for m in matches if m is not None and m[1] == "checkpoint"]


def _read(place: str, name: str, notes: tuple[str, ...]) -> Checkpoint:
    values, arrays = decode(read_bytes(join(place, name)), join(place, name))
    missing: list[str] = []
    entries = _journal(place, values["journal"], missing)
    snapshots = _snapshots(place, values["models"], missing)
    models = {round: str(values["models"][str(round)]) for round in snapshots}
    files = (name, *(part["name"] for part in values["journal"]), *values["models"].values())
    ours = [name for name in arrays if name.startswith(_MODEL)]
    model = {name.removeprefix(_MODEL): arrays.pop(name) for name in ours}
    resume_point = ResumePoint(
        round=int(values["round"]),
        seconds=float(values["seconds"]),
        resume=Resume(arrays=arrays, values=values["values"], tuned=values["tuned"]),
        model=model,
        model_round=values.get("model_round"),
        machine=values["machine"],
        counts=values["counts"],
        story=len(entries["story"]),
        rows=len(entries["row"]),
        progress=len(entries["progress"]),
        kept=tuple(sorted(models)),
    )
    return Checkpoint(
        attempt=int(values["attempt"]),
        number=int(values["number"]),
        resume_point=resume_point,
        record=job_record(values["record"]),
        fingerprint=str(values["fingerprint"]),
        facts=DatasetStats.from_json(values["facts"]),
        story=entries["story"],
        rows=entries["row"],
        progress=[progress_of(entry) for entry in entries["progress"]],
        snapshots=snapshots,
        owners=values["owners"],
        files=files,
        # Positions in the journal count all entries: if some are missing, all are written again.
        parts=() if missing else values["journal"],
        models=models,
        notes=(*notes, *missing),
        is_whole=not missing,
    )


def _journal(
    place: str, parts: Sequence[Mapping[str, Any]], missing: list[str]
) -> dict[str, list[Any]]:
    """Read the entries of a journal, by kind, and say which parts are missing."""
    entries: dict[str, list[Any]] = {"story": [], "row": [], "progress": []}
    for entry in parts:
        part = part_of(entry)
        try:
            content = read_bytes(join(place, part.name))
            if hashlib.sha256(content).hexdigest() != part.sha256:
                raise DamagedError(f"the digest of {part.name} does not match")
        except (DamagedError, FileNotFoundError) as error:
            records, rows, _ = (b - a for a, b in zip(part.start, part.end, strict=True))
            missing.append(
                f"{_reason(error, part.name)}: {records} records of the log and {rows} rows of the "
                "history are missing"
            )
            continue
        for kind, of_kind in decode_lines(content).items():
            entries[kind] += of_kind
    return entries


def _snapshots(place: str, models: Mapping[str, str], missing: list[str]) -> dict[int, Arrays]:
    """Read the models kept for the evaluation, by round, and say which are missing."""
    snapshots: dict[int, Arrays] = {}
    for round, name in models.items():
        try:
            snapshots[int(round)] = decode(read_bytes(join(place, name)), name)[1]
        except (DamagedError, FileNotFoundError) as error:
            missing.append(
                f"{_reason(error, name)}: the model of round {round} is not evaluated ({name})"
            )
    return snapshots


def part_of(entry: Mapping[str, Any]) -> Part:
    """Parse a checkpoint's entry for a part of its journal."""
    start, end = (tuple(int(n) for n in entry[key]) for key in ("start", "end"))
    return Part(name=entry["name"], sha256=entry["sha256"], start=start, end=end)  # type: ignore[arg-type]


def _reason(error: BaseException, name: str = "one of its files") -> str:
    if isinstance(error, FileNotFoundError):
        return f"{name} is missing"
    kind = "" if isinstance(error, DamagedError) else f"{type(error).__name__}: "
    return f"{kind}{one_line(error)}"
