"""What a virtual world is like: its network, its speeds, its pre-emptions, its seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args

from elasticml.data.source import nearest
from elasticml.errors import ConfigError
from elasticml.ids import parse_size
from elasticml.sim.preemption_trace import read_preemptions

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
class Granted:
    """One entry of a given trace: containers that a resource manager grants at a moment."""

    at: float
    #: How many; each offers to serve ``start_s`` later.
    grant: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One entry of a given trace: containers that another queue of the resource manager wants.

    Those are marked; what the job has not given back when the grace is over is taken.
    """

    at: float
    #: How many (the youngest), or which slots.
    reclaim: int | tuple[int, ...]
    grace: float = 15.0
    #: Other containers than the marked ones will do.
    negotiable: bool = True
    #: Seconds until the other queue gives each of them back; None: never.
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
    #: Seconds that every exchange takes besides, whatever its size; or by operation.
    overhead_s: float | Mapping[str, float] = 0.0
    #: Relative spread of compute times (the deviation of their logarithm).
    jitter: float = 0.0
    #: slot -> how many times longer its members compute.
    slow: Mapping[int, float] = field(default_factory=dict)
    #: Seconds per double to add one partial to another.
    merge_s: float = 5e-10
    #: Bytes per second at which a member sends copies of chunks while rounds go on.
    copy_bandwidth: float = 1e8
    #: Bytes that a worker may hold; None: as many as there are.
    limit_bytes: int | None = None
    #: Containers that the resource manager has in all: what is asked for beyond is not granted.
    containers_max: int | None = None
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
    trace: tuple[Taken | Granted | Asked, ...] = ()
    #: Set: the world moves handles, not arrays, and no solver runs.
    costs: Costs | None = None

    def compute_seconds(self, operation: str, examples: float) -> float:
        """Seconds that an undisturbed, ordinary member computes."""
        per_example = self.compute_s
        if isinstance(per_example, float):
            return per_example * examples  # asked by every member in every exchange
        if isinstance(per_example, Mapping):
            per_example = per_example.get(operation, per_example.get("other", 2e-7))
        assert not isinstance(per_example, str)
        return per_example * examples

    def overhead_seconds(self, operation: str) -> float:
        """Seconds of an exchange that do not depend on its examples."""
        overhead = self.overhead_s
        if isinstance(overhead, Mapping):
            return overhead.get(operation, overhead.get("other", 0.0))
        return overhead


def options_from_section(section: Mapping[str, Any] | None) -> WorldOptions:
    """Read the ``simulate`` section of a job.

    Raises
    ------
    ConfigError
        When a key is unknown or a value is out of its range.
    """
    given = dict(section or {})
    for key in ("bandwidth", "copy_bandwidth", "read_bandwidth"):
        if isinstance(given.get(key), str):
            given[key] = _size(given[key], f"simulate.{key}")
    trace = given.get("trace") or ()
    if not isinstance(trace, (list, tuple)):
        raise _wrong("simulate.trace", trace, "a list such as [{at: 10, lose: 2, away: 5}]")
    taken = tuple(_taken(entry, f"simulate.trace[{k}]") for k, entry in enumerate(trace))
    given["trace"] = taken + _from_file(given)
    if given.get("costs") is not None:
        given["costs"] = _made(Costs, given["costs"], "simulate.costs")
    given["slow"] = _slow(given.get("slow") or {})
    if given.get("compute_s") != "measured":
        _check_seconds(given.get("compute_s", 0.0), "simulate.compute_s", ", or measured")
    _check_seconds(given.get("overhead_s", 0.0), "simulate.overhead_s")
    if given.get("limit_bytes") is not None:
        given["limit_bytes"] = int(_size(str(given["limit_bytes"]), "simulate.limit_bytes"))
    if given.get("containers_max") is not None:
        _check_number(given["containers_max"], "simulate.containers_max", 1, True, whole=True)
    options: WorldOptions = _made(WorldOptions, given, "simulate")
    return options


#: Keys that are numbers: the least value, and whether it is one itself.
_NUMBERS: dict[str, tuple[float, bool]] = {
    "seed": (0, True),
    "latency_s": (0, True),
    "bandwidth": (0, False),
    "copy_bandwidth": (0, False),
    "grant": (1, True),
    "jitter": (0, True),
    "merge_s": (0, True),
    "read_bandwidth": (0, False),
    "start_s": (0, True),
    "standby_s": (0, True),
    "detect_s": (0, False),
    "hosts": (1, True),
    "tick_s": (0, False),
    "quiet_s_max": (0, False),
    "rate": (0, False),
    "grace": (0, True),
    "count": (1, True),
    "spare": (0, True),
    "at": (0, True),
    "rows": (1, True),
    "columns": (1, True),
    "chunks_per_member": (1, True),
    "row_bytes": (1, True),
    "probes": (0, True),
}
_WHOLE = frozenset(
    "seed hosts count grant spare rows columns chunks_per_member row_bytes probes".split()
)


def _made(kind: type[Any], raw: Any, path: str) -> Any:
    """Make a group of options; every key must be known and every number in its range."""
    known = {f.name: f for f in fields(kind)}
    if not isinstance(raw, Mapping):
        raise _wrong(path, raw, f"a mapping with keys such as {', '.join(list(known)[:4])}")
    for key, value in raw.items():
        if key not in known:
            guess = nearest(str(key), known)
            raise ConfigError(
                f"{path}.{key} is not a setting{guess} (there is {', '.join(known)})",
                path=f"{path}.{key}",
            )
        if key in _NUMBERS:
            _check_number(value, f"{path}.{key}", *_NUMBERS[key], whole=key in _WHOLE)
    missing = [f.name for f in known.values() if f.default is MISSING and f.name not in raw]
    missing = [name for name in missing if known[name].default_factory is MISSING]
    if missing:
        raise ConfigError(f"{path}.{missing[0]} is missing", path=f"{path}.{missing[0]}")
    if raw.get("how", "kill") not in get_args(How):
        raise _wrong(f"{path}.how", raw["how"], f"one of {', '.join(get_args(How))}")
    return kind(**raw)


def _check_number(value: Any, path: str, least: float, is_allowed: bool, whole: bool) -> None:
    kinds = (int,) if whole else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and (value > least or (is_allowed and value == least)):
        return
    what = "a whole number" if whole else "a number"
    bound = f"from {least:g} on" if is_allowed else f"above {least:g}"
    raise _wrong(path, value, f"{what} {bound}")


def _wrong(path: str, value: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{path}: got {value!r}, wanted {wanted}", path=path)


def _size(text: str, path: str) -> float:
    try:
        return float(parse_size(text))
    except ValueError:
        raise _wrong(path, text, "bytes per second, such as 1 GB") from None


def _check_seconds(value: Any, path: str, further: str = "") -> None:
    if isinstance(value, Mapping):
        for operation, seconds in value.items():
            _check_number(seconds, f"{path}.{operation}", 0, True, whole=False)
    elif isinstance(value, str):
        raise _wrong(path, value, f"seconds, {{operation: seconds}}{further}")
    else:
        _check_number(value, path, 0, True, whole=False)


def _slow(raw: Any) -> dict[int, float]:
    if not isinstance(raw, Mapping):
        raise _wrong("simulate.slow", raw, "a mapping of slots to factors, such as {3: 4.0}")
    for slot, factor in raw.items():
        if not str(slot).isdigit():
            raise _wrong("simulate.slow", slot, "slots, counted from 0")
        _check_number(factor, f"simulate.slow.{slot}", 0, False, whole=False)
    return {int(slot): float(factor) for slot, factor in raw.items()}


def _preemption(raw: Any) -> Preemption:
    path = "simulate.preemption"
    changed: dict[str, Any] = {}
    if isinstance(raw, Mapping) and "away" in raw:
        away = raw["away"]
        pair = away if isinstance(away, (list, tuple)) else (away, away)
        if len(pair) != 2:
            raise _wrong(f"{path}.away", away, "[shortest, longest], in seconds")
        for seconds in pair:
            _check_number(seconds, f"{path}.away", 0, True, whole=False)
        if pair[0] > pair[1]:
            raise _wrong(f"{path}.away", away, "the shortest time first")
        changed["away"] = (float(pair[0]), float(pair[1]))
    made: Preemption = _made(
        Preemption, {**raw, **changed} if isinstance(raw, Mapping) else raw, path
    )
    return made


def _from_file(given: dict[str, Any]) -> tuple[Taken | Granted | Asked, ...]:
    """Make the pre-emptions of a section: those of its file, returned, and those by chance."""
    raw = given.get("preemption")
    if raw is None:
        return ()
    file = raw.get("trace") if isinstance(raw, Mapping) else None
    if file is None:
        given["preemption"] = _preemption(raw)
        return ()
    rest = {key: value for key, value in raw.items() if key != "trace"}
    if not isinstance(file, str):
        raise _wrong("simulate.preemption.trace", file, "the path of a CSV file")
    # Without a rate there is no chance: the other keys are those of the file's entries.
    chance = _preemption({"rate": 1.0, **rest})
    given["preemption"] = chance if "rate" in rest else None
    common = {"how": chance.how, "grace": chance.grace}
    path = "simulate.preemption.trace"
    return tuple(_taken({**entry, **common}, path) for entry in read_preemptions(file))


def _taken(raw: Any, path: str) -> Taken | Granted | Asked:
    if isinstance(raw, Mapping) and "grant" in raw:
        granted: Granted = _made(Granted, raw, path)
        return granted
    kind: type[Taken | Asked] = Taken
    key = "lose"
    if isinstance(raw, Mapping) and "reclaim" in raw:
        kind, key = Asked, "reclaim"
    changed: dict[str, Any] = {}
    if isinstance(raw, Mapping):
        who = raw.get(key, 1)
        if isinstance(who, (list, tuple)):
            changed[key] = tuple(who)
            for slot in who:
                _check_number(slot, f"{path}.{key}", 0, True, whole=True)
        else:
            _check_number(who, f"{path}.{key}", 1, True, whole=True)
        if raw.get("away") is not None:
            _check_number(raw["away"], f"{path}.away", 0, True, whole=False)
        if not isinstance(raw.get("negotiable", True), bool):
            raise _wrong(f"{path}.negotiable", raw["negotiable"], "true or false")
    made: Taken | Asked = _made(kind, {**raw, **changed} if isinstance(raw, Mapping) else raw, path)
    return made
