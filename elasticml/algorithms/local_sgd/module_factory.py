"""Construction of a job's torch module: factory, loss, device, and the data's shape and classes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from elasticml.algorithms.local_sgd.torch_import import load_torch
from elasticml.algorithms.targets import check_labels
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.algorithms import LocalSGD
from elasticml.specification.user_objects import imported

# Built-in networks: factories of ``torch.nn.Module``.

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
            f"{list(hidden)}; set algorithm.shape and algorithm.model_options"
        )
    sides = [_after(_after(side)) for side in shape[1:]]
    if min(sides) < 1:
        raise ConfigError(
            f"algorithm.shape: model cnn takes images of at least 16 x 16 pixels, got shape "
            f"{list(shape)}; use larger images or another model"
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


#: Names of a model's additional arrays: inputs are shifted by the first and divided by the second.
INPUT_MEAN: Final = "input_mean"
INPUT_STD: Final = "input_std"


class Seeded:
    """A context that seeds torch's random generators, and restores them.

    ``torch.manual_seed`` is not used: it also seeds absent devices and took 1.5 ms.
    """

    def __init__(self, torch: Any, seed: int, device: Any) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self._generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        self._seed = seed
        self._states: list[Any] = []

    def __enter__(self) -> None:
        self._states = [generator.get_state() for generator in self._generators]
        for generator in self._generators:
            generator.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)


def shape_of(settings: LocalSGD, facts: DatasetStats) -> tuple[int, ...]:
    """Return the shape of one example as the module's input.

    Raises
    ------
    ConfigError
        When it does not match the number of columns.
    DataError
        When the data are not dense.
    """
    if facts.layout.kind != "dense":
        raise DataError(
            f"algorithm local_sgd takes dense rows, and the data are {facts.layout.kind}; write "
            "them as images, csv, parquet or npz"
        )
    shape = settings.shape
    if shape is None:
        guess = image_shape(facts.n_columns) if settings.model == "cnn" else (facts.n_columns,)
        if guess is None:
            raise ConfigError(
                f"algorithm.shape is missing: the data have {facts.n_columns} columns, which is no "
                "square image; give the shape of an example, such as [3, 32, 24]"
            )
        return guess
    if math.prod(shape) != facts.n_columns:
        raise ConfigError(
            f"algorithm.shape is {list(shape)}, {math.prod(shape)} values, and the data have "
            f"{facts.n_columns} columns; give the shape of one example"
        )
    return shape


def classes_of(settings: LocalSGD, facts: DatasetStats) -> tuple[float, ...] | None:
    """Return the class labels in the order of the outputs, ascending; None for regression.

    Raises
    ------
    DataError
        When there are no classes, and the loss needs them; or they are words, and it needs numbers.
    """
    check_labels(settings.loss, facts, is_classification=settings.is_classification)
    if settings.loss == "mse" or (settings.loss != "cross_entropy" and facts.classes is None):
        return None
    if facts.classes is None or len(facts.classes) < 2:
        labels = "continuous" if facts.classes is None else f"{len(facts.classes)} label"
        raise DataError(
            f"algorithm.loss cross_entropy needs labels of at least 2 classes, the data have "
            f"{labels}; use loss: mse for numbers"
        )
    return facts.classes


def device_of(torch: Any, setting: str) -> Any:
    """Return the device of a job's setting; raises ConfigError if it is not available."""
    has_cuda = setting != "cpu" and torch.cuda.is_available()
    if setting == "cuda" and not has_cuda:
        raise ConfigError(
            "algorithm.device is cuda, and this process has no CUDA device; use device: auto"
        )
    return torch.device("cuda" if has_cuda else "cpu")


def make_module(
    torch: Any,
    settings: LocalSGD,
    shape: tuple[int, ...],
    classes: tuple[float, ...] | None,
) -> Any:
    """Call the factory; ``shape`` and ``classes`` are passed if it has parameters of these names.

    The initial weights are drawn from the job's seed.
    """
    factory = cnn if settings.model == "cnn" else _imported("model", str(settings.model))
    available: dict[str, Any] = {"shape": shape}
    if classes is not None:
        available["classes"] = len(classes)
    try:
        parameters = inspect.signature(factory).parameters
        options = {k: v for k, v in available.items() if k in parameters}
        options |= dict(settings.model_options)
        with Seeded(torch, settings.random_seed, torch.device("cpu")):
            module = factory(**options)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"algorithm.model {settings.model} cannot be made: {one_line(error)}; "
            "algorithm.model_options are the factory's keyword arguments"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"algorithm.model {settings.model} makes a {type(module).__name__}, wanted a "
            "torch.nn.Module"
        )
    return module


def _imported(key: str, path: str) -> Callable[..., Any]:
    made = imported(f"algorithm.{key}", path)
    if not callable(made):
        raise ConfigError(
            f"algorithm.{key}: got {path!r}, a {type(made).__name__}, wanted a callable"
        )
    return made  # type: ignore[no-any-return]


def check_parameters(settings: LocalSGD, trained: Sequence[Any], names: Sequence[str]) -> None:
    """Raise a ConfigError if parameters have different types, or a reserved name."""
    types = sorted({str(p.dtype).removeprefix("torch.") for _, p in trained})
    if len(types) != 1 or types[0] not in ("float32", "float64"):
        raise ConfigError(
            f"algorithm.model {settings.model} has parameters of type {', '.join(types) or 'none'},"
            " wanted float32 or float64 alone"
        )
    for name in (INPUT_MEAN, INPUT_STD, "classes"):
        if name in names:
            raise ConfigError(
                f"algorithm.model {settings.model} has a parameter named {name}, which is reserved "
                "in results; rename it"
            )


def loss_of(name: str) -> Callable[[Any, Any, Any], Any]:
    """Return the weighted mean loss as a function of output, target, and weights or None."""
    functional = load_torch().nn.functional
    if name in ("cross_entropy", "mse"):
        plain = functional.cross_entropy if name == "cross_entropy" else functional.mse_loss

        def mean_loss(output: Any, target: Any, weights: Any) -> Any:
            fitted = output if name == "cross_entropy" else output.reshape(target.shape)
            if weights is None:
                return plain(fitted, target)
            return plain(fitted, target, reduction="none") @ weights / weights.sum()

        return mean_loss
    own = _imported("loss", name)

    def own_loss(output: Any, target: Any, weights: Any) -> Any:
        if weights is not None:
            raise DataError(
                f"the data have sample weights, which algorithm.loss {name} does not support; use "
                "cross_entropy or mse, or leave the weights out"
            )
        alike = target.is_floating_point() and output.numel() == target.numel()
        return own(output.reshape(target.shape) if alike else output, target)

    return own_loss
