"""Simulate a run under other rules for absent examples, with its own losses and returns.

Each mode is a run of its own in ``RUN_DIR/what-if/MODE``, as ``elasticml simulate`` writes one: the
same record, data, machines, trainer and solvers. It is kept, and simulated again only if the run or
its settings have changed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticml.data.storage.filesystem import write_whole
from elasticml.errors import ConfigError, DataError
from elasticml.ids import VERSION
from elasticml.job import Job
from elasticml.jobs.follow import Watcher, follow
from elasticml.jobs.job_file import JobFile, read_job_file
from elasticml.jobs.simulated_job import SimulatedJob
from elasticml.report.run_reader import RunData, read_run
from elasticml.report.story_to_faults import (
    RecordedFaults,
    faults_from_story,
    initial_slots,
    measured_pace,
)
from elasticml.report.what_if import NO_FAILURE
from elasticml.story.records import MemberJoined

#: Rules for absent examples, and the same run without losses.
MODES = (
    "auto",
    "taylor",
    "ignore",
    "ignore_rescaled",
    "stall",
    "reload",
    "freeze",
    NO_FAILURE,
)
#: Approximate number of models of each mode that are evaluated on all examples.
EVALUATED = 100
KEY = "key.json"

Shows = Callable[[str], AbstractContextManager[Watcher]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMode:
    """A mode that has been simulated."""

    mode: str
    path: Path
    #: Whether an earlier simulation was reused.
    is_kept: bool


def simulate_modes(
    run_dir: str | Path, modes: Sequence[str], shows: Shows
) -> tuple[list[SimulatedMode], RecordedFaults]:
    """Simulate a run's own membership history under other modes; reuse earlier simulations.

    Parameters
    ----------
    run_dir : path
    modes : sequence of str
        From :data:`MODES`.
    shows : callable
        Returns a watcher that shows the progress of a simulation with this name.

    Raises
    ------
    ConfigError, DataError
        When a mode is unknown or the algorithm does not have it, or the run cannot be simulated: it
        had no data of its own, they no longer exist, or its story is incomplete.
    """
    if not modes:
        raise ConfigError(f"what-if: got no rule, wanted some of {', '.join(MODES)}")
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(
                f"what-if: got {mode!r}, wanted some of {', '.join(MODES)}, such as "
                "--what-if stall,ignore,no-failure"
            )
    run = read_run(run_dir)
    rounds = run.summary.rounds or 0
    if rounds < 1:
        raise ConfigError(
            f"what-if: {run.path} has no summary with the number of rounds to simulate; name a run "
            "that has ended"
        )
    past = faults_from_story(run.records)
    # Check all modes before simulating the first one.
    jobs = {mode: _job(run, mode) for mode in dict.fromkeys(modes)}
    simulated = []
    for mode, (file, made) in jobs.items():
        record = _record(run, mode, file, made, past, rounds)
        simulated.append(_simulate(run, mode, file, record, shows))
    return simulated, past


def _job(run: RunData, mode: str) -> tuple[JobFile, Job]:
    """Read the run's job file with a mode's rule."""
    path = run.path / "job.yaml"
    settings = [] if mode == NO_FAILURE else [f"absent={mode}"]
    try:
        file = read_job_file(path, [*settings, "checkpoint=null", "faults=[]"])
        made = Job.from_file(file)
        if (file.simulate or {}).get("costs"):
            raise ConfigError("the run was simulated from costs, without data")
        made.check_data()
    except (ConfigError, DataError) as error:
        raise type(error)(f"what-if {mode}: {error.message}", **error.fields) from error
    return file, made


def _record(
    run: RunData, mode: str, file: JobFile, made: Job, past: RecordedFaults, rounds: int
) -> dict[str, Any]:
    """Return the record of a mode: the same number of rounds, the same losses and returns."""
    members = initial_slots(run.records)
    if members < 1:
        raise ConfigError(f"what-if: the story of {run.path} does not name the first members")
    hosts = {record.host for record in run.records if isinstance(record, MemberJoined)}
    own = dict(file.simulate or {})
    world = {k: v for k, v in own.items() if k not in ("preemption", "trace")}
    if not run.summary.simulated:
        world = {"hosts": len(hosts) or 1, **measured_pace(run.records)}
    record = made.record(f"{file.name}-{mode}", members)
    every = getattr(file.evaluate, "every", None)
    return {
        **record,
        "faults": [] if mode == NO_FAILURE else [dict(fault) for fault in past.faults],
        "stop": {"rounds": rounds},
        "evaluate": {"every": every or max(1, rounds // EVALUATED)},
        "checkpoint": None,
        "simulate": world,
    }


def _simulate(
    run: RunData, mode: str, file: JobFile, record: dict[str, Any], shows: Shows
) -> SimulatedMode:
    """Simulate a mode, unless an earlier simulation can be reused."""
    path = run.path / "what-if" / mode
    key = {
        "package": VERSION,
        "record": _digest(record),
        "story": _digest([record.to_json() for record in run.records]),
    }
    key_file = path / KEY
    if key_file.is_file() and key_file.read_text(encoding="utf-8") == json.dumps(key):
        return SimulatedMode(mode=mode, path=path, is_kept=True)
    if path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with shows(mode) as watcher:
        follow(
            SimulatedJob(record, file.data, file.test),
            run_dir=path,
            watchers=[watcher],
            cluster=file.cluster.model_dump(mode="json"),
            evaluates=True,
            cancels=True,
        )
    write_whole(str(key_file), json.dumps(key).encode())
    return SimulatedMode(mode=mode, path=path, is_kept=False)


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()
