"""Figure 1 of the resource-elastic paper, on real worker processes.

    python examples/papers/resource_elastic.py [--data human celegans a9a w8a] [--quick]

14 members train by batch gradient descent with Armijo's line search; 7 of them are killed (SIGKILL)
in round 100 and 7 return in round 200 of 300. For every data set and lambda one cluster runs all
absent rules: no failure, stall, ignore, ignore_rescaled, taylor, and taylor as the paper writes it
(correction exchange and roll-back). Prints the objective over all examples and the test AUPRC at
five rounds beside an earlier study's figures, the gap to the optimum relative to the undisturbed
run's, and whether the expectations hold; writes them to ``figures.json`` and ``tables.md``, and a
plot for each experiment. Exits with status 1 if an expectation is missed.

lambda is that of the paper's equation (1), a sum over examples: ``l2`` of a job is lambda / n.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import minimize
from support.elastic_comparison import Plan, Study, judge, markdown, tables
from support.sequences import read_sequences

import elasticml as em
from elasticml.cli.cluster import quieten
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.source import Source, load_all
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.evaluation.scoring import scores_here
from elasticml.jobs.progress_bar import ProgressBar
from elasticml.jobs.run_directory import RunDirectory, json_safe
from elasticml.report.overlay_page import write_overlay
from elasticml.report.style import write_whole

DATA = Path(os.environ.get("ELASTICML_DATA") or Path(__file__).parents[3] / "shared" / "data")
#: The lambda at which the study compares test AUPRCs; at a smaller one the model over-fits.
RANKED_AT = 100.0
#: A treatment of absence: the absent rule (None: no member is killed), and settings.
MODES: dict[str, tuple[Any, dict[str, Any]]] = {
    "no failure": (None, {}),
    "stall": ("stall", {}),
    "ignore": ("ignore", {}),
    "ignore_rescaled": ("ignore_rescaled", {}),
    "taylor": ("taylor", {"mode": "paper", "roll_back": 0}),
    "taylor (paper)": ("taylor", {"mode": "paper", "anchor": "correction"}),
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Training and test data and a penalty."""

    name: str
    train: Source
    test: Source | None
    #: The paper's lambda.
    penalty: float

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return f"{self.name}-lambda-{self.penalty:g}"


# --- data --------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[bytes]:
    """Read the lines of a compressed text file, without their ends and without blank ones."""
    decompress = {".bz2": bz2.decompress, ".gz": gzip.decompress, ".xz": lzma.decompress}
    lines = decompress[path.suffix](path.read_bytes()).splitlines()
    return [line.rstrip() for line in lines if line.strip()]


def shuffled(
    path: Path, folder: Path, seed: int, *, stop: int | None = None, record: int = 1,
    more: bytes = b"",
) -> list[str]:  # fmt: skip
    """Write a file's records in random order, once: members own stretches of the file.

    ``stop`` splits them into two files; ``record`` is the number of lines of one; ``more`` is added
    to every line. The order is that of ``np.random.default_rng(seed).permutation(n)``; with seed 0
    the C. elegans training examples are the study's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem, kind = path.name.split(".", 1)[0], path.name.split(".")[-2]
    parts = [folder / f"{stem}-{part}-{seed}.{kind}" for part in ("train", "rest")]
    parts = parts if stop is not None else parts[:1]
    if not all(part.exists() for part in parts):
        lines = [line + more + b"\n" for line in lines_of(path)]
        records = [b"".join(lines[i : i + record]) for i in range(0, len(lines), record)]
        order = np.random.default_rng(seed).permutation(len(records))
        for part, rows in zip(parts, np.split(order, [stop or len(order)]), strict=False):
            write_whole(part, b"".join(records[row] for row in rows))
    return [str(part) for part in parts]


def human(folder: Path, seed: int) -> tuple[Source, Source | None]:
    """280,632 human donor sites to train, 46,688 features; vertebrate ones to test."""
    (train,) = shuffled(DATA / "human_splice" / "train_kulp_reese_donor.tsv.xz", folder, seed)
    test = DATA / "human_splice" / "test_burset_guigo_nonoverlap_donor.tsv.xz"
    return read_sequences(train), read_sequences(str(test))


def celegans(folder: Path, seed: int) -> tuple[Source, Source | None]:
    """70,000 acceptor sites to train, 30,000 to test: 141 letters, 47,028 features."""
    path = DATA / "celegans_acceptor" / "C_elegans_acc_100000.fasta.bz2"
    train, test = shuffled(path, folder, seed, stop=70_000, record=2)
    window = [128, 269]
    return read_sequences(train, window=window), read_sequences(test, window=window)


def a9a(folder: Path, seed: int) -> tuple[Source, Source | None]:
    """32,561 incomes of adults, 123 features and a bias, which is penalised like any other."""
    (train,) = shuffled(DATA / "a9a" / "a9a.svm.gz", folder, seed, more=b" 124:1")
    (test,) = shuffled(DATA / "a9a" / "a9a.t.svm.gz", folder / "test", seed, more=b" 124:1")
    return em.read_svmlight(train), em.read_svmlight(test)


def w8a(folder: Path, seed: int) -> tuple[Source, Source | None]:
    """49,749 web pages, 300 features and a bias; no test data."""
    (train,) = shuffled(DATA / "w8a" / "w8a.svm.gz", folder, seed, more=b" 301:1")
    return em.read_svmlight(train), None


def tiny() -> tuple[Source, Source | None]:
    """Synthetic splice sites, for a quick look."""
    train, test = (
        synthetic_splice(rows, seed=seed, length=30, positive_share=0.1)
        for rows, seed in ((2000, 1), (1000, 2))
    )
    return train, test


#: How to get the data, and the lambdas of the study.
PROBLEMS: dict[
    str, tuple[Callable[[Path, int], tuple[Source, Source | None]], tuple[float, ...]]
] = {
    "human": (human, (100.0,)),
    "celegans": (celegans, (100.0, 1.0)),
    "a9a": (a9a, (1.0,)),
    "w8a": (w8a, (1.0,)),
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What all runs of an experiment share."""

    n: int
    d: int
    n_positive: int
    #: Minimum of the objective.
    optimum: float


def facts_of(experiment: Experiment) -> Facts:
    """Count the training data and find the optimum by SciPy's L-BFGS, in this process."""
    chunks = load_all(experiment.train)
    layout, n = chunks[0].layout, sum(chunk.n_rows for chunk in chunks)
    d = max(chunk.layout.n_columns for chunk in chunks)
    targets = [np.where(chunk.labels > 0, 1.0, -1.0) for chunk in chunks]

    def value_and_gradient(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        forward = make_forward(layout, w)
        adjoint, value, gradient = make_adjoint(layout, d), 0.0, np.zeros(d)
        for chunk, y in zip(chunks, targets, strict=True):
            margins = np.empty(chunk.n_rows)
            forward(chunk, margins)
            value += float(np.logaddexp(0.0, -y * margins).sum())
            slopes = -y / (1.0 + np.exp(y * margins))
            adjoint.add(chunk, slopes)
        adjoint.result(gradient)
        gradient += experiment.penalty * w
        return (value + 0.5 * experiment.penalty * float(w @ w)) / n, gradient / n

    options = {"maxiter": 5000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10, "maxfun": 20_000}
    result = minimize(value_and_gradient, np.zeros(d), jac=True, method="L-BFGS-B", options=options)
    positive = sum(int((y > 0).sum()) for y in targets)
    return Facts(n=n, d=d, n_positive=positive, optimum=float(result.fun))


# --- runs --------------------------------------------------------------------------------------


def run(
    experiment: Experiment, mode: str, plan: Plan, facts: Facts, cluster: em.LocalCluster,
    client: Client, folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """Run one job; return its figures by round and its record of the members."""
    absent, settings = MODES[mode]
    job = em.Job(
        em.BatchGradient(
            optimizer="gd",
            l2=experiment.penalty / facts.n,
            intercept=False,
            tolerance=0.0,
            **settings,
            scale="none",
        ),
        experiment.train,
        test=experiment.test,
        name=f"{experiment.folder} {mode}",
        absent=absent or "taylor",
        stop=em.Stop(rounds=plan.rounds),
        faults=plan.faults if absent else (),
        members=em.settings.Members(start=plan.members),
        evaluate=em.settings.Evaluate(every=10, rounds=(*plan.shown, plan.back_at)),
    )
    directory = folder / mode.replace(" ", "-").replace("(", "").replace(")", "")
    if (directory / "story.jsonl").is_file():
        shutil.rmtree(directory)
    before, started_s = pids_of(cluster), time.monotonic()
    handle = job.start(client)
    with ProgressBar(Console(stderr=True), label=f"{experiment.folder} {mode:<15}") as progress:
        result = handle.result(run_dir=directory, callbacks=[progress], cancels=True)
    handle.forget()
    last = int(result.history[-1]["round"])
    models = {r: model for r, model in result.kept.items() if r < last} | {last: result.arrays}
    scored = over_all_examples(experiment, models, facts, result.job["algorithm"])
    for row in result.history:
        if row["round"] in scored:
            row["objective_full"] = scored[row["round"]]["objective"]
            row["test_average_precision"] = scored[row["round"]]["auprc"]
    result.write(RunDirectory(directory))
    return {
        "run_dir": str(directory),
        "seconds": time.monotonic() - started_s,
        "job_seconds": result.summary.get("seconds"),
        "rounds": scored,
        "members": members_of(result.story, before, pids_of(cluster)),
    }


def over_all_examples(
    experiment: Experiment, models: Mapping[int, Any], facts: Facts, section: Mapping[str, Any]
) -> dict[int, dict[str, float | None]]:
    """Return the objective and the test score of models, over the examples of lost members, too."""
    of_data = merge_summaries(
        [experiment.train.survey(block.index) for block in experiment.train.blocks()]
    )
    parts = (section, of_data, list(models.values()))
    losses = scores_here(*parts, experiment.train, ["neg_log_loss"])
    scored: dict[int, dict[str, float | None]] = {}
    for (r, model), loss in zip(models.items(), losses, strict=True):
        penalty = 0.5 * experiment.penalty / facts.n * float((model["coef"] ** 2).sum())
        scored[r] = {"objective": penalty - float(loss["neg_log_loss"] or 0.0), "auprc": None}
    if experiment.test is not None:
        ranks = scores_here(*parts, experiment.test, ["average_precision"])
        for one, rank in zip(scored.values(), ranks, strict=True):
            one["auprc"] = rank["average_precision"]
    return scored


def pids_of(cluster: em.LocalCluster) -> dict[str, int]:
    """Return the process ids of the running workers, by name."""
    results = {worker.name: worker.pid for worker in cluster.workers() if worker.state == "running"}
    return {name: pid for name, pid in results.items() if pid is not None}


def members_of(
    story: Iterable[Mapping[str, Any]], before: Mapping[str, int], after: Mapping[str, int]
) -> dict[str, Any]:
    """Read which members were present, lost and returned, with process ids.

    ``before`` and ``after``: the cluster's workers at the run's start and end.
    """
    joined: dict[str, int] = {}
    lost: list[tuple[str, int, str]] = []
    started = 0
    for record in story:
        if record["event"] == "MemberJoined":
            joined[record["member"]] = record["pid"]
        elif record["event"] == "MemberLost":
            lost.append((record["member"], record["round"], record["reason"]))
        elif record["event"] == "RoundStarted" and record["round"] == 0:
            started = len(joined)
    absent = {member for member, _, _ in lost}
    kept = {m: pid for m, pid in joined.items() if pid in before.values() and m not in absent}
    return {
        "started": started,
        "lost": lost,
        "returned": len(joined) - started,
        "kept": kept,
        "running_at_end": {m: pid for m, pid in joined.items() if pid in after.values()},
    }


# --- the study ---------------------------------------------------------------------------------


def study(
    experiment: Experiment, modes: Sequence[str], plan: Plan, cluster: em.LocalCluster,
    client: Client, out: Path,
) -> tuple[dict[str, Any], str, bool]:  # fmt: skip
    """Run an experiment in all modes; return figures, tables, and whether expectations hold."""
    facts, folder = facts_of(experiment), out / experiment.folder
    runs = {mode: run(experiment, mode, plan, facts, cluster, client, folder) for mode in modes}
    page = write_overlay([runs[mode]["run_dir"] for mode in modes], modes, folder / "overlay.html")
    known = Study.of(experiment.name, experiment.penalty, plan)
    ranks = experiment.test is not None and experiment.penalty == RANKED_AT
    verdicts = judge(runs, facts.optimum, plan, ranks=ranks)
    head = (
        f"## {experiment.name}, lambda = {experiment.penalty:g}\n\n"
        f"{facts.n} examples ({facts.n_positive} positive), {facts.d} features; f\\*/n = "
        f"{facts.optimum:.6f}"
        + ("" if math.isnan(known.optimum) else f" (study: {known.optimum:.6f})")
        + ".\n"
    )
    text = tables(runs, facts.optimum, plan, known, test=experiment.test is not None)
    judged = markdown(
        ["expected", "measured", "holds"],
        [(v.text, v.measured, "yes" if v.holds else "**no**") for v in verdicts],
    )
    figures = {
        "data": experiment.name,
        "lambda": experiment.penalty,
        "l2": experiment.penalty / facts.n,
        "n": facts.n,
        "d": facts.d,
        "positive": facts.n_positive,
        "optimum": facts.optimum,
        "study": asdict(known),
        "runs": runs,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "picture": str(page.with_name("overlay.png")),
    }
    return figures, "\n".join([head, text, judged]), all(v.holds for v in verdicts)


def experiments_of(arguments: argparse.Namespace, out: Path) -> list[Experiment]:
    """List the experiments that the command line selects."""
    if arguments.quick:
        train, test = tiny()
        return [Experiment(name="tiny", train=train, test=test, penalty=6.0)]
    names = ["human", "celegans"] if "all" in arguments.data else arguments.data
    results: list[Experiment] = []
    for name in names:
        load, penalties = PROBLEMS[name]
        train, test = load(out / "data", arguments.seed)
        results += [
            Experiment(name=name, train=train, test=test, penalty=penalty)
            for penalty in arguments.penalty or penalties
        ]
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", nargs="+", default=["all"], choices=[*PROBLEMS, "all"])
    parser.add_argument(
        "--lambda", dest="penalty", nargs="+", type=float, help="of a sum-form loss"
    )
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--rounds", type=int, default=300, help="more, to see where it ends")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the examples")
    parser.add_argument("--out", type=Path, default=Path("runs/resource-elastic"))
    parser.add_argument("--quick", action="store_true", help="4 members, 30 rounds, tiny data")
    arguments = parser.parse_args(argv)
    plan = Plan(rounds=arguments.rounds)
    if arguments.quick:
        plan = Plan(members=4, lost_at=10, back_at=20, rounds=30)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    quieten(verbose=False)
    figures, values, holds = [], [], True
    with em.LocalCluster(plan.members) as cluster, Client(cluster) as client:
        for experiment in experiments_of(arguments, out):
            some, text, fine = study(experiment, arguments.modes, plan, cluster, client, out)
            print(text, flush=True)
            figures.append(some)
            values.append(text)
            holds = holds and fine
            content = json.dumps(json_safe(figures), indent=1)
            write_whole(out / "figures.json", (content + "\n").encode())
            write_whole(out / "tables.md", "\n".join(values).encode())
    return 0 if holds or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
