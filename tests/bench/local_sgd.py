"""Local SGD on Fashion-MNIST: accuracy by epoch, and time per epoch against PyTorch.

    python tests/bench/local_sgd.py [--epochs 3] [--repeats 3] [--rows 60000] [--batch 8]
        [--local-steps 16] [--rate 5e-4] [--members 1] [--threads 1] [--peers elasticml ddp]

All use the CNN of the uni-task paper, one learning rate, momentum 0.9, the same initial weights and
the same threads. "elasticml" is a job on a cluster of real processes, from history.csv. "plain" is
the shortest loop in PyTorch: all data in one tensor, a random permutation per epoch,
``torch.optim.SGD``. "loader" is the same with ``torch.utils.data.DataLoader``. "ddp" is that loop
in one process per member, with ``torch.nn.parallel.DistributedDataParallel`` over gloo; each takes
``--batch`` examples of its part of the permutation per step. Each runs in separate processes; they
take turns, so that other load on the machine affects all of them. Ratios are of medians of epochs,
without each run's first, to "plain", or to "ddp" if there is more than one member.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

DATA = harness.DATA / "fashion_mnist"
PEERS = ("elasticml", "plain", "loader", "ddp")


def read(name, rows=None):
    """Return pixels, float32, and labels."""
    from elasticml.data.readers.images import read_images
    from elasticml.data.source import load_all

    chunks = load_all(read_images(str(DATA / f"{name}-images-idx3-ubyte.gz"), dtype="float32"))
    X = np.concatenate([chunk.values for chunk in chunks])[:rows]
    return X, np.concatenate([chunk.labels for chunk in chunks])[:rows]


def ours(arguments):
    """Run a job; return seconds and test accuracy of each epoch."""
    from distributed import Client

    import elasticml as em

    X, y = read("train", arguments.rows)
    rounds = -(-len(y) // (arguments.batch * arguments.local_steps * arguments.members))
    job = em.Job(
        em.LocalSGD(
            batch=arguments.batch,
            local_steps=arguments.local_steps,
            learning_rate=arguments.rate,
            shape=(1, 28, 28),
        ),
        em.from_arrays(X, y, dtype="float32"),
        test=em.read_images(str(DATA / "t10k-images-idx3-ubyte.gz"), dtype="float32"),
        stop=em.Stop(epochs=arguments.epochs),
        evaluate=em.Evaluate(every=rounds),
        threads=arguments.threads,
        seed=arguments.seed,
    )
    with em.LocalCluster(arguments.members) as cluster, Client(cluster) as client:
        result = job.run(client)
    rows = result.history
    ends = [
        rows[i]["seconds"]
        for i in range(len(rows) - 1)
        if i + 1 == len(rows) - 1 or int(rows[i + 1]["epoch"]) > int(rows[i]["epoch"])
    ]
    accuracies = [row["test_accuracy"] for row in rows if row.get("test_accuracy") is not None]
    return {"seconds": np.diff(ends).tolist(), "accuracy": accuracies[1:]}


def plain(arguments, loader=False):
    """Train with PyTorch alone; return seconds and test accuracy of each epoch."""
    import torch

    from elasticml.algorithms.local_sgd.module_factory import cnn

    torch.set_num_threads(arguments.threads)
    (x, labels), test = tensors(arguments)
    torch.manual_seed(arguments.seed)
    module = cnn()
    rate = arguments.rate * arguments.members**0.5
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
    loss_of, size = torch.nn.CrossEntropyLoss(), arguments.batch * arguments.members
    batches = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, labels), batch_size=size, shuffle=True
    )
    seconds, accuracy = [], []
    for _ in range(arguments.epochs):
        began_s, module = time.perf_counter(), module.train()
        rows = torch.randperm(len(labels)).split(size)
        for batch, target in batches if loader else ((x[part], labels[part]) for part in rows):
            optimizer.zero_grad()
            loss = loss_of(module(batch), target)
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began_s)
        accuracy.append(accuracy_of(module, *test))
    return {"seconds": seconds[1:], "accuracy": accuracy}


def ddp(arguments):
    """Train with DistributedDataParallel; return rank 0's seconds and accuracy of each epoch."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        torch.multiprocessing.spawn(
            ddp_rank, args=(arguments, address, results), nprocs=arguments.members
        )
        return json.loads(results.read_text())


def ddp_rank(rank, arguments, address, results):
    """Train as one of the processes; rank 0 writes its figures to ``results``."""
    import torch

    from elasticml.algorithms.local_sgd.module_factory import cnn

    torch.set_num_threads(arguments.threads)
    torch.distributed.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=arguments.members
    )
    (x, labels), test = tensors(arguments)
    torch.manual_seed(arguments.seed)
    module = torch.nn.parallel.DistributedDataParallel(cnn())
    rate = arguments.rate * arguments.members**0.5
    optimizer = torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9)
    loss_of, seconds, accuracy = torch.nn.CrossEntropyLoss(), [], []
    for epoch in range(arguments.epochs):
        torch.distributed.barrier()
        began_s, module = time.perf_counter(), module.train()
        generator = torch.Generator().manual_seed(epoch)
        rows = torch.randperm(len(labels), generator=generator)[rank :: arguments.members]
        for part in rows.split(arguments.batch):
            optimizer.zero_grad()
            loss_of(module(x[part]), labels[part]).backward()
            optimizer.step()
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - began_s)
        if rank == 0:
            accuracy.append(accuracy_of(module.module, *test))
    if rank == 0:
        harness.report({"seconds": seconds[1:], "accuracy": accuracy}, results)
    torch.distributed.destroy_process_group()


def tensors(arguments):
    """Return training and test data, each inputs and labels, normalised as elasticml does."""
    import torch

    (X, y), (test_X, test_y) = read("train", arguments.rows), read("t10k")
    mean, std = float(X.mean(dtype=np.float64)), float(X.std(dtype=np.float64))
    x, test_x = (
        torch.from_numpy(each).sub(mean).div(std).view(-1, 1, 28, 28) for each in (X, test_X)
    )
    return (x, torch.from_numpy(y).long()), (test_x, test_y)


def accuracy_of(module, x, y):
    """Return the accuracy; leave the module in evaluation mode."""
    import torch

    with torch.no_grad():
        predicted = module.eval()(x).argmax(1).numpy()
    return float(np.mean(predicted == y))


def run_peer(peer, arguments):
    """Run one peer in its own processes; print and return its figures."""
    settings = ["--peer", peer]
    for name in ("epochs", "rows", "batch", "local_steps", "rate", "members", "threads", "seed"):
        settings += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    environment = {**os.environ, **dict.fromkeys(harness.THREADS, str(arguments.threads))}
    done = subprocess.run(
        [sys.executable, __file__, *settings],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=environment,
    )
    run = json.loads(done.stdout.splitlines()[-1])
    print(peer, [round(s, 2) for s in run["seconds"]], run["accuracy"], flush=True)
    return run


def main():
    """Read the options; run one peer, or all of them in turns."""
    parser = harness.parser(__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--local-steps", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", nargs="+", default=["elasticml", "plain"], choices=PEERS)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer is not None:
        run = {"elasticml": ours, "ddp": ddp}.get(arguments.peer, plain)
        more = {"loader": True} if arguments.peer == "loader" else {}
        harness.report(run(arguments, **more))
        return
    ways = {peer: functools.partial(run_peer, peer, arguments) for peer in arguments.peers}
    runs = harness.interleaved(ways, arguments.repeats)
    seconds = {peer: [s for run in some for s in run["seconds"]] for peer, some in runs.items()}
    base_of = "ddp" if arguments.members > 1 else "plain"
    base = median(seconds.get(base_of, seconds[arguments.peers[0]]) or [1.0])
    print(f"{'':<12}s/epoch   to {base_of:<8}best test accuracy of each run")
    for peer, some in runs.items():
        middle = median(seconds[peer] or [float("nan")])
        best = ", ".join(f"{max(run['accuracy'], default=float('nan')):.4f}" for run in some)
        print(f"{peer:<12}{middle:7.2f}   {middle / base:8.2f}   {best}")


if __name__ == "__main__":
    main()
