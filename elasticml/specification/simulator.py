"""The ``simulate`` section: a virtual world's network, speeds, pre-emptions and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from elasticml.ids import parse_size
from elasticml.specification.settings_model import (
    Count,
    Explained,
    Flag,
    Index,
    LocalPath,
    NumberAbove0,
    NumberFrom0,
    read_settings,
    settings_dataclass,
)

How = Literal["notice", "terminate", "kill", "pause"]
#: How many (the youngest), or which slots.
Who = Count | tuple[Index, ...]
#: Seconds of a computation: for every operation, or by operation (others at "other").
Seconds = NumberFrom0 | dict[str, NumberFrom0]


def _size(size: object) -> object:
    if not isinstance(size, str):
        return size
    try:
        return parse_size(size)
    except ValueError:
        raise ValueError("wanted bytes per second, such as 1 GB") from None


Rate = Annotated[NumberAbove0, BeforeValidator(_size, json_schema_input_type=float | str)]
Size = Annotated[int, Field(ge=0), BeforeValidator(_size, json_schema_input_type=int | str)]


class _Options(Explained):
    """Options of the simulator."""

    @classmethod
    def path_in_messages(cls) -> str:
        """Return the section of the job file."""
        return "simulate"


@settings_dataclass(frozen=True, slots=True)
class Preemption(_Options):
    """Pre-emptions at random, or from a file.

    Times between two of them are exponential. Each takes ``count`` members, drawn uniformly; a new
    container comes for each after a time drawn uniformly from ``away``.
    """

    #: Pre-emptions per second, over the whole job; None: only those of the file.
    rate: NumberAbove0 | None = None
    #: Seconds until a new container comes, shortest and longest; one number for both.
    away: tuple[NumberFrom0, NumberFrom0] = (10.0, 60.0)
    #: What happens to the members.
    how: How = "kill"
    #: Seconds between a notice and the end.
    grace: NumberFrom0 = 5.0
    #: Members of each pre-emption.
    count: Count = 1
    #: Members that are never taken.
    spare: Index = 1
    #: A CSV file of pre-emptions, with the columns time, away and one of slot, member and count.
    trace: LocalPath = None

    @field_validator("away", mode="before", json_schema_input_type=float | tuple[float, float])
    @classmethod
    def _one_for_both(cls, away: object) -> object:
        return (away, away) if isinstance(away, int | float) else away

    def check(self) -> None:
        """Check constraints between fields."""
        if self.rate is None and self.trace is None:
            raise ValueError("rate is missing: give pre-emptions per second, or the file trace")
        if self.away[0] > self.away[1]:
            raise ValueError(f"away: got {list(self.away)}, wanted the shortest time first")


@settings_dataclass(frozen=True, slots=True)
class Taken(_Options):
    """Members that go at a moment, and how long they stay away."""

    #: Seconds since the start of the job.
    at: NumberFrom0
    #: How many (the youngest), or which slots.
    lose: Who
    #: What happens to the members.
    how: How = "kill"
    #: Seconds between a notice and the end.
    grace: NumberFrom0 = 5.0
    #: Seconds until a new container comes for each; None: never. A pause ends after them.
    away: NumberFrom0 | None = None


@settings_dataclass(frozen=True, slots=True)
class Granted(_Options):
    """Containers that a resource manager grants at a moment."""

    #: Seconds since the start of the job.
    at: NumberFrom0
    #: How many; each offers to serve ``start_s`` later.
    grant: Count


@settings_dataclass(frozen=True, slots=True)
class Asked(_Options):
    """Containers that another queue of the resource manager wants.

    They are marked; what the job has not given back when the grace is over is taken.
    """

    #: Seconds since the start of the job.
    at: NumberFrom0
    #: How many (the youngest), or which slots.
    reclaim: Who
    #: Seconds until the marked containers are taken.
    grace: NumberFrom0 = 15.0
    #: Other containers than the marked ones will do.
    negotiable: Flag = True
    #: Why: Dask retires workers, and waits until they are empty.
    reason: Literal["preempted", "retired"] = "preempted"
    #: Seconds until the other queue gives each of them back; None: never.
    away: NumberFrom0 | None = None


@settings_dataclass(frozen=True, slots=True)
class Costs(_Options):
    """A job of which only the costs are known: nothing is read, nothing is computed."""

    #: Examples.
    rows: Count = 1_000_000
    #: Doubles that go down, and come up, in a gradient exchange.
    columns: Count = 10_000
    #: Chunks of each member.
    chunks_per_member: Count = 4
    #: Bytes of an example.
    row_bytes: Count = 1000
    #: Exchanges of a few numbers (line search) that follow each gradient.
    probes: Index = 1


@settings_dataclass(frozen=True, slots=True)
class WorldOptions(_Options):
    """Everything about a virtual world that the job does not say."""

    #: Seed of the world's random choices.
    seed: Index = 0
    #: Seconds, one way.
    latency_s: NumberFrom0 = 2e-4
    #: Bytes per second of every process's uplink, and of its downlink.
    bandwidth: Rate = 1.25e9
    #: The processes of a host share one uplink and one downlink, which messages between them do
    #: not use.
    host_links: Flag = Field(default=False, repr=False)
    #: Seconds per example and exchange; by operation (others at "other"); or "measured": the
    #: solver's own time on this machine, which makes times differ from run to run.
    compute_s: Seconds | Literal["measured"] = 2e-7
    #: Seconds that every exchange takes besides, whatever its size; or by operation.
    overhead_s: Seconds = 0.0
    #: Relative spread of compute times (the deviation of their logarithm).
    jitter: NumberFrom0 = 0.0
    #: slot -> how many times longer its members compute.
    slow: dict[Index, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    #: Seconds per double to add one partial to another.
    merge_s: NumberFrom0 = 5e-10
    #: Upper limit of the bytes per second at which a member copies chunks in the background.
    copy_bandwidth: Rate = 1e8
    #: Bytes that a worker may hold; None: no limit.
    limit_bytes: Size | None = None
    #: Containers that the resource manager has in all: requests beyond are not granted.
    containers_max: Count | None = None
    #: Bytes per second at which a member reads its source.
    read_bandwidth: Rate = 2e8
    #: Seconds from the start of a container to its offer to serve.
    start_s: NumberFrom0 = 2.0
    #: Seconds from the start of a prepared container to its offer to serve.
    standby_s: NumberFrom0 = 0.1
    #: Seconds for which a member compiles its kernels before it is ready.
    warm_up_s: NumberFrom0 = Field(default=0.0, repr=False)
    #: Seconds from a process's death to the moment at which others see its links closed.
    detect_s: NumberAbove0 = 0.01
    #: Processor seconds that a process takes for each message that it receives.
    message_s: NumberFrom0 = Field(default=0.0, repr=False)
    #: Vectors between processes are sent in pieces of this size; None: whole.
    piece_bytes: Count | None = Field(default=None, repr=False)
    #: Cores that all processes share, for messages and computations; None: each has its own.
    cores: Count | None = Field(default=None, repr=False)
    #: Members are placed on this many hosts in turn.
    hosts: Count = 1
    #: Seconds between two ticks of the driver.
    tick_s: NumberAbove0 = 0.02
    #: Seconds in which nothing happens and nothing is planned, after which a job counts as stuck.
    quiet_s_max: NumberAbove0 = 600.0
    #: Pre-emptions at random, or from a file.
    preemption: Preemption | None = None
    #: Pre-emptions, grants and requests at given moments.
    trace: tuple[Taken | Granted | Asked, ...] = ()
    #: Set: the world moves handles, not arrays, and no solver runs.
    costs: Costs | None = None

    @field_validator("trace", mode="before")
    @classmethod
    def _entries(cls, trace: object) -> object:
        if trace is None:
            return ()
        if not isinstance(trace, list | tuple):
            raise ValueError("wanted a list such as [{at: 10, lose: 2, away: 5}]")
        return tuple(trace_entry(entry, f"simulate.trace[{k}]") for k, entry in enumerate(trace))

    @field_validator("slow", mode="before")
    @classmethod
    def _nobody_is_slow(cls, slow: object) -> object:
        return {} if slow is None else slow

    def compute_seconds(self, operation: str, examples: float) -> float:
        """Return the seconds that an undisturbed, ordinary member computes."""
        per_example = self.compute_s
        if isinstance(per_example, float):
            return per_example * examples  # asked by every member in every exchange
        if isinstance(per_example, Mapping):
            per_example = per_example.get(operation, per_example.get("other", 2e-7))
        assert not isinstance(per_example, str)
        return per_example * examples

    def overhead_seconds(self, operation: str) -> float:
        """Return the seconds of an exchange that do not depend on its examples."""
        overhead = self.overhead_s
        if isinstance(overhead, Mapping):
            return overhead.get(operation, overhead.get("other", 0.0))
        return overhead


def trace_entry(raw: object, path: str) -> Taken | Granted | Asked:
    """Read an entry of the trace, whose keys tell its kind: ``lose``, ``grant`` or ``reclaim``.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of range.
    """
    if isinstance(raw, Taken | Granted | Asked):
        return raw
    keys = raw if isinstance(raw, Mapping) else {}
    kind: type[Taken | Granted | Asked]
    kind = Granted if "grant" in keys else Asked if "reclaim" in keys else Taken
    return read_settings(kind, raw, path)
