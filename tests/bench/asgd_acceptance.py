"""Acceptance of asynchronous SGD, item by item: merges, batch sizes and controllers.

    python tests/bench/asgd_acceptance.py [item ...] [--seeds 10]

Items 1 to 7: one pass of few members, many members, real data, sorted labels, controllers, run time
against the batch size, and members that leave and return. All items except 3 run in virtual time
with the costs of ``examples/papers/support/nic_model.py`` and the real arithmetic; medians over
seeds; each has its own data, start and random choices. "Excess" is inertia over that at the true
centres, in percent; ratios of two excesses have an additional tolerance of 0.1 points, because both
may be near zero.
"""

from __future__ import annotations

import sys
import time
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from elasticml.algorithms.async_sgd.kmeans import KMeans, inertia
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.algorithms.async_sgd.paper import PaperKMeans
from elasticml.algorithms.async_sgd.seeding import plus_plus, start
from elasticml.algorithms.async_sgd.seeding_ops import run_locally
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.data.synthetic.clusters import synthetic_clusters
from elasticml.ids import ChunkId
from examples.papers.support.asgd_reference import simu_parallel
from examples.papers.support.nic_model import (
    GIGABIT,
    INFINIBAND,
    LARGE_S,
    SMALL_S,
    Costs,
    World,
    critical_batch,
    replay,
    state_bytes,
)
from tests.bench import harness
from tests.bench.kmeans_data import birch1, hog

ROWS, EVALUATED, APART = 100_000, 4000, 0.8


def row(item, what, wanted, found, holds):
    """Print one line of the table."""
    print(f"{item} | {what} | {wanted} | {found} | {'yes' if holds else '**no**'}", flush=True)


@cache
def clusters(seed, d=10, k=10, spread=0.15, rows=ROWS):
    """Rows, labels and true centres of one seed."""
    # Far enough apart that one minimum is clearly the best: otherwise the choice of minimum would
    # dominate the figures.
    source = synthetic_clusters(
        rows, columns=d, clusters=k, spread=spread, min_distance=APART, problem=seed
    )
    chunks = [c for b in source.blocks() for c in source.read(b.index, 2**20, 1)[0]]
    X, y = (np.concatenate([getattr(c, name) for c in chunks]) for name in ("values", "labels"))
    return X, y, source.centres()


def chunks_by_member(X, n_members, order=None, each=1):
    """Return the members' chunks: rows in the given order, in equal stretches."""
    order = np.arange(len(X)) if order is None else order
    parts = np.array_split(order, n_members * each)
    chunks = [
        dense_chunk(ChunkId("rows", i, 0), np.zeros(len(part)), X[part])
        for i, part in enumerate(parts)
    ]
    return [chunks[i * each : (i + 1) * each] for i in range(n_members)]


def seeded_start(X, k, rows, seed):
    """Return k-means++ centres of this many rows."""
    rng = np.random.default_rng([11, seed])
    some = X[rng.choice(len(X), min(len(X), rows), replace=False)]
    return {"centres": plus_plus(some, np.ones(len(some)), k, rng)}


class ExcessJudge:
    """Percent of inertia over that at the true centres, on a sample of the rows."""

    def __init__(self, X, truth):
        # From all members: the first rows belong to the first members.
        some = X[np.random.default_rng(0).choice(len(X), EVALUATED, replace=False)]
        self._rows = [dense_chunk(ChunkId("judge", 0, 0), np.zeros(EVALUATED), some)]
        self._best = inertia(truth, self._rows)

    def __call__(self, state):
        return 100.0 * (inertia(state["centres"], self._rows) / self._best - 1.0)


def small_world(problem, start_at, n_members, seed, *, link=INFINIBAND, batch, **more):
    """Members with D = K = 10 and one slot for the newest state."""
    costs = Costs(link, more.pop("seconds_per_sample", SMALL_S), state_bytes(10, 10))
    return World(
        costs=costs,
        n_members=n_members,
        controller=Fixed,
        batch=batch,
        places=more.pop("places", 1),
        newest=more.pop("newest", True),
        problem=problem,
        seed=seed,
        start=start_at,
        **more,
    )


def literal_world(start_at, n_members, seed, *, batch, **more):
    """The paper's rule and queue."""
    problem = PaperKMeans(clusters=10, columns=10)
    more = {"places": 16, "newest": False, **more}
    return small_world(problem, start_at, n_members, seed, batch=batch, **more)


STAT = KMeans(clusters=10, columns=10)


def one_pass(seeds):
    """Item 1: D = K = 10, 8 members, one pass."""
    results = {"stat": [], "paper": [], "same": []}
    for seed in range(seeds):
        X, _, truth = clusters(seed)
        reference, start_at = ExcessJudge(X, truth), seeded_start(X, 10, 200, seed)
        run = (
            small_world(STAT, start_at, 8, seed, batch=250)
            .prepare(chunks_by_member(X, 8))
            .run(passes=1)
        )
        results["stat"].append(reference(run.states[0]))
        literal = (
            literal_world(start_at, 8, seed, batch=250)
            .prepare(chunks_by_member(X, 8))
            .run(passes=1)
        )
        results["paper"].append(reference(literal.problem.mean(literal.states)))
        quiet = small_world(STAT, start_at, 8, seed, batch=250, sends=0).prepare(
            chunks_by_member(X, 8)
        )
        alone = simu_parallel(STAT, start_at, chunks_by_member(X, 8), batch=250, seed=seed)
        results["same"].append(
            all(
                np.array_equal(one[name], other[name])
                for one, other in zip(alone, quiet.run(passes=1).states, strict=True)
                for name in one
            )
        )
    stat, paper = np.median(results["stat"]), np.median(results["paper"])
    row(1, "n=8, one pass, masses: excess of member 0", "<= 0.5 %", f"{stat:.2f} %", stat <= 0.5)
    row(1, "the paper's rule: excess of the mean", "<= 1 %", f"{paper:.2f} %", paper <= 1.0)
    same = f"{sum(results['same'])} of {seeds} equal"
    row(1, "no messages: SimuParallelSGD bit for bit", "all", same, all(results["same"]))


def many_members(seeds):
    """Item 2: 64 members, one pass."""
    sent, alone, means, papers = [], [], [], []
    for seed in range(seeds):
        X, _, truth = clusters(seed)
        reference, start_at = ExcessJudge(X, truth), seeded_start(X, 10, 200, seed)
        run = (
            small_world(STAT, start_at, 64, seed, batch=100)
            .prepare(chunks_by_member(X, 64))
            .run(passes=1)
        )
        quiet = simu_parallel(STAT, start_at, chunks_by_member(X, 64), batch=100, seed=seed)
        sent.append(reference(run.states[0]))
        means.append(reference(STAT.mean(run.states)))
        alone.append(reference(quiet[0]))
        literal = (
            literal_world(start_at, 64, seed, batch=100)
            .prepare(chunks_by_member(X, 64))
            .run(passes=1)
        )
        of_all = literal.problem.mean(literal.states)
        papers.append(
            (reference(literal.states[0]), reference(of_all), literal.accepted / literal.merged)
        )
    m0, none, mean = np.median(sent), np.median(alone), np.median(means)
    what = f"{m0:.2f} % against {none:.2f} %"
    row(2, "n=64, masses: member 0 against no messages", "<= half", what, m0 <= 0.5 * none)
    gain = np.median(np.array(sent) - np.array(means))
    row(2, "member 0 less the mean", "<= 0.5 points", f"{gain:.2f} (mean {mean:.2f})", gain <= 0.5)
    one, of_all, share = np.median(np.array(papers), axis=0)
    result = f"{one:.2f} %, {of_all:.2f} %; {share:.2f}"
    row(2, "the paper's rule: member 0, mean; messages accepted", "", result, True)


def real_data(seeds):
    """Item 3: against scikit-learn's MiniBatchKMeans."""
    from sklearn.cluster import MiniBatchKMeans

    for name, X, k, passes, hows in (
        ("hog", hog(), 100, 1, ("kmeans++", "kmeans||")),
        ("birch1", birch1(), 100, 5, ("kmeans++",)),
    ):
        reference = [dense_chunk(ChunkId(name, 0, 0), np.zeros(len(X)), X)]
        theirs = [
            MiniBatchKMeans(k, random_state=seed, n_init=1, compute_labels=False).fit(X)
            for seed in range(seeds)
        ]
        them = np.median([inertia(model.cluster_centers_, reference) for model in theirs])
        for how in hows:
            ours = []
            for seed in range(seeds):
                members = chunks_by_member(X, 8, np.random.default_rng(seed).permutation(len(X)))
                chunks = [chunk for some in members for chunk in some]
                start_at = run_locally(
                    start(
                        how,
                        clusters=k,
                        columns=X.shape[1],
                        n_rows=len(X),
                        n_blocks=8,
                        seed=seed,
                    ),
                    chunks,
                )
                problem = KMeans(clusters=k, columns=X.shape[1])
                world = World(
                    costs=Costs(INFINIBAND, 2e-6, state_bytes(k, X.shape[1])),
                    n_members=8,
                    controller=Fixed,
                    batch=300,
                    places=1,
                    newest=True,
                    problem=problem,
                    seed=seed,
                    start=start_at,
                )
                run = world.prepare(members).run(passes=passes)
                ours.append(inertia(run.states[0]["centres"], reference))
            over = 100.0 * (np.median(ours) / them - 1.0)
            what = f"{name}, k=100, {how}, {passes} pass{'es' * (passes > 1)}: over MiniBatchKMeans"
            row(3, what, "<= 1 %", f"{over:+.2f} %", over <= 1.0)


def rows_by_label(X, y):
    """Give every member rows of as few labels as possible."""
    return chunks_by_member(X, 16, np.argsort(y, kind="stable"))


def sorted_labels(seeds):
    """Item 4: chunks sorted by label, 16 members, Gigabit Ethernet, 1 s."""
    results = {"iid": [], "sorted": [], "paper": []}
    slow = {"link": GIGABIT, "seconds_per_sample": LARGE_S, "batch": 200}
    for seed in range(seeds):
        X, y, truth = clusters(seed)
        reference, start_at = ExcessJudge(X, truth), seeded_start(X, 10, 200, seed)
        for name, members in (("iid", chunks_by_member(X, 16)), ("sorted", rows_by_label(X, y))):
            run = small_world(STAT, start_at, 16, seed, **slow).prepare(members).run(seconds=1.0)
            results[name].append(reference(run.states[0]))
        literal = literal_world(start_at, 16, seed, **slow).prepare(rows_by_label(X, y))
        results["paper"].append(reference(literal.run(seconds=1.0).states[0]))
    iid, ours, paper = (np.median(results[name]) for name in ("iid", "sorted", "paper"))
    what = f"{ours:.2f} % against {iid:.2f} %"
    row(
        4,
        "sorted labels, masses: member 0 against shuffled",
        "<= 1.2 x",
        what,
        ours <= 1.2 * iid + 0.1,
    )
    fails = paper > 1.2 * iid + 0.1
    row(4, "the paper's rule fails it", "> 1.2 x", f"{paper:.1f} %", fails)


def controllers(_):
    """Item 5: sizes of mini-batches on Gigabit Ethernet; no arithmetic, random peers only."""
    for share, name in ((1.0, "GbE"), (0.1, "GbE/10")):
        costs = Costs(GIGABIT.scaled(share), LARGE_S, state_bytes(100, 100))
        run = replay(costs, lambda: LogPI(places=2), batch=1000, places=2, seconds=10.0)
        sizes = run.sizes_after(5.0)
        off, cv = np.mean(sizes) / critical_batch(costs) - 1.0, np.std(sizes) / np.mean(sizes)
        result = f"{off:+.3f}, cv {cv:.3f}, link {run.link_use:.2f}"
        row(
            5,
            f"{name}: log-PI's b over b_crit, less 1",
            "<= 0.1, cv <= 0.1",
            result,
            abs(off) <= 0.1 and cv <= 0.1,
        )
    costs = Costs(GIGABIT, LARGE_S, state_bytes(100, 100))
    for gamma in (10.0, 50.0):
        run = replay(costs, lambda g=gamma: AdaptiveB(gamma=g), batch=1000, places=16, seconds=10.0)
        sizes = run.sizes_after(5.0)
        cv = np.std(sizes) / np.mean(sizes)
        off = np.mean(sizes) / critical_batch(costs)
        expected = "cv > 0.3" if gamma == 50.0 else "(no limit)"
        result = f"b/b_crit {off:.2f}, cv {cv:.2f}"
        row(5, f"GbE: adaptiveB, gamma {gamma:g}", expected, result, cv > 0.3 or gamma != 50.0)
    run = replay(costs, Fixed, batch=300, places=1, seconds=10.0, newest=True)
    result = f"{run.link_use:.3f}, stall {run.stalled_s:g} s, queue {run.queue_max}"
    holds = run.link_use >= 0.98 and run.stalled_s == 0.0 and run.queue_max <= 1
    row(5, "GbE: one slot, b=300", "use >= .98, stall 0, queue <= 1", result, holds)


def run_time(_):
    """Item 6: 64 members, 10,000 samples each, D = K = 100."""
    for link, name, expected in ((GIGABIT, "GbE", ">= 20"), (INFINIBAND, "IB", "<= 3")):
        costs = Costs(link, LARGE_S, state_bytes(100, 100))
        times = {}
        for b in (
            10,
            max(1, round(critical_batch(Costs(GIGABIT, LARGE_S, state_bytes(100, 100))))),
        ):
            world = World(costs=costs, n_members=64, controller=Fixed, batch=b)
            times[b] = world.prepare().run(samples=10_000).now
        ratio = times[10] / min(times.values())
        holds = ratio >= 20 if name == "GbE" else ratio <= 3
        row(6, f"{name}: run time at b=10 over b=b_crit", expected, f"{ratio:.1f}", holds)


def churn(seeds):
    """Item 7: 10 % of 16 members lost every 100 ms; evaluated a mini-batch after the last
    return.
    """
    results = {"none": [], "peer": [], "w0": []}
    losses = []
    slow = {"link": GIGABIT, "seconds_per_sample": LARGE_S, "batch": 200}
    for seed in range(seeds):
        X, _, truth = clusters(seed)
        reference, start_at = ExcessJudge(X, truth), seeded_start(X, 10, 200, seed)
        for name in results:
            more = {} if name == "none" else {"churn": 0.1, "newcomer": name}
            world = small_world(STAT, start_at, 16, seed, **slow, **more).prepare(
                chunks_by_member(X, 16)
            )
            # Later nothing would be visible: the first message makes up for a newcomer's lack.
            run = world.run(seconds=0.9012)
            results[name].append(max(reference(state) for state in run.states))
            losses += [run.losses] if name == "peer" else []
    none, peer, w0 = (np.median(results[name]) for name in ("none", "peer", "w0"))
    what = f"{peer:.2f} % against {none:.2f} % ({np.median(losses):.0f} losses)"
    row(
        7,
        "newcomers from a peer: worst member against none lost",
        "<= 1.05 x",
        what,
        peer <= 1.05 * none + 0.1,
    )
    row(7, "newcomers from w0: worst member", "", f"{w0:.2f} %", True)


def batch_baseline(seeds):
    """Besides: BATCH, the excess after its iterations, on the data of item 1."""
    after = {1: [], 2: [], 4: []}
    for seed in range(seeds):
        X, _, truth = clusters(seed)
        reference, chunks = ExcessJudge(X, truth), chunks_by_member(X, 1)[0]
        for passes, some in after.items():
            result = run_locally(lloyd(seeded_start(X, 10, 200, seed)["centres"], passes), chunks)
            some.append(reference(result))
    result = ", ".join(f"{np.median(some):.2f}" for some in after.values())
    row("-", "BATCH after 1, 2, 4 iterations", "", f"{result} %", True)


ITEMS = {
    "1": one_pass,
    "2": many_members,
    "3": real_data,
    "4": sorted_labels,
    "5": controllers,
    "6": run_time,
    "7": churn,
    "batch": batch_baseline,
}


def main():
    """Print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("items", nargs="*", default=list(ITEMS), help=f"of {', '.join(ITEMS)}")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    print("item | what | wanted | found | holds")
    print("---|---|---|---|---")
    for item in options.items:
        began = time.perf_counter()
        ITEMS[item](options.seeds)
        print(f"  | {time.perf_counter() - began:.0f} s | | |", flush=True)


if __name__ == "__main__":
    main()
