"""Run a network with Ray Train's elastic setting under kills: four nodes of one CPU each.

``ScalingConfig(num_workers=(1, 4), elastic_resize_monitor_interval_s=2)`` (default 60 s),
``FailureConfig(max_failures=-1)``, a checkpoint reported every 100 steps to local storage,
``RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=1`` (default 2 s). The head node checks the others every 0.5 s
and gives one up after three misses (default: every 3 s, five misses, the first check after 5 s;
with these Ray Train made no further step within 30 s of a kill). A kill is a SIGKILL of a node's
raylet and of all its processes; the head node, without CPUs, survives.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.bench.peers.goodput_run import SNAPSHOT_STEPS, WORKERS, Run, kill_tree

ROOT = Path(__file__).resolve().parents[3]


def train(config: dict[str, Any]) -> None:
    """Train as one of Ray's workers."""
    sys.path.insert(0, config["root"])
    import ray.train
    import ray.train.torch

    from tests.bench.peers.goodput_network import Training

    context, checkpoint = ray.train.get_context(), ray.train.get_checkpoint()
    folder, data = Path(config["folder"]), Path(config["data"])
    rank, world = context.get_world_rank(), context.get_world_size()

    def training_from(snapshot: Path | None) -> Training:
        return Training(folder, data, rank, world, ray.train.torch.prepare_model, snapshot)

    if checkpoint is None:
        training = training_from(None)
    else:
        with checkpoint.as_directory() as path:
            training = training_from(Path(path) / "snapshot.pt")
    for _ in training.steps():
        if training.step % SNAPSHOT_STEPS == 0:
            with tempfile.TemporaryDirectory() as path:
                if rank == 0:
                    training.save(Path(path) / "snapshot.pt")
                reported = ray.train.Checkpoint.from_directory(path) if rank == 0 else None
                ray.train.report({"step": training.step}, checkpoint=reported)


def main() -> None:
    """Start the nodes, fit in a thread, play the trace, and end all."""
    run = Run.from_command_line(__doc__)
    os.environ |= {
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_DEDUP_LOGS": "0",
        "PYTHONPATH": str(ROOT),
    }
    import ray
    import ray.train
    from ray.cluster_utils import Cluster
    from ray.train.torch import TorchConfig, TorchTrainer

    # Paths of Unix sockets are short. Ray writes the cluster's address below /tmp/ray, too.
    Path("/tmp/ray").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="gp-", dir="/tmp")
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "temp_dir": folder},
    )
    ray.init(address=cluster.address, log_to_driver=True)
    nodes: dict[int, Any] = {}

    def start(places: list[int]) -> None:
        for place in places:
            nodes[place] = cluster.add_node(num_cpus=1, wait=False)

    def kill(places: list[int]) -> None:
        for place in places:
            node = nodes.pop(place)
            kill_tree(info.process.pid for each in node.all_processes.values() for info in each)
            cluster.remove_node(node, allow_graceful=False)

    start(list(range(WORKERS)))
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(run.folder), "data": str(run.data), "root": str(ROOT)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, WORKERS),
            resources_per_worker={"CPU": 1},
            elastic_resize_monitor_interval_s=2.0,
        ),
        run_config=ray.train.RunConfig(
            storage_path=str(run.folder / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=-1),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
    )

    def fit() -> None:
        try:
            trainer.fit()
            run.note("the fit returned")
        except BaseException as error:
            run.note("the fit failed", error=f"{type(error).__name__}: {error}"[:500])
        run.over.set()

    threading.Thread(target=fit, daemon=True).start()
    # Nodes are started in the main thread: Ray sets signal handlers.
    run.play(kill, start)
    for node in [*nodes.values(), cluster.head_node]:
        kill_tree(info.process.pid for each in node.all_processes.values() for info in each)
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    # Ray's own threads would wait for the processes that have just been killed.
    os._exit(0)


if __name__ == "__main__":
    main()
