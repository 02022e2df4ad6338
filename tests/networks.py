"""Small modules and losses for tests of local SGD, importable like a job's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.waiting import until


def linear(shape: Sequence[int], classes: int = 1, bias: bool = True) -> nn.Module:
    """One linear layer, which starts at 0."""
    layer = nn.Linear(shape[0], classes, bias=bias)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


def noisy(shape: Sequence[int], classes: int) -> nn.Module:
    """Two layers with dropout and running statistics in between."""
    return nn.Sequential(
        nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes)
    )


class ModeChanging(nn.Linear):
    """A layer that ends its own training after each batch, and records the modes that are set."""

    modes: tuple[bool, ...] = ()

    def forward(self, x: Any) -> Any:
        self.modes += (self.training,)
        self.eval()
        return super().forward(x)


def hasty(shape: Sequence[int], classes: int) -> nn.Module:
    """A module of which a part changes its mode by itself."""
    return nn.Sequential(ModeChanging(shape[0], classes))


class Tied(nn.Module):
    """Two layers of one weight, a frozen one before them, and a buffer that is not saved."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.before = nn.Linear(columns, 4).requires_grad_(False)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, classes)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.last(self.second(self.first(self.before(x)))) * self.scale


def tied(shape: Sequence[int], classes: int) -> nn.Module:
    """A module whose ``state_dict()`` differs from its trained parameters."""
    return Tied(shape[0], classes)


def total(output: Any, target: Any) -> Any:
    """A loss whose gradient by the weight of an example's own column is 1."""
    return output.sum()


def double(shape: Sequence[int]) -> nn.Module:
    """A module of two types."""
    return nn.Sequential(nn.Linear(shape[0], 2), nn.Linear(2, 2).double())


def words(shape: Sequence[int]) -> str:
    """No module at all."""
    return "module"


NUMBER = torch.zeros(1)


def gated(shape: Sequence[int], classes: int, gate: str) -> nn.Module:
    """One linear layer, which is not created before a file is gone."""
    until(lambda: not Path(gate).exists(), f"{gate} was not removed")
    return linear(shape, classes)
