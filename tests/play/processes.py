"""Plays plans on real processes, one after the other in one world."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from elasticml.clusters.local.cluster import LocalWorker
from elasticml.clusters.polling import until
from elasticml.errors import ConfigError, ElasticmlError, JobFailedError
from elasticml.job import Job
from elasticml.jobs.handle import Handle
from elasticml.jobs.job_spec import JobSpec
from elasticml.specification.settings_model import names_by_key
from tests.play.plan import Fault, Plan, Played, hits_in_phases
from tests.play.problems import file_source_of
from tests.play.rules import violations
from tests.play.worlds import World, world_of

#: Seconds that a job may take to its first round: processes start, kernels are compiled.
START_S_MAX: Final = 150.0
#: A worker that is missing for so long is replaced.
_BACK_S: Final = 1.0
_LOOK_S: Final = 0.1
#: Seconds without faults after which a job must have gone on.
_QUIET_S: Final = 10.0
#: Without them, a job with this many rounds is near the optimum; a busy machine may make fewer.
_ROUNDS_MIN: Final = 100
#: Slots with which a process has tried shared memory; it keeps them.
_SLOTS_KEPT: Final = 2
_IN_MEMORY: Final = ("/memfd", "/dev/shm", "/dev/zero")


@dataclass(kw_only=True, eq=False)
class PlayedOnProcesses(Played):
    """The end of a plan's job on processes."""

    rounds: int = 0
    #: Longest time without a new round, faults included, after the first one.
    stall_s: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a verdict."""
        return {
            "error": None if self.error is None else _told(self.error),
            "hits": [fault.kind for fault in self.hits],
            "violations": [list(found) for found in violations(self)],
            "rounds": self.rounds,
            "stall_s": round(self.stall_s, 2),
            "seconds": round(self.seconds, 1),
            "rows": len(self.history),
        }


def _told(error: BaseException) -> str:
    with contextlib.suppress(Exception):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def play_all(plans: Sequence[Plan], folder: Path) -> Iterator[PlayedOnProcesses]:
    """Play plans of one world; yield each when it has ended."""
    made = _Worlds(plans[0], folder)
    with made.exits:
        for plan in plans:
            yield _Play(plan, made).run()


class _Worlds:
    """The world of some plans, which may be lost with its driver."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self.exits = contextlib.ExitStack()
        self._world: World | None = None

    def __call__(self) -> World:
        """Return the world; start it if there is none."""
        if self._world is None:
            made = world_of(self._plan.world, self._folder, self._plan.seed)
            self._world = self.exits.enter_context(made)
        return self._world

    def lose(self) -> None:
        """Close a world whose scheduler has ended."""
        self._world = None
        self.exits.close()


class _Play:
    """One plan."""

    def __init__(self, plan: Plan, worlds: _Worlds) -> None:
        if plan.in_phases and plan.world["on"] != "local":
            raise ConfigError("faults of the kind phase are played on local processes only")
        self.plan, self._worlds = plan, worlds
        self.world = worlds()
        self.played = PlayedOnProcesses(plan=plan, late_s=math.inf)
        self._data = self.world.folder / "data"
        self._place = self.world.disk / f"checkpoint-{plan.seed}"
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        timed = (fault for fault in plan.faults if fault.kind != "phase")
        self._pending = sorted(timed, key=lambda fault: fault.at)
        self._missing_since: float | None = None
        self._returning: threading.Thread | None = None

    def run(self) -> PlayedOnProcesses:
        """Play the plan to its end."""
        played, begin_s = self.played, time.monotonic()
        source = file_source_of(self.plan.job, self._data)
        handle: Handle | None = None
        while self._pending and self._pending[0].at < 0.0:
            self._begin(self._pending.pop(0))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the jobs have no tolerance to reach
                handle = self._job(source).start(self.world.client)
                played.state = self._await_end(handle)
                if played.state == "failed" and self._may_resume(handle):
                    handle = Job.resume(self.world.client, self._place, data=self._given(source))
                    played.state = self._await_end(handle)
        except Exception as error:  # whatever it is, the plan has found it
            played.state, played.error, handle = "failed", error, None
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()
        played.seconds = time.monotonic() - begin_s
        played.late_s = math.inf if played.state == "endless" else 0.0
        if handle is not None and played.state != "endless":
            self._fetch(handle)
        return played

    def _given(self, source: Any) -> Any:
        return source if self.plan.data.get("format", "arrays") == "arrays" else None

    def _job(self, source: Any) -> Job:
        own = ("data", "checkpoint", "chunk_bytes")
        sections = {k: v for k, v in self.plan.job.items() if k not in own}
        sections["faults"] = self.plan.in_phases
        if ":" in sections["algorithm"]["name"]:
            trigger = str(self.world.folder / "raise")
            sections["algorithm"] = {**sections["algorithm"], "trigger": trigger}
        if "checkpoint" in self.plan.job:
            every_s = self.plan.job["checkpoint"]["every_s"]
            sections["checkpoint"] = {"every": every_s, "path": str(self._place)}
        data = {"format": "npz", "path": "replaced", "cache": str(self.world.disk / "cache")}
        if "chunk_bytes" in self.plan.job:
            data["chunk_size"] = self.plan.job["chunk_bytes"]
        spec = JobSpec.from_sections(
            {**sections, "data": data}, folder=self.world.folder, name="play"
        )
        given = {key: getattr(spec, name) for key, name in names_by_key(JobSpec).items()}
        return Job(**{**given, "data": source, "name": f"play-{self.plan.seed}"})

    def _await_end(self, handle: Handle) -> str:
        """Watch a job, and begin what is due; return its state at the end."""
        limit_s = self.plan.job["stop"]["seconds"] + self.plan.rules["ends"] + START_S_MAX
        begin_s = changed_s = time.monotonic()
        first_s = quiet_s = quiet_round = None
        last = -1
        while True:
            try:
                status = handle.status()
            except JobFailedError as error:
                self.played.error = error
                return "failed"
            now_s = time.monotonic()
            if status.round != last:
                if first_s is not None:
                    self.played.stall_s = max(self.played.stall_s, now_s - changed_s)
                last, changed_s = status.round, now_s
            if status.is_over:
                break
            if now_s - begin_s > limit_s:
                return "endless"
            if status.round >= 1 and first_s is None:
                first_s = now_s
            if first_s is not None:
                while self._pending and self._pending[0].at <= now_s - first_s:
                    self._begin(self._pending.pop(0))
            self.played.rounds = status.round
            is_whole = self._replace(now_s) and first_s is not None
            is_active = any(thread.is_alive() for thread in self._threads)
            is_quiet = is_whole and not (self._pending or is_active)
            if not is_quiet:
                quiet_s = None
            elif quiet_s is None:
                quiet_s, quiet_round = now_s, status.round
            self._over.wait(_LOOK_S)
        if quiet_s is not None:
            self.played.is_whole = time.monotonic() - quiet_s >= _QUIET_S
            self.played.quiet_rounds = status.round - (quiet_round or 0)
        self.played.absent = status.absent_examples or 0
        return str(status.state)

    def _begin(self, fault: Fault) -> None:
        """Begin a fault in a thread, which ends it."""
        workers = self.world.workers() if fault.who else []
        # In the order of the plan: only one direction of a connection may be hit.
        slots = dict.fromkeys(k % len(workers) for k in fault.who) if workers else ()
        hit = [workers[k] for k in slots]
        if fault.who and not hit:
            return  # no worker is left
        if fault.kind == "one_way" and len(hit) < 2:
            return
        thread = threading.Thread(target=self._do, args=(fault, hit), name=fault.kind)
        self._threads.append(thread)
        thread.start()

    def _do(self, fault: Fault, workers: Sequence[LocalWorker]) -> None:
        # A worker may be about to end by itself, and the scheduler may have ended.
        with contextlib.suppress(ElasticmlError, OSError):
            undo = self.world.faults[fault.kind](self.world, fault, workers)
            self.played.hits.append(fault)
            self.played.hit_pids |= {worker.pid for worker in workers if worker.pid is not None}
            if undo is not None:
                self._over.wait(fault.seconds)
                undo()

    def _replace(self, now_s: float) -> bool:
        """Replace workers that have been missing for a while; return whether none is missing."""
        try:
            missing = self.world.members - len(self.world.workers())
        except (ElasticmlError, OSError):
            return False
        if missing <= 0:
            self._missing_since = None
            return True
        if self._missing_since is None:
            self._missing_since = now_s
        is_idle = self._returning is None or not self._returning.is_alive()
        if is_idle and now_s - self._missing_since >= _BACK_S:
            self._returning = threading.Thread(target=self._bring_back, args=(missing,))
            self._threads.append(self._returning)
            self._returning.start()
        return False

    def _bring_back(self, n: int) -> None:
        with contextlib.suppress(ElasticmlError, OSError):
            self.world.cluster.bring_back(n)

    def _may_resume(self, handle: Handle) -> bool:
        """Return whether a failed job has a checkpoint; start another world if it was lost."""
        has_killed = any(fault.kind == "driver" for fault in self.played.hits)
        if has_killed and not _is_alive(self.world.scheduler_pid):
            self._worlds.lose()
            self.world, self.played.error = self._worlds(), None
            # The other faults hit the resumed job, at their times after its first round.
        else:
            self._pending = []
            try:
                handle.result()
            except ElasticmlError as error:
                self.played.error = error
        return "checkpoint" in self.plan.job and self._place.exists()

    def _fetch(self, handle: Handle) -> None:
        """Fetch the result, forget the job, and look at what it leaves."""
        played = self.played
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = handle.result()
            except BaseException as error:
                played.error = error
            else:
                played.history, played.arrays = result.history, result.arrays
                played.snapshots = result.kept
                played.summary, played.rounds = result.summary, result.summary["rounds"]
                played.has_settled = played.is_whole or played.rounds >= _ROUNDS_MIN
            with contextlib.suppress(ElasticmlError, OSError):
                played.story = list(handle)
                # Those of the plan at their times came later, or their outcome is not a phase's.
                played.hits[:0] = hits_in_phases(played.story)
                handle.forget()
        with contextlib.suppress(OSError):
            until(lambda: not self._left(), wait_s=10.0, every_s=0.2)
            played.left = self._left()

    def _left(self) -> list[str]:
        """Return what is left on the cluster: Dask's tasks, shared memory, deleted files."""
        tasks = self.world.client.run_on_scheduler(_tasks)
        found = [f"{n} Dask tasks are left" for n in [tasks] if n]
        for pid in {self.world.scheduler_pid, *(w.pid for w in self.world.workers())}:
            kept = [] if pid is None else _kept_files(pid)
            found += [f"process {pid} keeps {path}" for path in kept]
        return found


def _tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def _kept_files(pid: int) -> list[str]:
    """Return the slots of vectors and the deleted files that a process has open."""
    kept: list[str] = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                kept.append(os.readlink(entry))
    slots = [path for path in kept if path.startswith("/memfd:elasticml")]
    files = [p for p in kept if p.endswith(" (deleted)") and not p.startswith(_IN_MEMORY)]
    return files + slots[_SLOTS_KEPT:]


def _is_alive(pid: int) -> bool:
    """Return whether a process runs: it has not ended, nor does it wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
