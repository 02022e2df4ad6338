"""Time to the same suboptimality against Snap ML and LIBLINEAR, in memory, on the same threads.

    python tests/bench/cocoa_speed.py [--quick] [--sets reuters kdd rcv1] [--l2 0.01 1/n]
        [--threads 1 2] [--losses hinge] [--repeats 3] [--snap-python /tmp/snapvenv/bin/python]

Each peer runs in its own process, which first loads the data into the peer's own format for sparse
rows; then the clock starts. Snap ML and LIBLINEAR are fitted from scratch with increasing epochs
until the objective, computed outside the timed part, is close enough. elasticml makes passes of one
member's local solver with the exact line search between them; "certified" is its trainer with one
solver and a job's certificates, until the reported model is close enough. Peers take turns. The
optimum is that of a long certified run.

Snap ML needs its own environment: ``python -m venv /tmp/snapvenv && /tmp/snapvenv/bin/pip install
snapml scipy``; without it its columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

TARGETS = (1e-3, 1e-5)
EPOCHS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 55, 75, 100, 150, 200, 300, 500)
PEERS = ("elasticml", "certified", "snapml", "liblinear")
OURS = PEERS[:2]
#: Rows of the generated set: 150 million stored values.
BIG_ROWS, QUICK_ROWS = 2_050_000, 200_000


# --- the data -----------------------------------------------------------------------------------


def prepare(name, folder, rows):
    """Write a data set as arrays that every peer can load; float32 values."""
    import scipy.sparse as sp

    if name == "rcv1":
        from elasticml.data.synthetic.sparse import synthetic

        source = synthetic("rcv1", rows, dtype="float32")
        parts = [c for b in source.blocks() for c in source.read(b.index, None, 1)[0]]
        sizes = np.concatenate([np.diff(c.indptr) for c in parts])
        arrays = {
            "indptr": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            "indices": np.concatenate([c.indices for c in parts]),
            "values": np.concatenate([c.values for c in parts]),
            "labels": np.concatenate([c.labels for c in parts]),
            "columns": np.array(max(c.layout.n_columns for c in parts)),
        }
    else:
        from support.cocoa_data import kdd, reuters

        X, y = kdd(1) if name == "kdd" else reuters()
        X = sp.csr_matrix(X)
        X.sort_indices()
        arrays = {
            "indptr": X.indptr.astype(np.int64),
            "indices": X.indices.astype(np.int32),
            "values": X.data.astype(np.float32),
            "labels": np.asarray(y, np.float64),
            "columns": np.array(X.shape[1]),
        }
    for key, array in arrays.items():
        np.save(folder / f"{name}-{key}.npy", array)


class Data:
    """The arrays of a data set in memory."""

    def __init__(self, name, folder):
        for key in ("indptr", "indices", "values", "labels", "columns"):
            setattr(self, key, np.load(folder / f"{name}-{key}.npy"))
        self.n, self.d = self.labels.size, int(self.columns)

    def matrix(self):
        """Return a SciPy matrix without copying the values, with 32-bit row pointers."""
        import scipy.sparse as sp

        arrays = (self.values, self.indices, self.indptr.astype(np.int32))
        return sp.csr_matrix(arrays, shape=(self.n, self.d), copy=False)

    def objective(self, w, l2, loss):
        """Return loss and penalty in float64, block by block."""
        import scipy.sparse as sp

        total = 0.0
        for a in range(0, self.n, 100_000):
            ip = self.indptr[a : min(a + 100_000, self.n) + 1]
            part = slice(ip[0], ip[-1])
            arrays = (self.values[part].astype(np.float64), self.indices[part], ip - ip[0])
            X = sp.csr_matrix(arrays, shape=(ip.size - 1, self.d))
            m = self.labels[a : a + 100_000] * (X @ w)
            each = np.maximum(0.0, 1.0 - m) if loss == "hinge" else np.logaddexp(0.0, -m)
            total += each.sum()
        return total / self.n + 0.5 * l2 * float(w @ w)


# --- peers: each yields (epochs, seconds, model) with increasing epochs ---------------------------


def run_elasticml(data, l2, loss, threads, settings):
    """Make passes with one local solver, each followed by a line search on the dual objective."""
    from elasticml.algorithms.cocoa.chunk_pointers import Piece
    from elasticml.algorithms.cocoa.line_search import Aggregation
    from elasticml.algorithms.cocoa.local_pass import LocalSolver, warm_kernels
    from elasticml.runtime.executors import parallel as parallel_of

    chunks = chunks_of(data)
    data.indices = data.values = None  # the chunks have their own
    warm_kernels()
    parallel, weight, spent, passes = parallel_of(threads), float(data.n), 0.0, 0
    parallel.map(str, range(threads))
    started = time.perf_counter()
    pieces = [Piece(c, np.array(c.labels), None, np.zeros(c.n_rows)) for c in chunks]
    solver = LocalSolver(loss=loss, dtype="float32", intercept_scaling=None)
    solver.bind(pieces)
    v, aggregation = np.zeros(data.d), Aggregation(gamma=None)
    while True:
        v, aggregation = one_pass(solver, pieces, v, aggregation, l2, weight, passes, parallel)
        spent, passes = spent + time.perf_counter() - started, passes + 1
        yield passes, spent, v
        started = time.perf_counter()


def one_pass(solver, pieces, v, aggregation, l2, weight, serial, parallel):
    """Make a pass and a line search along its update; return model and aggregation."""
    from elasticml.algorithms.cocoa.line_search import LineModel
    from elasticml.algorithms.cocoa.local_pass import PassRequest

    before = [piece.alpha.copy() for piece in pieces]
    request = PassRequest(
        l2_total=l2 * weight,
        total_weight=weight,
        damping=aggregation.damping,
        epochs=1,
        seed=0,
        serial=serial,
    )
    update = solver.run(v, request, parallel)
    along = LineModel.of(
        v, update.dv, dual=update.dual, curvature=update.curvature, weight=weight, l2=l2
    )
    gamma = aggregation.length(along)
    if gamma < 1.0:
        for piece, old in zip(pieces, before, strict=True):
            piece.alpha[:] = old + gamma * (piece.alpha - old)
    return v + gamma * update.dv, aggregation.adapted(along, update.partitions)


def run_certified(data, l2, loss, threads, settings):
    """Train with the trainer and one solver in this process, certificates included."""
    from elasticml.algorithms.base import Exchange, Outcome, Proceed
    from elasticml.algorithms.cocoa.local_pass import warm_kernels
    from elasticml.algorithms.registry import algorithm
    from elasticml.data.chunks import products
    from elasticml.data.dataset_stats import merge_summaries, summarise
    from elasticml.ids import ExchangeId
    from elasticml.objectives import conjugates, losses
    from elasticml.protocol.events import ExchangeHeader
    from elasticml.runtime.executors import parallel as parallel_of

    chunks = chunks_of(data)
    data.indices = data.values = None  # the chunks have their own
    facts = merge_summaries([summarise(0, chunks, chunks[0].layout)])
    for module in (products, losses, conjugates):
        module.warm_kernels()
    warm_kernels()
    made, parallel = algorithm("cocoa"), parallel_of(threads)
    record = {"name": "cocoa", "loss": loss, "l2": l2, **settings}
    labels, id = np.array([1.0, -1.0]), chunks[0].id
    tiny = chunk_like(id, labels, [0, 1, 2], [0, 1], [1.0, 1.0], data.d)
    for part in ([tiny], chunks):
        # The tiny chunk comes first, so that compiling and loading kernels is not timed.
        facts = merge_summaries([summarise(0, part, part[0].layout)])
        trainer, solver = made.trainer(record, facts, "stall"), made.solver(record, facts)
        passes, rounds, spent, started, answer = 0, 0, 0.0, time.perf_counter(), None
        while rounds < 3 or part is chunks:
            try:
                item = trainer.send(answer)
            except StopIteration as stop:
                item = stop.value
            if not isinstance(item, Exchange):
                spent, rounds = spent + time.perf_counter() - started, rounds + 1
                is_over = not hasattr(item, "next_model")
                arrays = item.arrays if is_over else item.next_model
                if part is chunks:
                    yield passes, spent, np.ravel(arrays["coef"]).astype(np.float64)
                if is_over:
                    break
                answer, started = Proceed(go_on=True), time.perf_counter()
                continue
            passes += item.operation == "pass"
            work = ExchangeHeader(
                exchange=ExchangeId(passes + 1),
                operation=item.operation,
                model=item.model,
                parameters=item.parameters,
                returns=item.returns,
            )
            arrays = solver.compute(work, part, parallel)
            answer = Outcome(
                exchange=work.exchange, arrays=arrays, examples=facts.n_rows, absent_examples=0
            )


def chunk_like(id, labels, indptr, indices, values, d):
    """Return a chunk of float32 values."""
    from elasticml.data.chunks.chunk import csr_chunk

    return csr_chunk(id, labels, indptr, indices, values, d, dtype="float32")


def chunks_of(data, chunk_rows=1700):
    """Cut the data into chunks of about 1 MiB."""
    from elasticml.ids import ChunkId

    chunks = []
    for k, a in enumerate(range(0, data.n, chunk_rows)):
        ip = data.indptr[a : min(a + chunk_rows, data.n) + 1]
        part = slice(ip[0], ip[-1])
        labels = data.labels[a : a + chunk_rows]
        arrays = (labels, ip - ip[0], data.indices[part], data.values[part], data.d)
        chunks.append(chunk_like(ChunkId("bench", 0, k), *arrays))
    return chunks


def run_snapml(data, l2, loss, threads, settings):
    """Fit from scratch with increasing epochs; its regularizer is not divided by n."""
    import snapml

    X, y = data.matrix(), data.labels.astype(np.float32)
    made = snapml.SupportVectorMachine if loss == "hinge" else snapml.LogisticRegression
    extra = {"loss": "hinge"} if loss == "hinge" else {}
    for epochs in settings.get("epochs", EPOCHS):
        model = made(
            max_iter=epochs,
            regularizer=l2 * data.n,
            tol=1e-30,
            n_jobs=threads,
            fit_intercept=False,
            **extra,
        )
        started = time.perf_counter()
        model.fit(X, y)
        yield epochs, time.perf_counter() - started, np.ravel(model.coef_).astype(np.float64)


def run_liblinear(data, l2, loss, threads, settings):
    """Fit from scratch with increasing epochs; one thread only."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    warnings.simplefilter("ignore")
    X, y = data.matrix(), data.labels
    common = {"C": 1.0 / (l2 * data.n), "tol": 1e-12, "fit_intercept": False, "dual": True}
    for epochs in settings.get("epochs", EPOCHS):
        if loss == "hinge":
            model = LinearSVC(loss="hinge", max_iter=epochs, **common)
        else:
            model = LogisticRegression(solver="liblinear", max_iter=epochs, **common)
        started = time.perf_counter()
        model.fit(X, y)
        yield epochs, time.perf_counter() - started, np.ravel(model.coef_).astype(np.float64)


def be_peer(task):
    """Run one peer and print a line per attempt; stop at the last target or at the time limit."""
    folder, l2, loss = Path(task["folder"]), task["l2"], task["loss"]
    data = Data(task["set"], folder)
    reference = Data(task["set"], folder) if task["peer"] in OURS else data
    run = {
        "elasticml": run_elasticml,
        "certified": run_certified,
        "snapml": run_snapml,
        "liblinear": run_liblinear,
    }
    began = time.perf_counter()
    for epochs, seconds, w in run[task["peer"]](data, l2, loss, task["threads"], task["settings"]):
        if task.get("blind"):
            harness.report({"epochs": epochs, "s": seconds})
            if epochs >= task["settings"]["epochs"][-1]:
                return
            continue
        value = reference.objective(w, l2, loss)
        harness.report({"epochs": epochs, "s": seconds, "P": value})
        if value <= task["goal"] or time.perf_counter() - began > task["limit_s"]:
            return


# --- the comparison -----------------------------------------------------------------------------


def ask(python, task):
    """Run a peer in its own process; return its lines."""
    # We start threads ourselves: those of a linear algebra library would only compete with them.
    threads = "1" if task["peer"] in OURS else str(task["threads"])
    environment = {**os.environ, **dict.fromkeys(harness.THREADS, threads)}
    command = [python, __file__, "--peer", json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode:
        print(f"{task['peer']} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    return lines


def optimum(base, pythons):
    """Return the objective of a long run."""
    settings = {"gap_every": 5, "tolerance": 1e-9}
    task = {**base, "peer": "certified", "threads": 1, "settings": settings, "goal": -1.0}
    lines = ask(pythons["certified"], task)
    return min(line["P"] for line in lines)


def compare(base, threads, pythons, repeats):
    """Return each peer's median seconds and epochs to each target; None if it was not reached."""
    best = base["best"]
    goals = [best * (1 + target) for target in TARGETS]
    peers = [p for p in PEERS if pythons[p] and not (p == "liblinear" and threads > 1)]
    seconds = {peer: [[] for _ in TARGETS] for peer in peers}
    counts, needed = {}, {}
    for repeat in range(repeats):
        for peer in peers[repeat % len(peers) :] + peers[: repeat % len(peers)]:
            task = {**base, "peer": peer, "threads": threads, "settings": {}, "goal": goals[-1]}
            if peer in needed and peer not in OURS:
                task.update(blind=True, settings={"epochs": needed[peer]})
            lines = ask(pythons[peer], task)
            if peer not in needed:
                first = [next((x for x in lines if x["P"] <= goal), None) for goal in goals]
                needed[peer] = sorted({x["epochs"] for x in first if x}) or [1]
                counts[peer] = [x["epochs"] if x else None for x in first]
            for k, count in enumerate(counts[peer]):
                seconds[peer][k] += [x["s"] for x in lines if x["epochs"] == count][:1]
    return {
        peer: [
            (median(times), count) if times else (None, None)
            for times, count in zip(seconds[peer], counts[peer], strict=True)
        ]
        for peer in peers
    }


def table(args):
    """Print seconds and ratios for every set, penalty, loss and number of threads."""
    pythons = {**dict.fromkeys(PEERS, sys.executable), "snapml": None}
    if Path(args.snap_python).exists():
        pythons["snapml"] = args.snap_python
    else:
        print(f"no Snap ML: {args.snap_python} is absent; see --help", file=sys.stderr)
    peers = ("elasticml s (passes)", "certified", "Snap ML (epochs)", "LIBLINEAR (epochs)")
    harness.head("set", "loss", "l2", "threads", "to", *peers, "/ Snap ML", "LIBLINEAR /")
    if args.scratch:
        Path(args.scratch).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        for name in args.sets:
            prepare(name, Path(folder), QUICK_ROWS if args.quick else BIG_ROWS)
            n = np.load(Path(folder) / f"{name}-labels.npy", mmap_mode="r").size
            for loss in args.losses:
                for text in args.l2:
                    l2 = 1.0 / n if text == "1/n" else float(text)
                    base = {"set": name, "folder": folder, "loss": loss, "l2": l2}
                    base["limit_s"] = args.limit_s
                    base["best"] = optimum(base, pythons)
                    for threads in args.threads:
                        results = compare(dict(base), threads, pythons, args.repeats)
                        show(name, loss, text, threads, results)
            for file in Path(folder).glob(f"{name}-*"):
                file.unlink()


def show(name, loss, l2, threads, results):
    """Print one line per target."""
    for k, target in enumerate(TARGETS):
        reached = [results.get(peer, [(None, None)] * len(TARGETS))[k] for peer in PEERS]
        cells = ["-" if x is None else f"{x:.3g} ({count})" for x, count in reached]
        ours, _, snap, lib = (x for x, _ in reached)
        ratio = f"{ours / snap:.2f}" if ours and snap else "-"
        times = f"{lib / ours:.1f}" if ours and lib else "-"
        harness.row(name, loss, l2, threads, f"{target:g}", *cells, ratio, times)


def main():
    """Read the options; run one peer, or compare all of them."""
    parser = harness.parser(__doc__)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the generated rows")
    parser.add_argument("--sets", nargs="+", default=["reuters", "kdd", "rcv1"])
    parser.add_argument("--losses", nargs="+", default=["hinge"])
    parser.add_argument("--l2", nargs="+", default=["0.01", "1/n"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=120.0)
    parser.add_argument("--scratch", help="folder for the arrays; 1.3 GB")
    parser.add_argument("--snap-python", default="/tmp/snapvenv/bin/python")
    args = parser.parse_args()
    if args.peer:
        be_peer(json.loads(args.peer))
    else:
        table(args)


if __name__ == "__main__":
    main()
