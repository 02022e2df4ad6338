"""Solvers on several GPUs of one member; imported only where there is a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa.cuda_local import CudaSolver
from elasticml.algorithms.cocoa.passes import Ascent, Pass, Update
from elasticml.algorithms.cocoa.tables import Piece

F64 = NDArray[np.float64]


class OnDevice:
    """A solver whose calls run on one device, whichever thread makes them.

    Parameters
    ----------
    number : int
        Index of the device among those visible to this process.
    """

    def __init__(self, solver: Ascent, number: int) -> None:
        self._solver = solver
        self._number = number

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; they are sent to this device."""
        with cuda.gpus[self._number]:
            self._solver.bind(pieces)

    def run(self, v: F64, request: Pass, parallel: Parallel) -> Update:
        """Run a pass over the rows, see :meth:`CudaSolver.run`."""
        with cuda.gpus[self._number]:
            return self._solver.run(v, request, parallel)

    def undo(self) -> None:
        """Do nothing: sub-epochs that lose are undone as they end."""


def cuda_solvers(
    groups: int | None,
    *,
    loss: str,
    dtype: str,
    intercept_scaling: float | None,
    blocks: int | None = None,
    threads: int | None = None,
) -> list[Ascent]:
    """Return a solver for each group, assigned to the devices in turn; one per device by default.

    Other parameters are those of :class:`CudaSolver`.
    """
    n_devices = len(cuda.gpus)
    n = n_devices if groups is None else groups
    solvers = [
        CudaSolver(
            loss=loss,
            dtype=dtype,
            intercept_scaling=intercept_scaling,
            blocks=blocks,
            threads=threads,
        )
        for _ in range(n)
    ]
    return [OnDevice(solver, k % n_devices) for k, solver in enumerate(solvers)]
