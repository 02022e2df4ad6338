"""Run a network with ``torchrun`` under kills: four nodes of one process each.

``--way elastic``: ``--nnodes 1:4``; the job goes on with the nodes that are left, from the last
snapshot. ``--way restart``: ``--nnodes 4:4``, a job of fixed size that starts again from its
snapshot when all nodes are back. Settings besides: ``--max-restarts 1000``, ``--monitor-interval
0.1``, and of the rendezvous ``last_call_timeout=1`` (default 30 s), ``keep_alive_interval=1`` (5
s), ``keep_alive_max_attempt=3``, ``join_timeout=600``. The store of the rendezvous is in a process
that survives, as a cluster's control plane does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.peers.goodput_run import SNAPSHOT_STEPS, WORKERS, Run, kill_tree


def be_rank() -> None:
    """Train as one of torchrun's processes."""
    import torch

    from tests.bench.peers.goodput_network import Training

    torch.distributed.init_process_group("gloo")
    folder, data = Path(os.environ["GOODPUT_FOLDER"]), Path(os.environ["GOODPUT_DATA"])
    snapshot = folder / "snapshot.pt"
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    training = Training(
        folder,
        data,
        rank,
        world,
        torch.nn.parallel.DistributedDataParallel,
        snapshot if snapshot.exists() else None,
    )
    for _ in training.steps():
        if rank == 0 and training.step % SNAPSHOT_STEPS == 0:
            training.save(snapshot)


def main() -> None:
    """Start the agents, play the trace, and end them."""
    run = Run.from_command_line(__doc__, way=("elastic", "restart"))
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    nodes = f"{1 if run.arguments.way == 'elastic' else WORKERS}:{WORKERS}"
    conf = "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes]
    command += ["--nproc-per-node", "1", "--rdzv-id", "goodput", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", f"127.0.0.1:{store.port}", "--max-restarts", "1000"]
    command += ["--rdzv-conf", f"{conf},join_timeout=600", "--monitor-interval", "0.1"]
    environment = {
        **os.environ,
        "GOODPUT_FOLDER": str(run.folder),
        "GOODPUT_DATA": str(run.data),
    }
    agents: dict[int, subprocess.Popen[bytes]] = {}

    def start(places: list[int]) -> None:
        for place in places:
            with (run.folder / f"agent-{place}.log").open("ab") as log:
                agents[place] = subprocess.Popen(
                    [*command, __file__], env=environment, stdout=log, stderr=log
                )

    def kill(places: list[int]) -> None:
        kill_tree(agents[place].pid for place in places)
        for place in places:
            agents[place].wait()

    start(list(range(WORKERS)))
    run.disturb(kill, start)
    run.over.wait()
    kill(list(agents))


if __name__ == "__main__":
    be_rank() if "TORCHELASTIC_RUN_ID" in os.environ else main()
