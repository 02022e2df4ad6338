"""Run elasticml under kills: a local cluster of four workers, defaults besides the problem itself.

``--task network``: local SGD, 16 steps of 32 examples a round; the module counts the examples that
it is given. ``--task linear``: logistic regression by L-BFGS (``batch_gradient``). ``--absent`` is
the job's rule for the examples of killed members.

``--way elastic``: the job goes on. ``--way restart``: the same job as one that cannot lose a
member: at a kill all of its processes are killed, and when all four workers are allowed again they
start again from the job's checkpoint, which is written every second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers import goodput_run
from tests.bench.peers.goodput_run import (
    BATCH,
    IMAGES,
    L2,
    MOMENTUM,
    PIXELS,
    RATE,
    ROWS,
    WORKERS,
    Run,
    kill_tree,
)

#: What the workers of a task import before they are forked.
ALGORITHMS = {"network": ["local_sgd"], "linear": ["batch_gradient"]}


def counting_cnn() -> Any:
    """Return the CNN for images with their number in a further column, which it logs."""
    import torch

    from elasticml.algorithms.local_sgd.module_factory import cnn

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = cnn()
            self.seen: goodput_run.Seen | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and torch.is_grad_enabled():
                if self.seen is None:
                    self.seen = goodput_run.Seen(Path(os.environ["GOODPUT_FOLDER"]))
                numbers = (x[:, 784].double() * PIXELS[1] + PIXELS[0]).round()
                self.seen.add(-1, -1, numbers.numpy())
            return self.network(x[:, :784].reshape(-1, 1, 28, 28))

    return Counting()


def source_of(run: Run) -> Any:
    """Return the data."""
    import elasticml as em

    if run.arguments.task != "network":
        return em.read_parquet(str(run.data / "linear" / "train.parquet"), "y", dtype="float32")
    images, numbers = np.load(run.data / "images.npy"), np.arange(IMAGES, dtype=np.float32)
    return em.from_arrays(
        np.column_stack([images, numbers]), np.load(run.data / "labels.npy"), dtype="float32"
    )


def job_of(run: Run) -> Any:
    """Return the job."""
    import elasticml as em

    algorithms = {
        "network": lambda: em.LocalSGD(
            model=f"{__package__ or 'tests.bench.peers'}.goodput_elasticml:counting_cnn",
            shape=(785,),
            batch=BATCH,
            learning_rate=RATE,
            momentum=MOMENTUM,
            normalize=PIXELS,
        ),
        "linear": lambda: em.BatchGradient(loss="logistic", l2=L2, tolerance=0.0, scale="none"),
    }
    checkpoint = {}
    if run.arguments.way == "restart":
        checkpoint = {
            "checkpoint": em.settings.Checkpoint(path=str(run.folder / "checkpoint"), every=1.0)
        }
    return em.Job(
        algorithms[run.arguments.task](),
        source_of(run),
        stop=em.Stop(seconds=1e6),
        absent=run.arguments.absent,
        evaluate=False,
        **checkpoint,
    )


def follow(run: Run, handle: Any) -> None:
    """Write a line of progress for each round, and its time by this machine's clock."""
    is_network = run.arguments.task == "network"
    examples, base_s = 0, float("inf")
    previous = goodput_run.lines(run.folder, "rounds.jsonl")
    by_round = {line["round"]: line["examples"] for line in previous}
    for batch in handle.batches():
        if batch:
            base_s = min(base_s, time.time() - batch[-1]["t"])
        for record in batch:
            if record["event"] == "JobResumed":
                examples = by_round.get(record["round"] - 1, 0)
                repeated = record.get("repeated_rounds")
                run.note("resumed", round=record["round"], repeated_rounds=repeated)
            if record["event"] != "RoundEnded":
                goodput_run.append(
                    run.folder,
                    "story.jsonl",
                    at=base_s + record["t"],
                    **{k: v for k, v in record.items() if k != "t"},
                )
                continue
            extra = record.get("extra", record)
            if is_network:
                examples += int(extra.get("samples") or 0)
            else:
                examples += ROWS - int(
                    extra.get("absent_examples") or record.get("absent_examples") or 0
                )
            line = {"round": record["round"], "examples": examples}
            line |= {"loss": extra.get("objective"), "gap": extra.get("gap")}
            line |= {"kind": extra.get("objective_kind")}
            goodput_run.append(run.folder, "rounds.jsonl", at=base_s + record["t"], **line)
            run.progress(examples, extra.get("objective"))
        if run.over.is_set():
            return


def elastic(run: Run) -> None:
    """Run one job, whose workers are killed."""
    from distributed import Client

    import elasticml as em

    with (
        em.LocalCluster(WORKERS, algorithms=ALGORITHMS[run.arguments.task]) as cluster,
        Client(cluster) as client,
    ):
        names = {k: str(worker.address) for k, worker in enumerate(cluster.workers())}

        def kill(places: list[int]) -> None:
            cluster.lose([names.pop(place) for place in places], "kill")

        def bring_back(places: list[int]) -> None:
            cluster.bring_back(len(places))
            fresh = [
                str(w.address) for w in cluster.workers() if str(w.address) not in names.values()
            ]
            names.update(zip(places, fresh, strict=False))

        handle = job_of(run).start(client)
        thread = run.disturb(kill, bring_back)
        follow(run, handle)
        handle.cancel()
        thread.join(30)


def attempt(run: Run) -> None:
    """Run the job, or resume it, until this process is killed."""
    from distributed import Client

    import elasticml as em

    folder = run.folder / "checkpoint"
    with (
        em.LocalCluster(WORKERS, algorithms=ALGORITHMS[run.arguments.task]) as cluster,
        Client(cluster) as client,
    ):
        if folder.exists() and any(folder.rglob("*")):
            data = source_of(run) if run.arguments.task == "network" else None
            handle = em.Job.resume(client, str(folder), data=data)
        else:
            handle = job_of(run).start(client)
        follow(run, handle)


def restart(run: Run) -> None:
    """Kill and restart the whole job as its workers go and return."""
    lock, away, process = threading.Lock(), set[int](), [start_attempt(run)]

    def kill(places: list[int]) -> None:
        with lock:
            away.update(places)
            kill_tree([process[0].pid])
            process[0].wait()

    def bring_back(places: list[int]) -> None:
        with lock:
            away.difference_update(places)
            if not away:
                process[0] = start_attempt(run)

    run.disturb(kill, bring_back)
    run.over.wait()
    with lock:
        kill_tree([process[0].pid])
        process[0].wait()


def start_attempt(run: Run) -> subprocess.Popen[bytes]:
    """Start a process that runs or resumes the job, with a cluster of its own."""
    with (run.folder / "attempts.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *sys.argv[1:]],
            env={**os.environ, "GOODPUT_ATTEMPT": "1"},
            stdout=log,
            stderr=log,
        )


def main() -> None:
    """Run the job as the options say."""
    run = Run.from_command_line(
        __doc__,
        task=tuple(ALGORITHMS),
        way=("elastic", "restart"),
        absent=("auto", "reload"),
    )
    os.environ["GOODPUT_FOLDER"] = str(run.folder)
    if "GOODPUT_ATTEMPT" in os.environ:
        attempt(run)
    elif run.arguments.way == "restart":
        restart(run)
    else:
        elastic(run)


if __name__ == "__main__":
    main()
