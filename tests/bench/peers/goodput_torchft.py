"""Run a network with torchft under kills: four replica groups of one process each.

As in torchft's example for data parallelism: ``ProcessGroupGloo`` with a timeout of 5 s, a manager
with a timeout of 10 s and ``min_replica_size=1``, ``Optimizer`` of torchft, and a sampler that
divides the data among four replica groups whether they are there or not. The position in a group's
part is saved every 100 steps. The lighthouse, in a process that survives, has ``min_replicas=1``,
``join_timeout_ms=1000`` (default 60,000), ``heartbeat_timeout_ms=1000`` (5,000) and
``quorum_tick_ms=100``.

Gradients are averaged by ``Manager.allreduce`` on one vector. ``torchft.DistributedDataParallel``
of 0.2.0 would do that, but fails with ``assert fut._fut`` in all replicas that are left when one is
killed within an exchange: after an error the manager returns a future that this class does not
take.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.peers import goodput_run
from tests.bench.peers.goodput_run import (
    BATCH,
    IMAGES,
    MOMENTUM,
    RATE,
    SNAPSHOT_STEPS,
    WORKERS,
    Run,
    kill_tree,
)


def be_replica(place: int) -> None:
    """Train as one replica group."""
    import torch
    from torchft import Manager, Optimizer, ProcessGroupGloo

    from elasticml.algorithms.local_sgd.module_factory import cnn
    from tests.bench.peers.goodput_network import REPORT_S, forward_loss, tensors

    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder, data = Path(os.environ["GOODPUT_FOLDER"]), Path(os.environ["GOODPUT_DATA"])
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    module = cnn()
    plain = torch.optim.SGD(module.parameters(), lr=RATE * WORKERS**0.5, momentum=MOMENTUM)

    def load_state(state: dict[str, Any]) -> None:
        module.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load_state,
        state_dict=lambda: {"model": module.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"goodput_{place}",
        timeout=timedelta(seconds=10),
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
    )
    parameters = list(module.parameters())
    optimizer = Optimizer(manager, plain)
    x, y = tensors(data)
    own = np.arange(place, IMAGES, WORKERS)
    saved, seen = folder / f"position-{place}.npy", goodput_run.Seen(folder)
    epoch, position = np.load(saved).tolist() if saved.exists() else (0, 0)
    losses, reported_s, taken = list[float](), 0.0, 0
    while True:
        ids = own[np.random.default_rng([7, epoch, place]).permutation(own.size)][position:][:BATCH]
        rows = torch.from_numpy(ids)
        optimizer.zero_grad()
        loss = forward_loss(module, x[rows], y[rows])
        loss.backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in parameters])
        manager.allreduce(gradient).wait()
        for parameter, part in zip(
            parameters, gradient.split([p.numel() for p in parameters]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            seen.add(before, epoch, ids)
        losses.append(float(loss.detach()))
        if time.time() - reported_s > REPORT_S and manager.participating_rank() == 0:
            mean = sum(losses) / len(losses)
            goodput_run.append(folder, "progress.jsonl", examples=None, loss=mean)
            losses, reported_s = [], time.time()
        taken, position = taken + 1, position + ids.size
        if position == own.size:
            epoch, position = epoch + 1, 0
        if taken % SNAPSHOT_STEPS == 0:
            fresh = saved.with_suffix(f".{os.getpid()}.npy")
            np.save(fresh, np.array([epoch, position]))
            fresh.replace(saved)


def main() -> None:
    """Start the lighthouse and the replicas, play the trace, and end them."""
    run = Run.from_command_line(__doc__)
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=1000,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=1000,
    )
    address = lighthouse.address()
    port = address.rsplit(":", 1)[1]
    environment = {
        **os.environ,
        "GOODPUT_FOLDER": str(run.folder),
        "GOODPUT_DATA": str(run.data),
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
    }
    replicas: dict[int, subprocess.Popen[bytes]] = {}

    def start(places: list[int]) -> None:
        for place in places:
            with (run.folder / f"replica-{place}.log").open("ab") as log:
                replicas[place] = subprocess.Popen(
                    [sys.executable, "-m", __spec__.name],
                    env={**environment, "GOODPUT_REPLICA": str(place)},
                    stdout=log,
                    stderr=log,
                )

    def kill(places: list[int]) -> None:
        kill_tree(replicas[place].pid for place in places)
        for place in places:
            replicas[place].wait()

    def renew() -> None:
        # As a scheduler does: a replica that ended by itself is started again.
        while not run.over.wait(0.2):
            for place, process in list(replicas.items()):
                if process.poll() not in (None, -9):
                    run.note("replica ended", place=place, status=process.poll())
                    start([place])

    start(list(range(WORKERS)))
    run.disturb(kill, start)
    renew()
    kill(list(replicas))
    lighthouse.shutdown()


if __name__ == "__main__":
    place = os.environ.get("GOODPUT_REPLICA")
    main() if place is None else be_replica(int(place))
