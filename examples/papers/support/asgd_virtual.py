"""Asynchronous SGD and its baselines in virtual time, with costs measured on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.asgd_reference import centre_error, mean_of

from elasticml.algorithms.async_sgd.base import LoopConfig
from elasticml.algorithms.async_sgd.build_plan import plan
from elasticml.algorithms.async_sgd.kmeans import inertia
from elasticml.algorithms.async_sgd.local_kmeans import means_of
from elasticml.algorithms.async_sgd.nearest_centres import statistics_of, whole
from elasticml.algorithms.async_sgd.plus_plus import plus_plus
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.ids import ChunkId
from elasticml.specification.algorithms import AsyncSGD
from elasticml.training.message_codec import message_values, pack_message
from examples.papers.support.clusters import ClusterSource, synthetic_clusters
from examples.papers.support.nic_model import Costs, Link, World

F64 = NDArray[np.float64]

#: Overhead of a state on the network, in bytes.
HEADER_BYTES = 64
#: Rows on which the excess is evaluated.
EVALUATED = 4000
#: The first evaluation of a run comes after this share of it, so that early progress is seen.
FIRST_LOOK = 1 / 1000


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Synthetic data, and the share of a state that the paper's messages have."""

    name: str
    columns: int
    clusters: int
    spread: float
    apart: float = 0.0
    share: float = 1.0

    def source(self, rows: int, seed: int) -> ClusterSource:
        """Return the source of a seed's data, with its own centres and rows."""
        return synthetic_clusters(
            rows,
            columns=self.columns,
            clusters=self.clusters,
            spread=self.spread,
            min_distance=self.apart,
            problem=seed,
            seed=seed,
        )


#: An eighth of the state in single precision is the paper's 50 bytes and 5 kB.
SMALL = Shape(name="D=10, K=10", columns=10, clusters=10, spread=0.15, apart=0.8, share=0.125)
MANY = Shape(name="D=10, K=100", columns=10, clusters=100, spread=0.1, apart=0.45)
LARGE = Shape(name="D=100, K=100", columns=100, clusters=100, spread=0.5, share=0.125)


def loop_of(shape: Shape, **settings: Any) -> LoopConfig:
    """Make the loop of a job with these settings."""
    layout = Layout(kind="dense", dtype="float64", n_columns=shape.columns)
    facts = DatasetStats(
        n_rows=1,
        n_columns=shape.columns,
        classes=None,
        label_counts={},
        layout=layout,
        weight_sum=1.0,
        n_blocks=1,
    )
    return plan(AsyncSGD("kmeans", k=shape.clusters, **settings).section(), facts).loop


class Data:
    """The rows of one seed, assigned to members, and errors against the true centres."""

    def __init__(self, shape: Shape, rows: int, seed: int) -> None:
        source = shape.source(rows, seed)
        blocks = [c for b in source.blocks() for c in source.read(b.index, 2**20, 1)[0]]
        self.shape, self.rows, self.seed, self.truth = shape, rows, seed, source.centres()
        self._dealt: list[list[Chunk]] = []
        self._X = np.concatenate([chunk.values for chunk in blocks])
        rng = np.random.default_rng([21, seed])
        some = self._X[rng.choice(rows, min(rows, EVALUATED), replace=False)]
        self._judge = [dense_chunk(ChunkId("judge", 0, 0), np.zeros(len(some)), some)]
        self._best = inertia(self.truth, self._judge)
        sample = self._X[rng.choice(rows, min(rows, 30 * shape.clusters), replace=False)]
        #: k-means++ on 30 rows a centre.
        self.start = plus_plus(sample, np.ones(len(sample)), shape.clusters, rng)

    def split_evenly(self, n_members: int) -> list[list[Chunk]]:
        """Split the rows evenly: one chunk each, none of which has been visited."""
        if len(self._dealt) != n_members:
            parts = np.array_split(self._X, n_members)
            self._dealt = [
                [dense_chunk(ChunkId("rows", i, 0), np.zeros(len(part)), part)]
                for i, part in enumerate(parts)
            ]
        for (chunk,) in self._dealt:
            chunk.state = {}
        return self._dealt

    def excess(self, centres: F64) -> float:
        """Return by how many percent inertia is above that at the true centres."""
        return 100.0 * (inertia(centres, self._judge) / self._best - 1.0)

    def error(self, centres: F64) -> float:
        """Return the mean distance to the true centres."""
        return centre_error(centres, self.truth)


# --- costs on this machine ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MeasuredCosts:
    """Seconds of one core, measured: the least of several repeats, in thread time."""

    sample_s: float
    batch_s: float
    post_s: float
    merge_s: float
    #: A sample of BATCH's pass.
    pass_s: float
    message_bytes: int
    state_bytes: int

    def costs(self, link: Link) -> Costs:
        """Combine them with a network."""
        return Costs(
            link=link,
            seconds_per_sample=self.sample_s,
            message_bytes=self.message_bytes,
            post_s=self.post_s,
            batch_s=self.batch_s,
            merge_s=self.merge_s,
        )


def measure(shape: Shape, loop: LoopConfig, *, repeats: int = 7) -> MeasuredCosts:
    """Measure the durations of a loop's steps here."""
    data = Data(shape, 20_000, 0)
    (chunks,) = data.split_evenly(1)
    few, many = 64, 4096
    turns = {
        n: _least(lambda n=n: _stepping(loop, chunks, data.start, n), repeats) for n in (few, many)
    }
    sample_s = (turns[many] - turns[few]) / (many - few)
    worker_loop = WorkerLoop(loop, seed=0, slot=0)
    worker_loop.own(chunks)
    worker_loop.begin({"centres": data.start})
    worker_loop.step()
    mail = worker_loop.message()
    shapes = loop.problem.shapes()
    post_s = _least(
        lambda: _several(200, lambda: pack_message(worker_loop.message(), shapes)), repeats
    )
    merge_s = _least(lambda: _several(200, lambda: worker_loop.merge([mail])), repeats)
    rows = None if mail.rows is None else int(mail.rows.size)
    parts = whole(chunks)

    def one_pass() -> float:
        began_s = time.thread_time()
        statistics_of(data.start, parts)
        return (time.thread_time() - began_s) / 20_000

    return MeasuredCosts(
        sample_s=sample_s,
        batch_s=max(0.0, turns[few] - few * sample_s),
        post_s=post_s,
        merge_s=merge_s,
        pass_s=_least(one_pass, repeats),
        message_bytes=HEADER_BYTES + 8 * message_values(shapes, rows),
        state_bytes=HEADER_BYTES + 8 * message_values(shapes, None),
    )


def _least(action: Callable[[], float], repeats: int) -> float:
    action()  # compiles, or loads compiled code
    return min(action() for _ in range(repeats))


def _stepping(loop: LoopConfig, chunks: Sequence[Chunk], start: F64, size: int) -> float:
    """Seconds of a batch with this many samples, on average over 16,384 samples."""
    for chunk in chunks:
        chunk.state = {}
    worker_loop = WorkerLoop(loop, seed=0, slot=0)
    worker_loop.own(chunks)
    worker_loop.begin({"centres": start})
    worker_loop.batch = size
    turns = 16_384 // size
    return _several(turns, worker_loop.step)


def _several(n: int, action: Callable[[], Any]) -> float:
    began_s = time.thread_time()
    for _ in range(n):
        action()
    return (time.thread_time() - began_s) / n


# --- runs --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Look:
    """A run at a moment: of member 1 (which the paper returns) and of the members' mean."""

    seconds: float
    error: float
    mean_error: float
    excess: float
    mean_excess: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in virtual time."""

    #: Until the last member has ended, plus a reduction where the method has one.
    seconds: float
    looks: tuple[Look, ...]
    #: Additional time of the mean over all members, where that is the result.
    reduction_s: float = 0.0
    #: Mean over members.
    samples: float = 0.0
    #: Messages merged, and those of them that the Parzen window accepted, per member.
    merged: float = 0.0
    good: float = 0.0
    posted: float = 0.0
    stalled: float = 0.0
    link_use: float = 0.0
    #: Mean b of the second half of the run.
    batch: float = 0.0

    def to(self, excess: float, *, mean: bool = False) -> float:
        """Return when the excess was reached; infinite if it was not."""
        for look in self.looks:
            if (look.mean_excess if mean else look.excess) <= excess:
                return look.seconds + (self.reduction_s if mean else 0.0)
        return math.inf


def reduction_s(taken: MeasuredCosts, link: Link, n_members: int) -> float:
    """Return the seconds of a sum over a binary tree of members."""
    depth = math.ceil(math.log2(n_members)) if n_members > 1 else 0
    return depth * (link.latency_s + taken.state_bytes / link.bytes_per_second)


def free_run(
    data: Data | None,
    loop: LoopConfig,
    taken: MeasuredCosts,
    link: Link,
    *,
    n_members: int,
    samples: float = math.inf,
    seconds: float = math.inf,
    looks: int = 0,
    seed: int = 0,
) -> Run:
    """Run members asynchronously until each has processed this many samples, or time is over.

    Parameters
    ----------
    data : Data, optional
        None: only times are computed.
    looks : int
        How often the states are evaluated on the way, at times that grow by a factor.
    """
    results: list[Look] = []
    world = World(
        costs=taken.costs(link),
        n_members=n_members,
        controller=loop.controller,
        batch=loop.batch,
        places=loop.queue,
        newest=loop.newest,
        sends=loop.sends,
        problem=None if data is None else loop.problem,
        seed=seed if data is None else data.seed,
        start=None if data is None else {"centres": data.start},
    )
    if looks:
        ideal_s = samples * taken.sample_s + samples / loop.batch * taken.batch_s
        world.looks = tuple(np.geomspace(FIRST_LOOK * ideal_s, 1.3 * ideal_s, looks))
    world.look = lambda at: results.append(_look(data, world, loop, at))
    world.prepare(None if data is None else data.split_evenly(n_members))
    world.run(samples=samples, seconds=seconds)
    if data is not None:
        results = [look for look in results if look.seconds < world.now]
        results.append(_look(data, world, loop, world.now))
    sizes = world.sizes_after(world.now / 2)
    return Run(
        seconds=world.now,
        looks=tuple(results),
        reduction_s=reduction_s(taken, link, n_members),
        samples=sum(member.processed for member in world.members) / n_members,
        merged=world.merged / n_members,
        good=world.accepted / n_members,
        posted=world.posted / n_members,
        stalled=world.stalled_s / (n_members * world.now),
        link_use=world.link_use,
        batch=float(sizes.mean()) if sizes.size else 0.0,
    )


def _look(data: Data | None, world: World, loop: LoopConfig, at: float) -> Look:
    assert data is not None
    one, mean = world.states[0]["centres"], mean_of(loop.problem, world.states)["centres"]
    return Look(
        seconds=at,
        error=data.error(one),
        mean_error=data.error(mean),
        excess=data.excess(one),
        mean_excess=data.excess(mean),
    )


def silent_run(
    data: Data,
    loop: LoopConfig,
    taken: MeasuredCosts,
    link: Link,
    *,
    n_members: int,
    samples: int,
    looks: int,
) -> Run:
    """Run SimuParallelSGD: no messages, and one reduction per result."""
    run = free_run(data, loop, taken, link, n_members=n_members, samples=samples, looks=looks)
    last_s = reduction_s(taken, link, n_members)
    some = [
        Look(
            seconds=look.seconds + last_s,
            error=look.mean_error,
            mean_error=look.mean_error,
            excess=look.mean_excess,
            mean_excess=look.mean_excess,
        )
        for look in run.looks
    ]
    return Run(seconds=run.seconds + last_s, looks=tuple(some))


@dataclass
class Lloyds:
    """BATCH's iterations on one data set: the same centres for any number of members."""

    data: Data
    #: Error and excess before the first iteration, and after each.
    found: list[tuple[float, float]] = field(default_factory=list)

    def iterate(self, iterations: int) -> None:
        """Compute this many iterations."""
        parts = whole(self.data.split_evenly(1)[0])
        centres = self.data.start
        self.found = [(self.data.error(centres), self.data.excess(centres))]
        for _ in range(iterations):
            sums = statistics_of(centres, parts, distances=False)
            centres = means_of(centres, sums.sums, sums.counts)
            self.found.append((self.data.error(centres), self.data.excess(centres)))

    def on(self, taken: MeasuredCosts, link: Link, *, n_members: int, rows: int) -> Run:
        """Return the run on this many members: a pass, a sum up, and centres down."""
        each_s = rows / n_members * taken.pass_s + 2 * reduction_s(taken, link, n_members)
        looks = tuple(
            Look(seconds=i * each_s, error=e, mean_error=e, excess=x, mean_excess=x)
            for i, (e, x) in enumerate(self.found)
        )
        return Run(seconds=looks[-1].seconds, looks=looks)


def middle(runs: Sequence[Run], what: Callable[[Run], float]) -> float:
    """Return the median over seeds."""
    return median(what(run) for run in runs)


def median_curve(runs: Sequence[Run], what: str) -> list[tuple[float, float]]:
    """Return (seconds, value): medians over seeds at the evaluations that all runs have."""
    n = min(len(run.looks) for run in runs)
    return [
        (
            median(run.looks[i].seconds for run in runs),
            median(float(getattr(run.looks[i], what)) for run in runs),
        )
        for i in range(n)
    ]
