"""Built-in networks: factories of ``torch.nn.Module``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from elasticml.algorithms.local_sgd.torch_import import load_torch
from elasticml.errors import ConfigError

#: Kernel size of the convolutions and of max-pooling.
_FILTER = 5
_WINDOW = 2


def cnn(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
) -> Any:
    """Return the uni-task paper's CNN.

    Two convolutions, each with ReLU and max-pooling, then three fully connected layers with ReLU
    between them.

    Parameters
    ----------
    shape : (channels, height, width) of an example, at least 16 pixels high and wide
    classes : int
    channels : (int, int)
        Output channels of the two convolutions.
    hidden : (int, int)
        Widths of the first two fully connected layers.

    Returns
    -------
    torch.nn.Sequential

    Raises
    ------
    ConfigError
        When an image is too small, or a setting has the wrong length.

    Source: the uni-task paper, section 5.1, which gives no sizes. The defaults are those of
    PyTorch's CIFAR-10 tutorial, whose accuracy matches the paper's.
    """
    nn = load_torch().nn
    if len(shape) != 3 or len(channels) != 2 or len(hidden) != 2:
        raise ConfigError(
            f"model cnn takes examples of 3 sizes (channels, height, width), 2 channels and 2 "
            f"hidden widths; got shape {list(shape)}, channels {list(channels)}, hidden "
            f"{list(hidden)}; set algorithm.shape and algorithm.model_options",
            key="algorithm.shape",
        )
    sides = [_after(_after(side)) for side in shape[1:]]
    if min(sides) < 1:
        raise ConfigError(
            f"model cnn takes images of at least 16 x 16 pixels, got shape {list(shape)}; use "
            "larger images or another model",
            key="algorithm.shape",
        )
    return nn.Sequential(
        nn.Conv2d(shape[0], channels[0], _FILTER),
        nn.ReLU(),
        nn.MaxPool2d(_WINDOW),
        nn.Conv2d(channels[0], channels[1], _FILTER),
        nn.ReLU(),
        nn.MaxPool2d(_WINDOW),
        nn.Flatten(),
        nn.Linear(channels[1] * sides[0] * sides[1], hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], classes),
    )


def _after(side: int) -> int:
    """Return the side of an image after a convolution and a pooling."""
    return (side - _FILTER + 1) // _WINDOW


def image_shape(n_columns: int) -> tuple[int, int, int] | None:
    """Guess the shape of square images with ``n_columns`` values, greyscale or RGB; else None."""
    for n_channels in (1, 3):
        side = math.isqrt(n_columns // n_channels)
        if n_channels * side * side == n_columns:
            return n_channels, side, side
    return None
