"""The sections of a job file: stop, faults, collective, members, evaluate, checkpoint, cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_serializer, model_validator

from elasticml.errors import ConfigError, shown
from elasticml.ids import parse_size
from elasticml.specification.algorithms import AnyAlgorithm, ends_itself
from elasticml.specification.settings_model import (
    IS_PATH,
    Count,
    Index,
    LocalPath,
    SettingsModel,
    Threads,
    Workers,
    read_settings,
)

#: Least memory of a worker process; none can work with less.
CONTAINER_BYTES_MIN = 2**26


#: Rounds after which a job without a stop rule ends.
DEFAULT_ROUNDS = 100
#: The same for algorithms that end when their model is good enough.
ROUNDS_MAX = 1000
Holders = Literal["auto", 1, 2]
Placement = Literal["auto", "contiguous", "random"]
FaultPhase = Literal["load", "broadcast", "compute", "reduce", "correct", "move", "apply"]


class Stop(SettingsModel):
    """When a job ends: as soon as one of the rules applies, or its model is good enough.

    Examples
    --------
    >>> em.Stop(gap=1e-6, seconds=60)
    Stop(seconds=60.0, gap=1e-06)
    """

    #: Rounds; by default 1000 if neither seconds nor epochs are given.
    rounds: int | None = Field(default=None, ge=1)
    #: Seconds.
    seconds: float | None = Field(default=None, gt=0)
    #: Certified duality gap to reach.
    gap: float | None = Field(default=None, gt=0)
    #: Objective to reach.
    objective: float | None = None
    #: Passes over all examples, for algorithms whose rounds use only some of them.
    epochs: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _end(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        has_end = any(values.get(key) is not None for key in ("rounds", "seconds", "epochs"))
        return values if has_end else {**values, "rounds": ROUNDS_MAX}

    @property
    def has_target(self) -> bool:
        """Whether the user says how good the model is to be."""
        return self.gap is not None or self.objective is not None


def default_stop(algorithm: AnyAlgorithm) -> Stop:
    """Return the stop rule of a job that gives none."""
    return Stop(rounds=ROUNDS_MAX if ends_itself(algorithm) else DEFAULT_ROUNDS)


class Fault(SettingsModel):
    """One planned fault: members that are lost, or return, at the start of a round."""

    round: int = Field(ge=0, description="the round in which it happens")
    #: Members to lose: how many, or which slots.
    lose: int | list[int] | None = None
    #: How many lost members return.
    returned: int | None = Field(default=None, alias="return", ge=1)
    #: What happens to them: a notice, SIGTERM or SIGKILL.
    how: Literal["notice", "terminate", "kill"] = "kill"
    #: Part of the round in which it happens.
    phase: FaultPhase = "broadcast"
    exchange: int = Field(default=0, ge=0, description="which exchange of the round, from 0 on")
    grace: float = Field(default=5.0, ge=0, description="seconds between the notice and the end")

    def check(self) -> None:
        """Check constraints between fields."""
        if (self.lose is None) == (self.returned is None):
            raise ValueError("lose: give exactly one of lose (members or slots) and return")
        slots = self.lose if isinstance(self.lose, list) else []
        if isinstance(self.lose, int) and self.lose < 1:
            raise ValueError(f"lose: got {self.lose}, wanted at least 1")
        if self.lose == [] or len(set(slots)) < len(slots) or min(slots, default=0) < 0:
            raise ValueError(f"lose: got {slots}, wanted different slots, counted from 0")

    @classmethod
    def of_record(cls, section: Mapping[str, Any]) -> Self:
        """Read an entry of a record; a ValueError says that it is damaged."""
        try:
            return read_settings(cls, section, "faults")
        except ConfigError as error:
            raise ValueError(error.message) from None

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots to lose; empty: the ``count`` members with the highest ids."""
        return tuple(self.lose) if isinstance(self.lose, list) else ()

    @property
    def count(self) -> int:
        """How many members are lost, or return."""
        return len(self.lose) if isinstance(self.lose, list) else self.lose or self.returned or 0

    @property
    def kind(self) -> Literal["lose", "return"]:
        """Whether members are lost or return."""
        return "lose" if self.returned is None else "return"

    @model_serializer
    def _entry(self) -> dict[str, Any]:
        """Return the fault as an entry of the job record."""
        if self.returned is not None:
            return {"round": self.round, "return": self.returned}
        entry: dict[str, Any] = {
            "round": self.round,
            "phase": self.phase,
            "lose": self.lose,
            "how": self.how,
            "grace": self.grace,
        }
        return entry | ({"exchange": self.exchange} if self.exchange else {})


def read_faults(raw: object, path: str = "faults") -> tuple[Fault, ...]:
    """Validate a list of faults.

    Returns
    -------
    tuple of Fault
        Sorted by round; faults of one round keep their order.

    Raises
    ------
    ConfigError
        When it is not a list, or an entry is invalid.
    """
    if raw is None:
        return ()
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ConfigError(
            f"{path}: got {shown(raw)}, wanted a list such as [{{round: 100, lose: 7}}]"
        )
    entries: list[Any] = list(raw)
    faults = [
        read_settings(Fault, entry, f"{path}[{index}]") for index, entry in enumerate(entries)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.round))


def check_faults(faults: Sequence[Fault], workers: int) -> None:
    """Check that each fault is possible: members to lose are present, members to return are lost.

    Parameters
    ----------
    faults : sequence of Fault, by round
    workers : int
        Members at round 0, in slots 0 to ``workers - 1``.

    Raises
    ------
    ConfigError
        When a fault removes more members than there are, names an empty slot, or returns more
        members than were lost.
    """
    here = set(range(workers))
    gone: set[int] = set()
    unnamed = 0
    for fault in faults:
        where = f"faults: round {fault.round}"
        n_here = workers - len(gone) - unnamed
        if fault.returned is not None:
            n_gone = len(gone) + unnamed
            if fault.returned > n_gone:
                raise ConfigError(
                    f"{where}: return: {fault.returned}, but {n_gone} of {workers} members have "
                    f"gone by then; lose them in an earlier round"
                )
            # The driver chooses which slots return first, so the named ones are unknown from here.
            unnamed += len(gone) - fault.returned
            gone = set()
        elif isinstance(fault.lose, list):
            wrong = [slot for slot in fault.lose if slot not in here or slot in gone]
            if wrong or len(fault.lose) > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but slot {(wrong or fault.lose)[0]} holds no "
                    f"member then; slots are 0 to {workers - 1}"
                )
            gone |= set(fault.lose)
        elif fault.lose is not None:
            if fault.lose > n_here:
                raise ConfigError(
                    f"{where}: lose: {fault.lose}, but {n_here} of {workers} members are there "
                    f"then; lose fewer or set cluster.workers"
                )
            unnamed += fault.lose


class Collective(SettingsModel):
    """How models are broadcast and partials are reduced.

    Examples
    --------
    >>> em.settings.Collective(topology="tree", fan_out=2)
    Collective(topology='tree')
    """

    #: "auto": a star for up to 8 members on one host, else a tree.
    topology: Literal["auto", "star", "tree"] = "auto"
    #: Children of a node of the tree.
    fan_out: int = Field(default=2, ge=1)
    #: How frames travel; "auto": shared memory within a host, else a socket.
    transport: Literal["auto", "stream", "comm", "shm"] = "auto"
    #: Minimum seconds of an exchange before a silent member is considered stuck.
    deadline: float = Field(default=10.0, gt=0)
    #: A member whose computation takes this many times the median is dropped from the round.
    stuck_factor: float = Field(default=5.0, gt=1)


class Members(SettingsModel):
    """Numbers of members: ``start`` before round 0, ``min`` to continue, ``max`` to ask for.

    ``max`` limits the requests of policies; members that join unasked are used all the same.

    Examples
    --------
    >>> em.settings.Members(start=4, max=8)
    Members(start=4, max=8)
    """

    #: Members before round 0; by default those of the cluster.
    start: Workers | None = None
    #: With fewer members the job waits.
    min: Workers = 1
    #: Most members that policies ask for, and that an adaptive cluster gives the job.
    max: Workers | None = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.start is not None and self.min > self.start:
            raise ValueError(f"min: got {self.min}, wanted at most members.start, {self.start}")
        least = max(self.min, self.start or 1)
        if self.max is not None and self.max < least:
            raise ValueError(f"max: got {self.max}, wanted at least {least}, as start and min say")


class _Scores(SettingsModel):
    """Scores by named metrics."""

    #: Names as in scikit-learn's ``scoring``, or ``module:function``; of several validation metrics
    #: the first one decides.
    metric: str | tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return (self.metric,) if isinstance(self.metric, str) else self.metric


class Evaluate(_Scores):
    """The rounds whose models are kept, and scored on the test rows.

    Examples
    --------
    >>> em.settings.Evaluate(every=10)
    Evaluate(every=10)
    """

    #: Number of rounds between two kept models.
    every: int | None = Field(default=None, ge=1)
    #: Additional rounds, by number.
    rounds: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_serializer
    def _section(self) -> dict[str, Any]:
        """Return the section of the job record."""
        metrics = {"metric": list(self.metrics)} if self.metrics else {}
        return {"every": self.every, "rounds": list(self.rounds), **metrics}


class Validate(_Scores):
    """Rows that members score while the job trains, and the job's end by their score.

    Examples
    --------
    >>> job = em.Job(em.BatchGradient(), em.from_arrays(X, y), validate=em.Validate(share=0.2))
    >>> job.run(client).summary["validation"]["rows"]
    51
    """

    #: Share of the training rows that is held out: they are not trained on, and do not count for a
    #: table's categories, replacements of missing values and scales. Classes are those of all rows.
    share: float | None = Field(default=None, gt=0, lt=1)
    #: The validation data: a path, or the options that differ from the training data.
    data: Any = None
    #: Rounds between two scores.
    every: Count = 1
    #: The job ends after this many scores without improvement; 0: never.
    patience: Index = 10
    #: An improvement is greater than this.
    min_delta: float = Field(default=0.0, ge=0)

    def check(self) -> None:
        """Check constraints between fields."""
        if (self.share is None) == (self.data is None):
            raise ValueError("share: give exactly one of share and data")


class Checkpoint(SettingsModel):
    """Where and how often checkpoints are written, from which another process can resume.

    Examples
    --------
    >>> em.settings.Checkpoint(every=10, path="hdfs://namenode:8020/user/me/run").every
    10.0
    """

    #: A directory, or a URL such as hdfs:///user/me/run; by default in the run directory.
    path: LocalPath = None
    #: Seconds between checkpoints; 0: after every round.
    every: float = Field(default=5.0, ge=0)


def _checked_memory(memory: Any, *, others: tuple[Any, ...] = (None,)) -> Any:
    if memory not in others and parse_size(memory) < CONTAINER_BYTES_MIN:
        raise ValueError("wanted at least 64 MiB; give a size such as 2 GiB")
    return memory


_Memory = Annotated[str | int | None, AfterValidator(_checked_memory)]
_LocalMemory = Annotated[str | int, AfterValidator(partial(_checked_memory, others=("auto",)))]


class _Workers(SettingsModel):
    """A cluster that is started for the job."""

    kind: str
    #: Workers to start: processes, or containers.
    workers: Workers = 4
    #: The most workers that policies may request; by default ``workers``.
    workers_max: Workers | None = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.workers_max is not None and self.workers_max < self.workers:
            raise ValueError(
                f"workers_max: got {self.workers_max}, wanted at least workers, {self.workers}"
            )


class LocalWorkers(_Workers):
    """Worker processes on this machine, started and stopped with the job."""

    kind: Literal["local"] = "local"
    #: Compute threads of a worker.
    threads: Threads = 1
    #: Memory of a worker, such as 2 GiB; "auto" divides the machine's memory.
    memory: _LocalMemory = "auto"
    #: Factor by which a worker's computations are slowed down, by its index from 0; for studies.
    slowdown: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=1)]] = Field(
        default_factory=dict
    )

    def check(self) -> None:
        """Check constraints between fields."""
        super().check()
        most = self.workers_max or self.workers
        if max(self.slowdown, default=0) >= most:
            raise ValueError(
                f"slowdown: got worker {max(self.slowdown)}, wanted numbers below {most}: the "
                "first worker is 0"
            )


class TLSFiles(SettingsModel):
    """PEM files for a scheduler that encrypts its connections."""

    ca: Annotated[str, IS_PATH] = Field(
        description="certificate of the authority that signed the scheduler's"
    )
    cert: Annotated[str, IS_PATH] = Field(description="this client's certificate")
    #: The private key of ``cert``; None: it is in the same file.
    key: LocalPath = None


class Address(SettingsModel):
    """A Dask cluster that is already running: its address, or the file that names it."""

    kind: Literal["address"] = "address"
    #: The scheduler's address, such as tcp://host:8786.
    address: str | None = None
    #: The file that ``dask scheduler --scheduler-file`` has written.
    scheduler_file: LocalPath = None
    #: Files for a ``tls://`` address; None: from Dask's configuration.
    tls: TLSFiles | None = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.address is None and self.scheduler_file is None:
            raise ValueError("address: is missing, wanted tcp://host:port, or scheduler_file")
        if self.address is not None and self.scheduler_file is not None:
            raise ValueError("scheduler_file: address is given, too; leave one of them out")


class ClusterFactory(_Workers):
    """A Dask cluster that a function starts for the job, and that is closed after it."""

    kind: Literal["factory"] = "factory"
    call: str = Field(
        description="a function that returns a cluster, such as dask_jobqueue:SLURMCluster"
    )
    #: Its keyword arguments.
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("call")
    @classmethod
    def _check_call(cls, call: str) -> str:
        module, _, name = call.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
            raise ValueError("wanted module:function, such as dask_jobqueue:SLURMCluster")
        return call


class YarnScheduler(SettingsModel):
    """The container with the scheduler and the driver; None: from dask-yarn's configuration."""

    #: Memory, such as 2 GiB.
    memory: _Memory = None
    #: Virtual cores.
    vcores: Count | None = None


class YarnContainers(_Workers):
    """Containers of a Hadoop cluster, requested from and released to YARN.

    None means the value of dask-yarn's configuration (files and environment variables).
    """

    kind: Literal["yarn"] = "yarn"
    #: Start with this many if no more are granted for a while; by default ``workers``.
    workers_min: Workers | None = None
    #: Queue of the application.
    queue: str | None = None
    #: Memory of a worker's container, such as 4 GiB.
    memory: _Memory = None
    #: Virtual cores of a worker's container.
    vcores: Count | None = None
    #: Compute threads of a member; by default its vcores.
    threads: Threads | None = None
    #: ``venv://``, ``conda://``, ``python://`` with a path on every node, or an archive.
    environment: str | None = None
    #: Pack the submitting environment and upload it, unless it was uploaded before.
    pack: bool = False
    #: Path patterns to exclude from the archive, such as ``*/site-packages/torch/*``.
    pack_exclude: tuple[str, ...] = ()
    #: Resources of the scheduler's container.
    scheduler: YarnScheduler = Field(default_factory=YarnScheduler)
    #: The application's name; by default the job's.
    name: str | None = None
    #: Tags of the application.
    tags: tuple[str, ...] | None = None
    #: Node label of the containers.
    node_label: str | None = None
    #: Nodes on which containers may run.
    nodes: tuple[str, ...] | None = None
    #: Racks on which containers may run.
    racks: tuple[str, ...] | None = None
    #: User as whom the application runs.
    user: str | None = None
    #: Encryption of the connections between the processes.
    security: Literal["tls", "none"] = "tls"
    #: A skein specification with a service ``dask.worker``; the keys above override it.
    specification: LocalPath = None
    #: Kerberos keytab; with ``principal``.
    keytab: LocalPath = None
    #: Kerberos principal; with ``keytab``.
    principal: str | None = None
    #: Destination of the run directory: a URL, or a path shared by all nodes and this machine.
    result: LocalPath = None

    def check(self) -> None:
        """Check constraints between fields."""
        super().check()
        if self.workers_min is not None and self.workers_min > self.workers:
            raise ValueError(
                f"workers_min: got {self.workers_min}, wanted at most workers, {self.workers}"
            )
        if (self.keytab is None) != (self.principal is None):
            present, missing = sorted(
                ("keytab", "principal"), key=lambda k: getattr(self, k) is None
            )
            raise ValueError(f"{missing}: missing, and {present} is given; Kerberos needs both")
        if self.specification is not None and (self.pack or self.environment is not None):
            setting = "pack" if self.pack else "environment"
            raise ValueError(
                f"{setting}: the specification already sets the environment of its containers; "
                "leave one of them out"
            )
        if self.pack and self.environment is not None:
            raise ValueError(
                f"pack: it packs the submitting environment, but environment names "
                f"{self.environment}; leave one of them out"
            )


Cluster = LocalWorkers | Address | ClusterFactory | YarnContainers

#: The supported kinds of cluster.
CLUSTERS: dict[str, type[Cluster]] = {
    "local": LocalWorkers,
    "address": Address,
    "factory": ClusterFactory,
    "yarn": YarnContainers,
}
