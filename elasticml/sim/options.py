"""What a virtual world is like: its network, its speeds, its pre-emptions, its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from elasticml.errors import ConfigError
from elasticml.terms import parse_size

How = Literal["notice", "terminate", "kill", "pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Pre-emptions that come by chance, as a busy YARN queue takes containers away.

    Times between two of them are exponential. Each takes ``count`` members, chosen evenly among
    those that are there; a new container comes for each after a time drawn evenly from ``away``.
    """

    #: Pre-emptions per second, over the whole job.
    rate: float
    #: Seconds, shortest and longest.
    away: tuple[float, float] = (10.0, 60.0)
    how: How = "kill"
    #: Seconds between a notice and the end.
    grace: float = 5.0
    count: int = 1
    #: Members that are always left alone.
    spare: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """One entry of a given trace: members that go at a moment, and how long they stay away."""

    at: float
    #: How many (the youngest), or which slots.
    lose: int | tuple[int, ...]
    how: How = "kill"
    grace: float = 5.0
    #: Seconds until a new container comes for each; None: never. A pause ends after them.
    away: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A job of which only the costs are known: nothing is read, nothing is computed."""

    rows: int = 1_000_000
    #: Doubles that go down, and come up, in a gradient exchange.
    columns: int = 10_000
    chunks_per_member: int = 4
    row_bytes: int = 1000
    #: Exchanges of a few numbers (line search) that follow each gradient.
    probes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """Everything about a virtual world that the job does not say."""

    seed: int = 0
    #: Seconds, one way.
    latency_s: float = 2e-4
    #: Bytes per second of every process's uplink, and of its downlink.
    bandwidth: float = 1.25e9
    #: Seconds per example and exchange; by operation (others at "other"); or "measured": the
    #: solver's own time on this machine, which makes times differ from run to run.
    compute_s: float | Mapping[str, float] | Literal["measured"] = 2e-7
    #: Relative spread of compute times (the deviation of their logarithm).
    jitter: float = 0.0
    #: slot -> how many times longer its members compute.
    slow: Mapping[int, float] = field(default_factory=dict)
    #: Seconds per double to add one partial to another.
    merge_s: float = 5e-10
    #: Bytes per second at which a member reads its source.
    read_bandwidth: float = 2e8
    #: Seconds from the start of a container to its offer to serve; and of one prepared before.
    start_s: float = 2.0
    standby_s: float = 0.1
    #: Seconds from a process's death to the moment at which others see its links closed.
    detect_s: float = 0.01
    #: Members are dealt to so many hosts in turn.
    hosts: int = 1
    #: Seconds between two ticks of the driver.
    tick_s: float = 0.02
    #: Seconds in which nothing happens and nothing is planned, after which a job is called stuck.
    quiet_s_max: float = 600.0
    preemption: Preemption | None = None
    trace: tuple[Taken, ...] = ()
    #: Set: the world moves handles, not arrays, and no solver runs.
    costs: Costs | None = None

    def compute_seconds(self, operation: str, examples: int) -> float:
        """Seconds that an undisturbed, ordinary member computes."""
        per_example = self.compute_s
        if isinstance(per_example, Mapping):
            per_example = per_example.get(operation, per_example.get("other", 2e-7))
        assert not isinstance(per_example, str)
        return per_example * examples


def options_from_section(section: Mapping[str, Any] | None) -> WorldOptions:
    """Read the ``simulate`` section of a job.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of its range.
    """
    given = dict(section or {})
    known = {f.name for f in fields(WorldOptions)}
    for key in given:
        if key not in known:
            raise ConfigError(
                f"simulate.{key} is not a setting (there is {', '.join(sorted(known))})",
                path=f"simulate.{key}",
            )
    if given.get("preemption") is not None:
        given["preemption"] = _preemption(given["preemption"])
    given["trace"] = tuple(_taken(k, entry) for k, entry in enumerate(given.get("trace") or ()))
    if given.get("costs") is not None:
        given["costs"] = _made(Costs, given["costs"], "simulate.costs")
    for key in ("bandwidth", "read_bandwidth"):
        if isinstance(given.get(key), str):
            try:
                given[key] = float(parse_size(given[key]))
            except ValueError as error:
                raise ConfigError(f"simulate.{key}: {error}", path=f"simulate.{key}") from None
    given["slow"] = {int(slot): float(k) for slot, k in (given.get("slow") or {}).items()}
    options = WorldOptions(**given)
    _check(options)
    return options


def _check(options: WorldOptions) -> None:
    for key in ("bandwidth", "read_bandwidth", "tick_s", "quiet_s_max", "hosts"):
        if not getattr(options, key) > 0:
            raise ConfigError(
                f"simulate.{key}: got {getattr(options, key)}, wanted more than 0",
                path=f"simulate.{key}",
            )
    for key in ("latency_s", "jitter", "merge_s", "start_s", "standby_s", "detect_s"):
        if getattr(options, key) < 0:
            raise ConfigError(
                f"simulate.{key}: got {getattr(options, key)}, wanted 0 or more",
                path=f"simulate.{key}",
            )
    if isinstance(options.compute_s, str) and options.compute_s != "measured":
        raise ConfigError(
            f"simulate.compute_s: got {options.compute_s!r}, wanted seconds per example, a mapping "
            "of operations to them, or 'measured'",
            path="simulate.compute_s",
        )


def _preemption(raw: Mapping[str, Any]) -> Preemption:
    away = raw.get("away", Preemption.__dataclass_fields__["away"].default)
    low, high = (away, away) if isinstance(away, (int, float)) else away
    made: Preemption = _made(
        Preemption, {**raw, "away": (float(low), float(high))}, "simulate.preemption"
    )
    if not made.rate > 0 or not 0 <= made.away[0] <= made.away[1]:
        raise ConfigError(
            f"simulate.preemption: got rate {made.rate} and away {list(made.away)}, wanted a rate "
            "above 0 and away: [shortest, longest]",
            path="simulate.preemption",
        )
    return made


def _taken(k: int, raw: Mapping[str, Any]) -> Taken:
    lose = raw.get("lose")
    changed = {"lose": tuple(lose)} if isinstance(lose, (list, tuple)) else {}
    made: Taken = _made(Taken, {**raw, **changed}, f"simulate.trace[{k}]")
    return made


def _made(kind: type[Any], raw: Mapping[str, Any], path: str) -> Any:
    try:
        made = kind(**raw)
    except TypeError as error:
        wanted = ", ".join(f.name for f in fields(kind))
        why = str(error).replace("__init__() ", "")
        raise ConfigError(f"{path}: {why}; there is {wanted}", path=path) from None
    how = getattr(made, "how", "kill")
    if how not in ("notice", "terminate", "kill", "pause"):
        raise ConfigError(
            f"{path}.how: got {how!r}, wanted notice, terminate, kill or pause", path=f"{path}.how"
        )
    return made
