"""Jobs on real worker processes under faults: results are right, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import psutil
from distributed import Client

from elasticml.chaos.disturber import Disturber, FaultOptions, Processes, is_over_in_time
from elasticml.chaos.namespaces import NAMESPACES, check_root, inside, namespaces, prefix
from elasticml.chaos.network_faults import network_faults
from elasticml.chaos.problems import source_of, true_objective
from elasticml.chaos.rules import (
    FIXED_RATE,
    miscounted,
    missampled,
    undisturbed_objective,
    untrue,
)
from elasticml.chaos.stock_workers import StockWorkers
from elasticml.chaos.switch import join
from elasticml.chaos.temporary_faults import TemporaryFault, full_disk, memory_limit
from elasticml.chaos.yarn_workers import YarnWorkers, yarn_environment
from elasticml.clusters.local.cluster import LocalCluster
from elasticml.clusters.minihadoop.mini_yarn import MiniYarn
from elasticml.clusters.polling import until
from elasticml.errors import ElasticmlError, JobFailedError
from elasticml.job import Job, resume
from elasticml.jobs.handle import Handle
from elasticml.jobs.result import Result
from elasticml.specification.algorithms import (
    BatchGradient,
    CoCoA,
    LocalSGD,
    PrimalCoCoA,
    has_torch,
)
from elasticml.specification.sections import (
    Checkpoint,
    Collective,
    Evaluate,
    Members,
    Stop,
)
from elasticml.story.history import HistoryRow
from elasticml.story.records import CheckpointWritten, ContainerEnded, records_of
from elasticml.story.summary import summary_from_json

Kind = Literal["local", "stock", "hosts", "yarn"]
MEMBERS: Final = 4
DATA: Final = {"rows": 4000, "columns": 20}
#: Seconds of a job under drawn faults, of the faults, and until a job counts as hanging.
JOB_S, FAULTS_S, HANGS_S = 24.0, 10.0, 90.0
#: Seconds of a job of a soak.
SOAK_JOB_S: Final = 120.0
ALGORITHMS: Final = {
    "batch_gradient": BatchGradient,
    "cocoa": CoCoA,
    "local_sgd": LocalSGD,
    "primal_cocoa": PrimalCoCoA,
}
#: What checks the results computes the objective of the columns as they are.
_LINEAR: Final = {"l2": 1e-2, "scale": "none"}
SECTIONS: Final[tuple[tuple[dict[str, Any], tuple[Any, ...]], ...]] = (
    ({"name": "cocoa", "loss": "hinge", **_LINEAR}, ("reload", "freeze", "stall")),
    (
        {"name": "batch_gradient", "loss": "logistic", "optimizer": "gd", **_LINEAR},
        ("taylor", "reload", "stall"),
    ),
    (
        {"name": "primal_cocoa", "loss": "squared", "l1": 0.02, "l2": 0.05, "gather": False},
        ("reload", "freeze"),
    ),
)
_LAYER: Final = {"in_features": DATA["columns"], "out_features": 2}
#: With PyTorch, on processes. With the first no weight changes, so that losses count examples.
NETWORKS: Final[tuple[tuple[dict[str, Any], tuple[Any, ...]], ...]] = tuple(
    (
        {
            "name": "local_sgd",
            "model": "torch.nn:Linear",
            "model_options": _LAYER,
            "normalize": "none",
            "batch": 16,
            "local_steps": 4,
            "learning_rate": rate,
        },
        ("reload", "ignore", "stall"),
    )
    for rate in (FIXED_RATE, 0.02)
)
#: Part of the loss of a zero model that a trained network may have.
_TRAINED_MAX: Final = 0.25
#: Error of a mean loss that was computed in 32 bits.
_LOSS_ERROR: Final = 1e-5
KINDS: Final = ("kill", "kill", "kill", "terminate", "notice", "stop", "deaf", "half", "all")
#: On YARN containers start slowly, and a job has time for few faults: one in three is pre-emption.
_YARN_KINDS: Final = ("kill", "terminate", "notice", "stop", "deaf", "all", *("preemption",) * 3)


@dataclass(kw_only=True)
class ProcessTotals:
    """All jobs on processes."""

    seed: int
    jobs: int = 0
    rounds: int = 0
    #: Faults by kind; a fault may take several workers.
    faults: Counter[str] = field(default_factory=Counter)
    killed: int = 0
    #: Containers that YARN took, or that were released in place of those that it had marked.
    preempted: int = 0
    rows_checked: int = 0
    seconds: float = 0.0
    #: Each as ``what: job: violation``.
    wrong: list[str] = field(default_factory=list)


def run_on_processes(
    seed: int,
    jobs: int | None,
    minutes: float | None,
    kill_every_s: float | None,
    watch: Callable[[str], None] = lambda line: None,
    kinds: Sequence[Kind] = ("local", "stock"),
) -> ProcessTotals:
    """Run jobs under faults, on clusters of several kinds in turn.

    Parameters
    ----------
    jobs : int or None
        Number of jobs; None: until ``minutes`` are over.
    kill_every_s : float or None
        A soak: long jobs, with a SIGKILL after each such time. None: faults of all kinds, and in
        every second pair of jobs the driver is killed.
    kinds : sequence of {"local", "stock", "hosts", "yarn"}
        Workers of :class:`LocalCluster`, stock workers of this machine, stock workers on hosts,
        containers of one mini YARN.

    Raises
    ------
    ConfigError
        When this process may not make hosts.
    """
    if "hosts" in kinds:
        check_root()
    totals, begin_s = ProcessTotals(seed=seed), time.monotonic()
    until_s = float("inf") if minutes is None else begin_s + 60.0 * minutes
    numbers: Iterator[int] = iter(range(10**9 if jobs is None else jobs))
    with contextlib.ExitStack() as exits:
        yarn = exits.enter_context(yarn_environment()) if "yarn" in kinds else None
        try:
            for number in numbers:
                if time.monotonic() >= until_s:
                    break
                kind = kinds[number % len(kinds)]
                with Leftovers(lasting=_daemons(yarn)) as left:
                    run = _Run(kind, seed + number, kill_every_s, yarn)
                    wrong = run.play()
                wrong += left.found
                totals.jobs += 1
                totals.rounds += run.rounds
                totals.rows_checked += run.rows_checked
                totals.faults.update(run.faults)
                totals.killed += run.killed
                totals.preempted += run.preempted
                totals.wrong += [f"{run.name}: {text}" for text in wrong]
                taken = f", {run.preempted} containers pre-empted" if yarn is not None else ""
                watch(f"{run.name}: {run.rounds} rounds, {dict(run.faults)}{taken}")
                for text in wrong:
                    watch(f"VIOLATION {run.name}: {text}")
        except KeyboardInterrupt:
            watch("interrupted: the job that was running does not count")
    totals.seconds = time.monotonic() - begin_s
    return totals


class _Run:
    """One job."""

    def __init__(
        self, kind: Kind, seed: int, kill_every_s: float | None, yarn: MiniYarn | None
    ) -> None:
        self.kind, self.seed, self.kill_every_s, self.yarn = kind, seed, kill_every_s, yarn
        rng = random.Random(seed)
        # Primal CoCoA is done before a soak's job is over.
        sections = SECTIONS if kill_every_s is None else SECTIONS[:2]
        if kill_every_s is None and kind in ("local", "stock") and has_torch():
            sections += NETWORKS
        section, rules = sections[seed // 2 % len(sections)]
        self.is_network = section["name"] == "local_sgd"
        more = {} if self.is_network else {"intercept": False, "tolerance": 0.0}
        self.section = {**section, **more}
        self.absent = rng.choice(rules)
        self.data = {**DATA, "seed": seed % 3}
        self.kills_driver = kill_every_s is None and seed % 4 >= 2
        self.seconds = JOB_S if kill_every_s is None else SOAK_JOB_S
        # A new container takes seconds, and so does the import of PyTorch.
        self.slowness = 1.0 if yarn is None else 3.0
        self.slowness = 2.0 if self.is_network else self.slowness
        self.seconds *= self.slowness
        self.name = f"seed {seed}, {kind}, {section['name']}, absent: {self.absent}"
        self.name += ", driver killed" if self.kills_driver else ""
        self.faults: Counter[str] = Counter()
        self.killed = self.preempted = self.rounds = self.rows_checked = 0
        self.has_lost_driver = False

    def play(self) -> list[str]:
        """Run the job to its end; return what is wrong."""
        source = source_of(self.section, self.data)
        settings = {k: v for k, v in self.section.items() if k != "name"}
        with tempfile.TemporaryDirectory() as folder:
            job = Job(
                ALGORITHMS[self.section["name"]](**settings),
                source,
                name=f"chaos-{self.seed}",
                absent=self.absent,
                stop=Stop(seconds=self.seconds),
                members=Members(min=1),
                # Hosts in namespaces share the machine's memory, which no fault would hit.
                collective=Collective(
                    deadline=3.0, transport="stream" if self.kind == "hosts" else "auto"
                ),
                checkpoint=Checkpoint(path=f"{folder}/checkpoint", every=0.5),
                evaluate=Evaluate(every=50),
                chunk_size=16384,
                seed=self.seed,
            )
            try:
                if self.kills_driver:
                    self._until_driver_is_killed(job)
                try:
                    return self._attempt(job, folder, source, is_calm=False)
                except JobFailedError as error:
                    if self.faults["memory"] and error.message.startswith("member "):
                        self.faults["out of memory"] += 1  # it ends the job
                    elif self.has_lost_driver:
                        self.faults["driver's container"] += 1
                    else:
                        raise
                    # The job goes on from its checkpoint.
                    return self._attempt(job, folder, source, is_calm=True)
            except ElasticmlError as error:
                return [f"{type(error).__name__}: {error.message}"]

    def _attempt(self, job: Job, folder: str, source: Any, is_calm: bool) -> list[str]:
        """Start the job, or resume it if it has a checkpoint; return what is wrong."""
        place = f"{folder}/checkpoint"
        where = Path(tempfile.mkdtemp(dir=folder))
        with _world(self.kind, where, self.seed, self.yarn) as world:
            if os.path.exists(place):
                handle = resume(world.client, place, data=source)
            else:
                handle = job.start(world.client)
            try:
                return self._end_of(world, handle, is_calm)
            except JobFailedError:
                # A machine's end and pre-emption may hit the scheduler or the application master.
                self.has_lost_driver = self.yarn is not None and until(
                    lambda: _has_ended(world.scheduler_pid), wait_s=2.0, every_s=0.05
                )
                raise

    def _until_driver_is_killed(self, job: Job) -> None:
        """Start the job, and kill its driver after the second checkpoint."""
        with (
            tempfile.TemporaryDirectory() as folder,
            _world(self.kind, Path(folder), self.seed, self.yarn) as world,
        ):
            written = records_of(CheckpointWritten, job.start(world.client))
            if next(written, None) is None or next(written, None) is None:
                raise JobFailedError("the job ended before its second checkpoint")
            os.kill(world.scheduler_pid, signal.SIGKILL)
            self.faults["driver"] += 1

    def _end_of(self, world: _World, handle: Handle, is_calm: bool) -> list[str]:
        temporary: Mapping[str, TemporaryFault] = {}
        if is_calm:
            chances = FaultOptions(seconds=0.0)
        elif self.kill_every_s is None:
            chances = FaultOptions(
                kinds=KINDS if self.yarn is None else _YARN_KINDS,
                pause_s=(0.1, 1.0),
                fault=1.0,
                spared=0,
                takes_half=True,
                seconds=self.slowness * FAULTS_S,
            )
            temporary = world.temporary
        else:
            pause_s = (self.kill_every_s, self.kill_every_s)
            chances = FaultOptions(pause_s=pause_s, fault=1.0, replace=1.0)
        disturber = Disturber(world.cluster, MEMBERS, self.seed, chances, world.client, temporary)
        try:
            is_over = is_over_in_time(handle, disturber, self.seconds + HANGS_S)
        finally:
            self.faults.update(disturber.counts)
            self.killed += disturber.killed
        if not is_over:
            return [f"not over after {self.seconds + HANGS_S:g} s: {handle.status()}"]
        story = list(handle)
        ended = records_of(ContainerEnded, story)
        self.preempted += sum(one.reason in ("preempted", "released") for one in ended)
        return self._judged(handle.result(), story)

    def _judged(self, result: Result, story: Sequence[Mapping[str, Any]]) -> list[str]:
        """Compare the result with all rows and with the undisturbed job's."""
        n_rows = self.data["rows"]
        if self.section["name"] == "primal_cocoa":
            n_rows = self.data["columns"] + 1
        wrong = list(miscounted(story, n_rows))
        if self.is_network:
            return wrong + self._judged_network(result)
        best = undisturbed_objective(self.section, self.data)
        for values in result.history:
            row, true = HistoryRow(values), values.get("objective_full")
            self.rounds = max(self.rounds, row.round)
            if true is not None and row.objective is not None:
                self.rows_checked += 1
                wrong += untrue(row, true, best)
        true = true_objective(self.section, self.data, result.arrays)
        at_zero = {name: array * 0.0 for name, array in result.arrays.items()}
        zero = true_objective(self.section, self.data, at_zero)
        if true - best > 0.1 * (zero - best):
            wrong.append(f"objective {true}, of the undisturbed job {best}, of zero {zero}")
        return wrong

    def _judged_network(self, result: Result) -> list[str]:
        """Check what was visited, and compare the final model's losses with numpy's."""
        true = true_objective(self.section, self.data, result.arrays)
        is_fixed = self.section["learning_rate"] == FIXED_RATE
        n_rows = self.data["rows"]
        wrong = list(missampled(result.history, n_rows, true if is_fixed else None))
        last = HistoryRow(result.history[-1])
        self.rounds = max(self.rounds, last.round)
        self.rows_checked += len(result.history)
        for what, told in (
            ("the last row", last.columns.get("objective_full")),
            ("the summary", (summary_from_json(result.summary).train or {}).get("logloss")),
        ):
            if told is None or abs(told - true) > _LOSS_ERROR * true:
                wrong.append(f"{what} has a loss of {told}, the model {true}")
        if not is_fixed and true > _TRAINED_MAX * math.log(2.0):
            wrong.append(f"the loss is {true} after {last.round} rounds, of zero {math.log(2)}")
        return wrong


@dataclass(frozen=True, kw_only=True)
class _World:
    """A cluster, and what can happen to it besides the end of workers."""

    cluster: Processes
    client: Client
    scheduler_pid: int
    temporary: Mapping[str, TemporaryFault]


@contextlib.contextmanager
def _world(kind: Kind, folder: Path, seed: int, yarn: MiniYarn | None) -> Generator[_World]:
    """Start a cluster."""
    if yarn is not None:
        with YarnWorkers(yarn, MEMBERS) as containers:
            yield _World(
                cluster=containers,
                client=containers.client,
                scheduler_pid=containers.scheduler_pid,
                temporary=containers.temporary,
            )
    elif kind == "local":
        with (
            LocalCluster(MEMBERS, workers_max=MEMBERS + 1, log_dir=folder) as local,
            Client(local, set_as_default=False) as client,
        ):
            pid = local.scheduler_pid
            faults = {"full_disk": full_disk(pid), "memory": memory_limit}
            yield _World(cluster=local, client=client, scheduler_pid=pid, temporary=faults)
    elif kind == "stock":
        with StockWorkers(folder, MEMBERS) as stock:
            pid = stock.scheduler_pid
            faults = {"full_disk": full_disk(pid), "memory": memory_limit}
            faults["clock"] = stock.jump_clock
            yield _World(cluster=stock, client=stock.client, scheduler_pid=pid, temporary=faults)
    else:
        # The client's threads begin on a host of their own, the last one.
        with (
            namespaces(MEMBERS + 2) as names,
            join(names, seed) as switch,
            inside(names[-1]),
            StockWorkers(folder, MEMBERS, names[:-1]) as stock,
        ):
            pid = stock.scheduler_pid
            yield _World(
                cluster=stock,
                client=stock.client,
                scheduler_pid=pid,
                temporary=network_faults(switch),
            )


class Leftovers:
    """What a block leaves behind: processes, descriptors, shared memory, files, namespaces.

    Parameters
    ----------
    patience_s : float
        Seconds for which processes of a closed cluster may still end.
    lasting : callable
        Returns the ids of processes that outlive the block, although they may begin in it.
    """

    def __init__(
        self, patience_s: float = 20.0, lasting: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._patience_s, self._lasting = patience_s, lasting

    def __enter__(self) -> Self:
        self.found: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="elasticml-chaos-"))
        self._before = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        self._shared = set(os.listdir("/dev/shm"))
        self._children = {p.pid for p in psutil.Process().children(recursive=True)}
        self._descriptors = _descriptors()
        return self

    def __exit__(self, *_: object) -> None:
        until(lambda: not self._left(), wait_s=self._patience_s, every_s=0.1)
        self.found = found = self._left()
        value, tempfile.tempdir = self._before
        if value is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = value
        if not found:
            self._folder.rmdir()

    def _left(self) -> list[str]:
        gc.collect()
        known = self._children.union(self._lasting())
        children = [p for p in psutil.Process().children(recursive=True) if p.pid not in known]
        found = [f"process {p.pid} is left" for p in children if p.is_running()]
        found += [f"file {path} is left" for path in sorted(self._folder.iterdir())]
        new = set(os.listdir("/dev/shm")) - self._shared
        found += [f"/dev/shm/{name} is left" for name in sorted(_unmapped(new))]
        hosts = [path.name for path in NAMESPACES.glob(f"{prefix()}*")]
        found += [f"network namespace {name} is left" for name in sorted(hosts)]
        more = _descriptors() - self._descriptors
        return found + [f"{n} descriptors of {what} are left" for what, n in sorted(more.items())]


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _daemons(yarn: MiniYarn | None) -> Callable[[], Collection[int]]:
    """Return a function that lists the daemons of a mini YARN, which faults may restart."""
    return lambda: () if yarn is None else yarn.pids().values()


def _unmapped(names: set[str]) -> set[str]:
    """Return the names in /dev/shm that no process maps; others are of living programs."""
    left = set(names)
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with contextlib.suppress(OSError):
            text = maps.read_text()
            left = {name for name in left if f"/dev/shm/{name}" not in text}
    return left


def _descriptors() -> Counter[str]:
    """Count this process's descriptors of files and shared memory, by what they refer to."""
    counts: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            counts[target.partition(":")[0] if ":[" in target else target] += 1
    return +Counter({k: n for k, n in counts.items() if not k.startswith("/proc/")})
