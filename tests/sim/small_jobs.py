"""Small jobs for virtual worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticml.control.driver import Driver
from elasticml.data.readers.arrays import from_arrays
from elasticml.protocol.events import Arrived
from elasticml.runtime.driver_agent import DriverAgent
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import SimResult, Simulation, simulate

ROWS, COLUMNS = 240, 5


def record(**changes: Any) -> dict[str, Any]:
    """Make the record of a job on 6 members, in a tree of two."""
    made: dict[str, Any] = {
        "version": 1,
        "job": "sim",
        "name": "scene",
        "chunk_bytes": 768,
        "algorithm": {"name": "batch_gradient", "l2": 1e-2, "optimizer": "gd"},
        "absent": "taylor",
        "stop": {"rounds": 30},
        "seed": 0,
        "faults": [],
        "collective": {"topology": "tree", "fan_out": 2},
        "members": {"start": 6, "min": 1},
        "evaluate": {"every": 1},
    }
    return {**made, **changes}


def points() -> Any:
    """Make two noisy classes."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((ROWS, COLUMNS))
    return from_arrays(X, np.sign(X @ rng.standard_normal(COLUMNS) + rng.normal(size=ROWS)))


def play(world: Mapping[str, Any] | None = None, source: Any = None, **changes: Any) -> SimResult:
    """Run a job in a world, by default on the points, with all invariants checked."""
    options = options_from_section(world)
    source = source or points()
    result = simulate(record(**changes), source, options=options, check_every_event=True)
    assert result.error is None
    return result


class VirtualJob(Simulation):
    """A job in virtual time that a test may stop between any two records of its story.

    Parameters
    ----------
    record : mapping
    source : Source, optional
        By default 120 rows of the toy algorithm.
    world : mapping, optional
        Options of the world.
    **more
        See :class:`Simulation`.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        source: Any = None,
        *,
        world: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        source = source or from_arrays(np.ones((120, 1)), np.arange(120.0))
        options = options_from_section(world)
        super().__init__(
            {**record, "data": source.spec()},
            source,
            options=options,
            **{"check_every_event": True, **more},
        )

    @property
    def agent(self) -> DriverAgent:
        """The driver's agent."""
        return self.world.driver.agent

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The history so far."""
        return self.agent.journal.rows

    def until(self, is_so: Callable[[], bool]) -> VirtualJob:
        """Run until a condition holds."""
        for _ in self.world.run():
            if is_so():
                return self
        assert is_so(), (self.agent.state, self.agent.error)
        return self

    def end(self) -> VirtualJob:
        """Run to the end of the job, and of what its driver does last."""
        self.until(lambda: self.agent.ended.is_set())
        self.world.loop.run(self.world.loop.now_s + 1.0)
        self.close()
        return self

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the records of these kinds."""
        return [r for r in self.agent.journal.story if r["event"] in names]


def toy_job(rounds: int = 12, **changes: Any) -> dict[str, Any]:
    """Make a job of 6 members that fails as soon as an example is counted twice, or not at all."""
    algorithm = {"name": "tests.toy:ALGORITHM", "rounds": rounds}
    changed = {"job": "toy", "chunk_bytes": 512, "algorithm": algorithm, "stop": {"rounds": None}}
    return {**record(**changed, evaluate=None), **changes}


def begun(
    exchange: int = 2, world: Mapping[str, Any] | None = None, **changes: Any
) -> tuple[VirtualJob, Driver]:
    """Run a toy job of three members in a star until an exchange has begun, and no further.

    Returns
    -------
    VirtualJob
        Ends the job when it is closed, or collected.
    Driver
        The driver's machine in the middle of its job.
    """
    star = {"members": {"start": 3, "min": 1}, "collective": {"topology": "star"}}
    job = VirtualJob(toy_job(**{**star, **changes}), world=world)
    machine = job.agent.machine
    state, exchanges = machine.state, machine.exchanges
    job.until(lambda: exchanges.running is not None and state.last_exchange == exchange)
    return job, machine


def arrival(n: int, **more: Any) -> Arrived:
    """Make the arrival of a worker at the address ``w`` and its number."""
    return Arrived(arrival=n, address=f"w{n}", host="h", pid=n, threads=1, **more)


def model(result: SimResult) -> bytes:
    """Return all bytes of a model."""
    return b"".join(result.arrays[name].tobytes() for name in sorted(result.arrays))


def column(result: SimResult, name: str) -> list[Any]:
    """Return one column of the history, without the final model's row."""
    return [row[name] for row in result.rows[:-1]]


def records_of(result: SimResult, *events: str) -> list[dict[str, Any]]:
    """Return the records of these kinds."""
    return [r for r in result.story if r["event"] in events]
