"""Load a job's initial model: from a result, a mapping of arrays, or a run's ``model.npz``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import ConfigError, DataError, shown
from elasticml.models.file_format import model_file, own_arrays, read_arrays
from elasticml.specification.algorithms import AnyAlgorithm, AsyncSGD, CoCoA, LocalSGD, PrimalCoCoA

if TYPE_CHECKING:
    from elasticml.models.model import Model

WarmStart: TypeAlias = "Model | Mapping[str, Any] | str | Path"
_WANTED = (
    "wanted a result's model, a mapping with coef and intercept (of K-Means: centres, counts; of a "
    "network: its arrays by name), or the path or URL of a model.npz"
)


def load_warm_start(initial: WarmStart | None, algorithm: AnyAlgorithm) -> dict[str, Any] | None:
    """Load the initial model for the ``algorithm`` section of a job record.

    Returns
    -------
    dict of list of float, or None
        ``coef`` of all columns, and ``intercept``; for K-Means ``centres`` by row, and ``counts``
        if there are any; for a network all its arrays.

    Raises
    ------
    ConfigError
        When it is not a model, or the algorithm cannot start from one.
    """
    if initial is None:
        return None
    if not isinstance(algorithm, CoCoA | AsyncSGD | LocalSGD | PrimalCoCoA):
        raise ConfigError(
            f"warm_start: algorithm {algorithm.name} does not support it; use algorithm cocoa, "
            "primal_cocoa, async_sgd or local_sgd, or leave warm_start out"
        )
    where = f"warm_start: {initial}:" if isinstance(initial, str | Path) else "warm_start:"
    if isinstance(algorithm, LocalSGD):
        named = own_arrays(_arrays(initial))
        if not named:
            raise ConfigError(f"{where} no arrays in what was given; {_WANTED}")
        return _checked(where, {name: _numbers(where, name, v) for name, v in named.items()})
    is_linear = isinstance(algorithm, CoCoA | PrimalCoCoA) or algorithm.problem == "linear"
    names = ("coef", "intercept") if is_linear else ("centres", "counts")
    arrays = {
        name: _numbers(where, name, v) for name, v in _arrays(initial).items() if name in names
    }
    if names[0] not in arrays:
        raise ConfigError(f"{where} no {names[0]} in what was given; {_WANTED}")
    if is_linear:
        arrays = {name: array.reshape(-1) for name, array in arrays.items()}
    return _checked(where, arrays)


def _numbers(where: str, name: str, values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        # Tensors whose types NumPy lacks, that require gradients, or that are on a device.
        raise ConfigError(
            f"{where} {name} is not an array of numbers that NumPy can read; for a tensor give "
            "tensor.detach().double().cpu()"
        ) from None


def _checked(where: str, arrays: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(f"{where} {name} is not finite; give another model")
    return {name: array.tolist() for name, array in arrays.items()}


def _arrays(initial: WarmStart) -> Mapping[str, Any]:
    from elasticml.models.model import Model

    if isinstance(initial, Model):
        return initial.parameters()
    if isinstance(initial, Mapping):
        return initial
    if not isinstance(initial, str | Path):
        raise ConfigError(f"warm_start: got {shown(initial)}; {_WANTED}")
    try:
        return read_arrays(model_file(initial))
    except (ConfigError, DataError) as error:
        raise ConfigError(f"warm_start: {error.message}") from None
