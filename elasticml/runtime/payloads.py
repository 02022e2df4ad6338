"""Arrays as the payloads of frames."""

from __future__ import annotations

import numpy as np

from elasticml.collective.frames import Frame
from elasticml.training.arrays import Vector


def vector_of(frame: Frame) -> Vector:
    """Return the array that a frame's payload was read into; empty where it has none."""
    if frame.payload is None:
        return np.empty(0)
    array = frame.payload.obj
    assert isinstance(array, np.ndarray)
    return array


def bytes_of(array: Vector) -> memoryview | None:
    """Look at an array as bytes; None where it is empty, as a frame without payload wants it."""
    return array.data.cast("B") if array.size else None
