"""Preflight checks of a job's data, before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from elasticml.algorithms.registry import algorithm as algorithm_named
from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.images import image_shape
from elasticml.data.scored_rows import test_source, training_source
from elasticml.data.source import Source, read_block, survey_all
from elasticml.errors import ConfigError, DataError, prefix_errors
from elasticml.specification.algorithms import (
    AnyAlgorithm,
    ImportedAlgorithm,
    LocalSGD,
    PrimalCoCoA,
)
from elasticml.user_cache import CacheSetting

#: Largest first block that is read.
TRIED_BYTES_MAX: Final = 2**24

_T = TypeVar("_T")


def preflight_data(
    algorithm: AnyAlgorithm, data: Source, cache: CacheSetting = None, *, reads: bool = True
) -> None:
    """List the blocks of all data and read the first test block, whose shape must fit a network.

    Parameters
    ----------
    data : Source
        With the validation and test rows.
    reads : bool
        Whether small blocks may be read, and the data must be accessible from here.

    Raises
    ------
    ConfigError, DataError
        When a file is missing, empty, or not in the declared format; when test rows do not have
        the length, or test images the shape, of a network's input; when the data are partitioned
        by rows and the algorithm needs columns, or the reverse.
    """
    _check_orientation(algorithm, data)
    if reads:
        data.blocks()
    test = test_source(data)
    if test is None:
        return
    if isinstance(algorithm, ImportedAlgorithm):
        own = _if_accessible(lambda: algorithm_named(algorithm.name), reads)
        if own is not None:
            from elasticml.evaluation.scoring import check_predicts  # loads numba

            check_predicts(own, "data.test")
    with prefix_errors("data.test"):
        n_columns = _columns_of(test, cache, reads)
        # Linear models accept narrower rows, and wider ones with a note.
        if n_columns is None or not isinstance(algorithm, LocalSGD):
            return
        shape = algorithm.shape
        n_inputs = math.prod(shape) if shape is not None else _training_columns(data, reads)
        if n_inputs not in (None, n_columns):
            from elasticml.evaluation.scoring import row_length_error  # loads numba

            raise row_length_error(n_columns, n_inputs)
        _check_image_shapes(
            test, lambda: _if_accessible(lambda: image_shape(training_source(data)), reads) or shape
        )


def _check_image_shapes(test: Source, training_shape: Callable[[], tuple[int, ...] | None]) -> None:
    """Reject test images of another shape, even with as many pixels: they mean something else.

    Parameters
    ----------
    training_shape : callable
        Returns the shape of the training images, None if there are none; called only if the test
        data are images.
    """
    test_shape = image_shape(test)
    shape = None if test_shape is None else training_shape()
    is_known = test_shape is not None and shape is not None and len(shape) == len(test_shape)
    if is_known and shape != test_shape:
        raise DataError(
            f"pictures have shape {list(test_shape or ())}, wanted {list(shape or ())} as in "
            "training; name pictures of the same shape, or set size and mode alike for both"
        )


def _check_orientation(algorithm: AnyAlgorithm, data: Source) -> None:
    if isinstance(algorithm, ImportedAlgorithm):
        return
    spec, needs_columns = data.spec(), isinstance(algorithm, PrimalCoCoA)
    if is_by_columns(spec) == needs_columns:
        return
    if needs_columns:
        raise ConfigError(
            f"data: format {spec.get('format')} is by rows, and primal_cocoa works on columns; "
            "read the data into arrays and give it em.from_arrays(X, y, by='columns')"
        )
    raise ConfigError(
        f"data: the arrays are by columns, and {algorithm.name} works on rows; leave by='columns'"
        " out, or use primal_cocoa"
    )


def _training_columns(data: Source, reads: bool) -> int | None:
    return _if_accessible(lambda: _columns_of(data, False, reads), reads)


def _if_accessible(read: Callable[[], _T], required: bool) -> _T | None:
    """Read from the training data; None if that fails and the data need not be accessible here."""
    try:
        return read()
    except (ConfigError, DataError):
        if required:
            raise
        return None


def _columns_of(source: Source, cache: CacheSetting, reads: bool) -> int | None:
    """Return the columns of the first block; None if it is too large or cannot be read yet.

    Categories need the vocabulary of the training data, which does not exist yet.
    """
    first = source.blocks()[0]
    summary = first_summary(source, cache) if reads and not source.needs_survey else None
    return summary.n_columns if summary and first.columns is None else first.columns


def first_summary(source: Source, cache: CacheSetting = None) -> BlockSummary | None:
    """Read the first block; return None if it is too large or cannot be read yet.

    Raises
    ------
    ConfigError, DataError
        When its rows cannot be read.
    """
    first, *rest = source.blocks()
    if first.nbytes > TRIED_BYTES_MAX or (source.needs_survey and rest):
        return None
    return read_block(survey_all(source), first.index, None, 1, cache)[1]
