"""Runs of local SGD in one process: the real trainer, members and machines, in virtual time.

Members take turns in this process and compute the same as in separate processes: the same steps
over the same samples, merged in the same order. Time is the paper's: a round of local SGD is one
unit for any number of members, because each of them takes L H samples in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.local_sgd.network import Network
from elasticml.data.readers.arrays import ArraySource
from elasticml.errors import JobFailedError
from elasticml.sim.simulation import Simulation
from elasticml.specification.algorithms import LocalSGD, settings_from_section
from elasticml.specification.simulator import Granted, Taken, WorldOptions

#: Between a notice and the end: a leaving member stays to the end of its round.
_GRACE_UNITS = 2.0


@dataclass(frozen=True, kw_only=True)
class Images:
    """A data set: pixels as stored in the files, float32, and labels."""

    name: str
    #: (channels, height, width)
    shape: tuple[int, int, int]
    source: ArraySource
    n_train: int
    test_X: NDArray[np.float32]
    test_y: NDArray[np.float64]
    #: The paper's.
    chunk_bytes: int = 200 * 1024


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run of local SGD."""

    name: str
    learning_rate: float
    epochs: int
    members: int = 1
    batch: int = 8
    local_steps: int = 16
    #: Number of members over time, as (from unit, members); the first entry is ``members``.
    schedule: Sequence[tuple[float, int]] = ()
    #: Slot -> slowness: how many times longer its member takes.
    slow: Mapping[int, float] = field(default_factory=dict)
    balances: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Point:
    """The state at the end of an epoch."""

    epoch: int
    rounds: int
    #: Since the first round began; a round of equal members is one.
    units: float
    members: int
    #: Mean loss of the epoch's samples, each before the step that it is in.
    loss: float
    test_accuracy: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """The members of a round."""

    members: int
    #: Slot -> units that it computed: its share of the round's samples, times its slowness.
    busy: Mapping[int, float]

    @property
    def units(self) -> float:
        """Length of the round: its slowest member's; 1 if all are equal."""
        return max(self.busy.values())


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its figures show it."""

    points: tuple[Point, ...]
    rounds: tuple[Round, ...]
    #: Real seconds of the computation.
    wall_s: float


def run(setting: Setting, images: Images, each: Callable[[Run], None] = lambda so_far: None) -> Run:
    """Train to the end of the setting's epochs.

    Parameters
    ----------
    setting : Setting
    images : Images
    each : callable, optional
        Called at the end of every epoch.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    began_s = time.perf_counter()
    simulation = Simulation(
        _record(setting, images), images.source, options=_world(setting, images)
    )
    reference = _EpochTester(simulation, setting, images)
    for entry in simulation.run():
        if reference.follow(entry):
            each(reference.run(time.perf_counter() - began_s))
    result = simulation.result()
    if result.error is not None:
        raise JobFailedError(f"run {setting.name} failed: {result.error['message']}")
    return reference.run(time.perf_counter() - began_s)


class _EpochTester:
    """Follow a job as it runs, and test its model at the end of every epoch."""

    def __init__(self, simulation: Simulation, setting: Setting, images: Images) -> None:
        self._desk = simulation.world.session
        self._settings = settings_from_section(LocalSGD, _algorithm(setting, images))
        self._images = images
        self._network: Network | None = None
        self._points: list[Point] = []
        self._rounds: list[Round] = []
        self._n_rows = 0
        #: Of the epoch: samples, and the sum of their losses; of the run: its length so far.
        self._samples, self._loss, self._units = 0, 0.0, 0.0

    def run(self, wall_s: float) -> Run:
        """Return the run so far."""
        return Run(points=tuple(self._points), rounds=tuple(self._rounds), wall_s=wall_s)

    def follow(self, report: Sequence[Mapping[str, Any]]) -> bool:
        """Process new story records; return whether an epoch has ended."""
        for record in report:
            if record["event"] == "ExchangeEnded" and record["operation"] == "train":
                self._rounds.append(_round(record))
        before = len(self._points)
        for row in self._desk.journal.rows[self._n_rows :]:
            self._n_rows += 1
            if row.get("samples"):
                self._add(row)
        return len(self._points) > before

    def _add(self, row: Mapping[str, Any]) -> None:
        self._samples += int(row["samples"])
        self._loss += float(row["samples"]) * float(row["objective"])
        self._units += self._rounds[-1].units
        if self._samples < self._images.n_train:
            return
        point = Point(
            epoch=len(self._points) + 1,
            rounds=len(self._rounds),
            units=self._units,
            members=int(row["members"]),
            loss=self._loss / self._samples,
            test_accuracy=self._test(),
        )
        self._points.append(point)
        self._samples, self._loss = 0, 0.0

    def _test(self) -> float:
        driver_session = self._desk
        assert driver_session.training is not None
        assert driver_session.facts is not None
        if self._network is None:
            self._network = Network(self._settings, driver_session.facts)
        return accuracy(self._network, driver_session.training.last_arrays(), self._images)


def _round(record: Mapping[str, Any]) -> Round:
    """Read a round from the story; a member's virtual seconds are its share of all examples."""
    seconds = {int(slot): float(s) for slot, s in record["compute_s"].items()}
    return Round(members=len(seconds), busy={slot: len(seconds) * s for slot, s in seconds.items()})


def accuracy(network: Network, arrays: Mapping[str, NDArray[np.float64]], images: Images) -> float:
    """Return the share of the test images whose class is the largest output."""
    network.fill_named(arrays)
    rows = network.tensor(images.test_X.copy())
    mean, std = float(arrays["input_mean"][0]), float(arrays["input_std"][0])
    output = network.outputs(network.inputs(rows, mean, std))
    result = np.asarray(network.classes)[output.argmax(1).cpu().numpy()]
    return float(np.mean(result == images.test_y))


def _trace(setting: Setting) -> tuple[Taken | Granted, ...]:
    """Return when members join and leave; a unit on N members is 1 / N virtual seconds."""
    trace: list[Taken | Granted] = []
    at = 0.0
    for (since, before), (until, now) in zip(setting.schedule, setting.schedule[1:], strict=False):
        at += (until - since) / before
        if now > before:
            trace.append(Granted(at=at, grant=now - before))
        else:
            trace.append(Taken(at=at, lose=before - now, how="notice", grace=_GRACE_UNITS))
    return tuple(trace)


def _world(setting: Setting, images: Images) -> WorldOptions:
    """Make a world in which only training takes time."""
    return WorldOptions(
        seed=setting.seed,
        latency_s=0.0,
        bandwidth=1e18,
        read_bandwidth=1e18,
        copy_bandwidth=1e18,
        merge_s=0.0,
        start_s=0.0,
        tick_s=0.05,
        compute_s={"train": 1.0 / images.n_train, "other": 0.0},
        slow=setting.slow,
        trace=_trace(setting),
    )


def _algorithm(setting: Setting, images: Images) -> dict[str, Any]:
    return {
        "name": "local_sgd",
        "model": "cnn",
        "shape": list(images.shape),
        "model_options": dict(setting.model_options),
        "batch": setting.batch,
        "local_steps": setting.local_steps,
        "learning_rate": setting.learning_rate,
        "epochs": setting.epochs,
        "seed": setting.seed,
    }


def _record(setting: Setting, images: Images) -> dict[str, Any]:
    return {
        "version": 1,
        "job": "study",
        "name": setting.name,
        "chunk_bytes": images.chunk_bytes,
        "algorithm": _algorithm(setting, images),
        "absent": "reload",
        "stop": {},
        "seed": setting.seed,
        "faults": [],
        "collective": {"topology": "star"},
        "members": {"start": setting.members, "min": 1},
        "evaluate": None,
        "placement": "random",
        "policies": [{"name": "rebalance"}] if setting.balances else [],
    }
