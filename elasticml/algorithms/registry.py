"""Lookup of algorithms by their names in job files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from elasticml.algorithms.base import Algorithm
from elasticml.algorithms.kernel_modules import noting_missing
from elasticml.errors import ConfigError
from elasticml.specification.user_objects import imported

# Each algorithm is imported when it is looked up: a process of a job needs one of them.


def _batch_gradient() -> Algorithm:
    from elasticml.algorithms.batch_gradient import solver, trainer

    return Algorithm(
        name="batch_gradient",
        trainer=trainer.make_trainer,
        solver=solver.BatchGradientSolver,
        column_bytes=trainer.column_bytes,
        row_bytes=40,
    )


def _cocoa() -> Algorithm:
    from elasticml.algorithms.cocoa import rows, scaled_chunks, solver

    return Algorithm(
        name="cocoa",
        trainer=rows.make_trainer,
        solver=solver.make_solver,
        forms=scaled_chunks.forms,
        row_bytes=40,
    )


def _primal_cocoa() -> Algorithm:
    from elasticml.algorithms.cocoa import column_solver, columns

    return Algorithm(
        name="primal_cocoa", trainer=columns.make_trainer, solver=column_solver.PrimalCocoaSolver
    )


def _async_sgd() -> Algorithm:
    from elasticml.algorithms.async_sgd.build_plan import plan
    from elasticml.algorithms.async_sgd.trainer import free_running

    return free_running("async_sgd", plan)


def _local_sgd() -> Algorithm:
    from elasticml.algorithms.local_sgd import solver, trainer

    return Algorithm(name="local_sgd", trainer=trainer.make_trainer, solver=solver.LocalSGDSolver)


_ALGORITHMS: Final[dict[str, Callable[[], Algorithm]]] = {
    "async_sgd": _async_sgd,
    "batch_gradient": _batch_gradient,
    "cocoa": _cocoa,
    "local_sgd": _local_sgd,
    "primal_cocoa": _primal_cocoa,
}


def algorithm(name: str) -> Algorithm:
    """Return the algorithm with this name, or the one at an import path ``module:attribute``.

    Raises
    ------
    ConfigError
        When there is no such algorithm.
    """
    if ":" in name:
        return _imported(name)
    if name not in _ALGORITHMS:
        raise ConfigError(
            f"algorithm.name is {name!r}, wanted one of {', '.join(sorted(_ALGORITHMS))}"
        )
    return _ALGORITHMS[name]()


def import_algorithms(names: Iterable[str] | None) -> list[ImportError]:
    """Import algorithms of this package ahead.

    Parameters
    ----------
    names : iterable of str or None
        None: all.

    Returns
    -------
    list of ImportError
        Libraries that cannot be imported: a job of such an algorithm raises a better error.

    Raises
    ------
    ImportError
        When a module of this package is missing.
    """
    missing: list[ImportError] = []
    for name in _ALGORITHMS if names is None else names:
        with noting_missing(missing):
            if name in _ALGORITHMS:
                _ALGORITHMS[name]()
    return missing


def column_bytes(section: Mapping[str, Any]) -> int:
    """Return the bytes per column that the trainer of an ``algorithm`` section keeps.

    0 for an algorithm at an import path, which is not imported.
    """
    name = str(section.get("name"))
    return _ALGORITHMS[name]().column_bytes(section) if name in _ALGORITHMS else 0


def memory_use(section: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, int]:
    """Return ``forms`` and ``row_bytes`` of an algorithm, for a job's sections.

    One form for an algorithm at an import path, which is not imported.
    """
    name = str(section.get("name"))
    if name not in _ALGORITHMS:
        return {"forms": 1, "row_bytes": 0}
    algorithm = _ALGORITHMS[name]()
    return {"forms": algorithm.forms(section, data), "row_bytes": algorithm.row_bytes}


def _imported(path: str) -> Algorithm:
    made = imported("algorithm.name", path)
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"algorithm.name: got {path!r}, a {type(made).__name__}, wanted an Algorithm"
        )
    return made
