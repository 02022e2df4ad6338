"""The sections of a job: stop, faults, collective, members, evaluation, cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from elasticml.jobs.schema import Settings
from elasticml.terms import parse_size

#: No process does anything useful in less.
CONTAINER_BYTES_MIN = 2**26
Count = Annotated[int, Field(ge=1)]


class Stop(Settings):
    """When a job ends; whichever comes first."""

    rounds: int | None = Field(default=None, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    gap: float | None = Field(default=None, gt=0)
    objective: float | None = None
    #: Passes over all examples, of algorithms whose rounds take some of them.
    epochs: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Check what several fields must agree on."""
        if self.rounds is None and self.seconds is None and self.epochs is None:
            raise ValueError("rounds is missing: give rounds or seconds, so that the job ends")


class Fault(Settings):
    """One planned fault: members that go, or come back, at the beginning of a round."""

    round: int = Field(ge=0, description="the round in which it happens")
    lose: int | list[int] | None = None
    returned: int | None = Field(default=None, alias="return", ge=1)
    how: Literal["notice", "terminate", "kill"] = "kill"
    phase: Literal["load", "broadcast", "compute", "reduce", "correct", "move", "apply"] = (
        "broadcast"
    )
    exchange: int = Field(default=0, ge=0, description="which exchange of the round, from 0 on")
    grace: float = Field(default=5.0, ge=0, description="seconds between the notice and the end")

    def check(self) -> None:
        """Check what several fields must agree on."""
        if (self.lose is None) == (self.returned is None):
            raise ValueError("lose: give exactly one of lose (members or slots) and return")
        slots = self.lose if isinstance(self.lose, list) else []
        if isinstance(self.lose, int) and self.lose < 1:
            raise ValueError(f"lose: got {self.lose}, wanted at least 1")
        if self.lose == [] or len(set(slots)) < len(slots) or min(slots, default=0) < 0:
            raise ValueError(f"lose: got {slots}, wanted different slots, counted from 0")

    def entry(self) -> dict[str, Any]:
        """Write the fault as the job record has it."""
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


class Collective(Settings):
    """How models go down and partials come up."""

    topology: Literal["auto", "star", "tree"] = "auto"
    fan_out: int = Field(default=2, ge=1)
    transport: Literal["auto", "stream", "comm", "shm"] = "auto"
    #: Seconds that an exchange may take at least before a silent member counts as stopped.
    deadline: float = Field(default=10.0, gt=0)
    #: A member that computes so many times longer than the median is given up for the round.
    stuck_factor: float = Field(default=5.0, gt=1)
    #: Bytes per second of each process's uplink, and seconds that a frame is under way, as if the
    #: network were slower than it is: for studies.
    bandwidth: float | None = Field(default=None, gt=0)
    latency_s: float | None = Field(default=None, ge=0)

    @field_validator("bandwidth", mode="before")
    @classmethod
    def _read_bandwidth(cls, bandwidth: object) -> object:
        return parse_size(bandwidth) if isinstance(bandwidth, str) else bandwidth


class Members(Settings):
    """How many members a job waits for before round 0, how few it goes on with, how many it wants.

    ``max`` is what policies may ask for; members that come unasked are taken all the same.
    """

    start: int | None = Field(default=None, ge=1)
    min: int = Field(default=1, ge=1)
    max: int | None = Field(default=None, ge=1)

    def check(self) -> None:
        """Check what several fields must agree on."""
        if self.start is not None and self.min > self.start:
            raise ValueError(f"min: got {self.min}, wanted at most members.start, {self.start}")
        least = max(self.min, self.start or 1)
        if self.max is not None and self.max < least:
            raise ValueError(f"max: got {self.max}, wanted at least {least}, as start and min say")


class Evaluate(Settings):
    """Which rounds' models are kept, to be evaluated over all data when the job has ended."""

    every: int | None = Field(default=None, ge=1)
    #: Further rounds, by number.
    rounds: tuple[Annotated[int, Field(ge=0)], ...] = ()


class Checkpoint(Settings):
    """Where a job is written down while it runs, and how often, so that another may go on."""

    #: A directory, or a URL such as hdfs:///user/me/run; by default in the run's directory.
    path: str | None = None
    #: Seconds from one to the next; 0: after every round.
    every: float = Field(default=5.0, ge=0)


class LocalWorkers(Settings):
    """Worker processes on this machine, started for the job and ended with it."""

    kind: Literal["local"] = "local"
    workers: int = Field(default=4, ge=1)
    threads: int = Field(default=1, ge=1)
    memory: str | int = "auto"
    #: Workers at most, where a policy asks for more; by default ``workers``.
    workers_max: int | None = Field(default=None, ge=1)
    #: How many times as long a worker computes, by its place, counted from 0; for studies.
    slowdown: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=1)]] = Field(
        default_factory=dict
    )

    def check(self) -> None:
        """Check what several fields must agree on."""
        if self.workers_max is not None and self.workers_max < self.workers:
            raise ValueError(
                f"workers_max: got {self.workers_max}, wanted at least workers, {self.workers}"
            )
        most = self.workers_max or self.workers
        if max(self.slowdown, default=0) >= most:
            raise ValueError(
                f"slowdown: got worker {max(self.slowdown)}, wanted numbers below {most}: the "
                "first worker is 0"
            )

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | int) -> str | int:
        if memory != "auto" and parse_size(memory) < CONTAINER_BYTES_MIN:
            raise ValueError("a worker needs at least 64 MiB")
        return memory


class Address(Settings):
    """A Dask cluster that runs already."""

    kind: Literal["address"] = "address"
    address: str = Field(description="the scheduler's, such as tcp://host:8786")


class YarnScheduler(Settings):
    """The container with the scheduler and the driver; None: as dask-yarn's configuration says."""

    memory: str | int | None = None
    vcores: Count | None = None

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | int | None) -> str | int | None:
        return _checked_memory(memory)


class YarnContainers(Settings):
    """Containers of a Hadoop cluster, asked for and given back by way of YARN.

    What is None is as dask-yarn's configuration says, files and environment variables included.
    """

    kind: Literal["yarn"] = "yarn"
    #: Worker containers that are asked for.
    workers: Count = 4
    #: A job begins with so few where no more are granted for a while; by default all of them.
    workers_min: Count | None = None
    #: Containers at most, where a policy asks for more; by default ``workers``.
    workers_max: Count | None = None
    queue: str | None = None
    memory: str | int | None = None
    vcores: Count | None = None
    #: Compute threads of a member; by default its vcores.
    threads: Count | None = None
    #: ``venv://``, ``conda://``, ``python://`` with a path on every node, or an archive.
    environment: str | None = None
    #: Pack the environment that submits, and upload it where that has not been done before.
    pack: bool = False
    #: What of it is left behind: patterns of paths, such as ``*/site-packages/torch/*``.
    pack_exclude: tuple[str, ...] = ()
    scheduler: YarnScheduler = Field(default_factory=YarnScheduler)
    #: The application's; by default the job's.
    name: str | None = None
    tags: tuple[str, ...] | None = None
    node_label: str | None = None
    nodes: tuple[str, ...] | None = None
    racks: tuple[str, ...] | None = None
    user: str | None = None
    security: Literal["tls", "none"] = "tls"
    #: A skein specification with a service ``dask.worker``; it says what the keys above leave out.
    specification: str | None = None
    keytab: str | None = None
    principal: str | None = None
    #: Where the run directory goes: a URL, or a path that every node and this machine share.
    result: str | None = None

    def check(self) -> None:
        """Check what several fields must agree on."""
        if self.workers_max is not None and self.workers_max < self.workers:
            raise ValueError(
                f"workers_max: got {self.workers_max}, wanted at least workers, {self.workers}"
            )
        if self.workers_min is not None and self.workers_min > self.workers:
            raise ValueError(
                f"workers_min: got {self.workers_min}, wanted at most workers, {self.workers}"
            )
        if (self.keytab is None) != (self.principal is None):
            given, missing = sorted(("keytab", "principal"), key=lambda k: getattr(self, k) is None)
            raise ValueError(f"{missing}: missing, and {given} is given; Kerberos needs both")
        if self.specification is not None and (self.pack or self.environment is not None):
            given = "pack" if self.pack else "environment"
            raise ValueError(
                f"{given}: the specification says which environment its containers have; leave "
                "one of them out"
            )
        if self.pack and self.environment is not None:
            raise ValueError(
                f"pack: the environment that submits would be packed, and environment names "
                f"{self.environment}; leave one of them out"
            )

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str | int | None) -> str | int | None:
        return _checked_memory(memory)


def _checked_memory(memory: str | int | None) -> str | int | None:
    if memory is not None and parse_size(memory) < CONTAINER_BYTES_MIN:
        raise ValueError("a container needs at least 64 MiB; give a size such as 2 GiB")
    return memory


Cluster = LocalWorkers | Address | YarnContainers

#: The kinds of cluster of this release.
CLUSTERS: dict[str, type[LocalWorkers] | type[Address] | type[YarnContainers]] = {
    "local": LocalWorkers,
    "address": Address,
    "yarn": YarnContainers,
}
