"""What of a job's data can be tried before anything starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar

from elasticml.data.by_columns import is_by_columns
from elasticml.data.cache import Setting
from elasticml.data.picture_shapes import picture_shape
from elasticml.data.source import Source, read_block
from elasticml.errors import ConfigError, DataError, blaming
from elasticml.jobs.algorithms import AnyAlgorithm, ImportedAlgorithm, LocalSGD, PrimalCoCoA
from elasticml.jobs.scoring import check_pictures, rows_differ

#: A first block is read where it is no larger than this.
TRIED_BYTES_MAX: Final = 2**24

_T = TypeVar("_T")


def try_data(
    algorithm: AnyAlgorithm,
    data: Source,
    test: Source | None,
    cache: Setting = None,
    *,
    reads: bool = True,
) -> None:
    """List the blocks of all data; of the test data, which no member reads, try the first.

    Parameters
    ----------
    reads : bool
        Whether small blocks may be read, and the training data must be seen from here at all.

    Raises
    ------
    ConfigError, DataError
        When a file is missing, empty, or not what it was said to be; when a network's test rows
        have another length than it takes, or are pictures of another shape; when data are by rows
        that are wanted by columns, or by columns.
    """
    for path, some in (("data", data), ("data.test", test)):
        if some is not None:
            _check_orientation(algorithm, some, path)
    if reads:
        data.blocks()
    if test is None:
        return
    with blaming("data.test"):
        n_columns = _columns_of(test, cache, reads)
        # Linear models take what is wider, with a note, and narrower.
        if n_columns is None or not isinstance(algorithm, LocalSGD):
            return
        shape = algorithm.shape
        wanted = math.prod(shape) if shape is not None else _trained_columns(data, reads)
        if wanted not in (None, n_columns):
            raise rows_differ(n_columns, wanted)
        check_pictures(test, lambda: _seen(lambda: picture_shape(data), reads) or shape)


def _check_orientation(algorithm: AnyAlgorithm, data: Source, path: str) -> None:
    if isinstance(algorithm, ImportedAlgorithm):
        return
    spec, wanted = data.spec(), isinstance(algorithm, PrimalCoCoA)
    if is_by_columns(spec) == wanted:
        return
    if wanted:
        raise ConfigError(
            f"{path}: format {spec.get('format')} is by rows, and primal_cocoa works on columns; "
            "read the data into arrays and give it em.from_arrays(X, y, by='columns')",
            path=path,
        )
    raise ConfigError(
        f"{path}: the arrays are by columns, and {algorithm.name} works on rows; leave by='columns'"
        " out, or use primal_cocoa",
        path=path,
    )


def _trained_columns(data: Source, reads: bool) -> int | None:
    return _seen(lambda: _columns_of(data, False, reads), reads)


def _seen(look: Callable[[], _T], must: bool) -> _T | None:
    """Look at the training data; None where they cannot be seen from here and need not be."""
    try:
        return look()
    except (ConfigError, DataError):
        if must:
            raise
        return None


def _columns_of(source: Source, cache: Setting, reads: bool) -> int | None:
    """Read the first block and return its columns; None where that is too much, or not possible.

    Categories need the training data's vocabulary, which is not known yet.
    """
    first = source.blocks()[0]
    if not reads or first.nbytes > TRIED_BYTES_MAX or source.needs_survey:
        return first.columns
    summary = read_block(source, first.index, None, 1, cache)[1]
    return summary.n_columns if first.columns is None else first.columns
