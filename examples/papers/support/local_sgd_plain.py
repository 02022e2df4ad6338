"""The baseline: the shortest PyTorch training loop, over the very same steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from support.local_sgd_runs import Images, Point, Run, Setting

from elasticml.algorithms.local_sgd.module_factory import cnn
from elasticml.algorithms.local_sgd.sampler import order_keys
from elasticml.data.chunks.chunk import Chunk

MOMENTUM = 0.9
#: Test images evaluated at once.
_TESTED = 256


def train_plain(
    setting: Setting, images: Images, each: Callable[[Run], None] = lambda so_far: None
) -> Run:
    """Train the same network in one process with ``torch.optim.SGD``.

    The batch, the rate, the first weights and the order of the samples are those of a job on one
    member with this seed.
    """
    began_s = time.perf_counter()
    torch.set_num_threads(1)
    chunks = [
        chunk
        for block in images.source.blocks()
        for chunk in images.source.read(block.index, images.chunk_bytes, 1)[0]
    ]
    X = np.concatenate([chunk.values for chunk in chunks])
    y = torch.from_numpy(np.concatenate([chunk.labels for chunk in chunks]).astype(np.int64))
    mean, std = float(X.mean(dtype=np.float64)), float(X.std(dtype=np.float64))
    x = torch.from_numpy(X).sub_(mean).div_(std).view(-1, *images.shape)
    test = torch.from_numpy(images.test_X.copy()).sub_(mean).div_(std).view(-1, *images.shape)
    torch.manual_seed(setting.seed)
    module = cnn(shape=images.shape, classes=int(y.max()) + 1, **setting.model_options)
    optimizer = torch.optim.SGD(module.parameters(), lr=setting.learning_rate, momentum=MOMENTUM)
    loss_of = torch.nn.CrossEntropyLoss()
    points: list[Point] = []
    for epoch in range(setting.epochs):
        total = 0.0
        for some in torch.from_numpy(_order(chunks, setting.seed, epoch)).split(setting.batch):
            optimizer.zero_grad()
            loss = loss_of(module(x[some]), y[some])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(some)
        with torch.no_grad():
            result = torch.cat([module(part).argmax(1) for part in test.split(_TESTED)]).numpy()
        point = Point(
            epoch=epoch + 1,
            rounds=0,
            units=0.0,
            members=1,
            loss=total / len(y),
            test_accuracy=float(np.mean(result == images.test_y)),
        )
        points.append(point)
        each(Run(points=tuple(points), rounds=(), wall_s=time.perf_counter() - began_s))
    return Run(points=tuple(points), rounds=(), wall_s=time.perf_counter() - began_s)


def _order(chunks: Sequence[Chunk], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the rows of all chunks in the order in which one member takes them."""
    keys = [order_keys(seed, chunk.id, epoch, chunk.n_rows) for chunk in chunks]
    return np.argsort(np.concatenate(keys), kind="stable")
