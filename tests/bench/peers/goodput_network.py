"""The training loop of all peers that use PyTorch's data parallelism, for one process.

A careful user's loop: the position in the epoch is part of the snapshot, and the examples that are
left are divided among the present ranks, so that a restart neither skips nor repeats one that is in
the model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elasticml.algorithms.local_sgd.module_factory import cnn
from tests.bench.peers import goodput_run
from tests.bench.peers.goodput_run import BATCH, IMAGES, MOMENTUM, RATE

#: Seconds between two lines of progress.
REPORT_S = 0.2


def tensors(data: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs, whose pages all processes share, and labels."""
    images = torch.from_numpy(np.load(data / "images.npy", mmap_mode="c"))
    return images.view(-1, 1, 28, 28), torch.from_numpy(np.load(data / "labels.npy"))


def forward_loss(module: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of a batch."""
    mean, deviation = goodput_run.PIXELS
    return torch.nn.functional.cross_entropy(module((x - mean) / deviation), y)


def epoch_order(epoch: int) -> np.ndarray:
    """Return the order of the examples in an epoch."""
    return np.random.default_rng([7, epoch]).permutation(IMAGES)


class Training:
    """Model, optimizer and position of one rank.

    Parameters
    ----------
    folder, data : path
    rank, world : int
    wrap : callable
        Makes the module parallel.
    snapshot : path or None
        A file of ``save``.
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        rank: int,
        world: int,
        wrap: Callable[[Any], Any],
        snapshot: Path | None,
    ) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.folder, self.rank, self.world = folder, rank, world
        self.x, self.y = tensors(data)
        self.plain = cnn()
        self.step = self.epoch = self.position = 0
        # The rate follows the number of workers, as elasticml's ``rate_rule: sqrt`` does.
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=RATE, momentum=MOMENTUM)
        if snapshot is not None:
            state = torch.load(snapshot)
            self.plain.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.epoch, self.position = state["at"]
        self.optimizer.param_groups[0]["lr"] = RATE * world**0.5
        self.module = wrap(self.plain)
        self.seen = goodput_run.Seen(folder, start=self.step)

    def save(self, path: Path) -> None:
        """Write a snapshot, whole."""
        state = {
            "model": self.plain.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "at": (self.step, self.epoch, self.position),
        }
        fresh = path.with_name(f"{path.name}.{os.getpid()}")
        torch.save(state, fresh)
        fresh.replace(path)

    def steps(self) -> Iterator[None]:
        """Train for ever; yield after each step."""
        losses, reported_s = list[float](), 0.0
        order = epoch_order(self.epoch)
        while True:
            if self.position == IMAGES:
                self.epoch, self.position = self.epoch + 1, 0
                order = epoch_order(self.epoch)
            taken = order[self.position : self.position + BATCH * self.world]
            own = np.array_split(taken, self.world)[self.rank]
            self.optimizer.zero_grad()
            # A rank without examples takes part in the sum with a weight of 0.
            rows = torch.from_numpy(own if own.size else taken[:1])
            loss = forward_loss(self.module, self.x[rows], self.y[rows])
            (loss if own.size else 0.0 * loss).backward()
            self.optimizer.step()
            self.seen.add(self.step, self.epoch, own)
            self.step, self.position = self.step + 1, self.position + taken.size
            losses.append(float(loss.detach()))
            if self.rank == 0 and time.time() - reported_s > REPORT_S:
                mean = sum(losses) / len(losses)
                goodput_run.append(self.folder, "progress.jsonl", examples=None, loss=mean)
                losses, reported_s = [], time.time()
            yield
