"""The exchanges of primal CoCoA: what is broadcast, what is reduced, and the names of the arrays.

Rows of chunks are columns of X, see :mod:`elasticml.data.chunks.by_columns`: below, n examples and
d columns, everything except the targets multiplied by the square roots of the examples' weights
and, with ``centred``, centred. If examples have weights, their ``root`` (n,) is broadcast with
every exchange that centres.

``pass`` and ``certify`` have serials and settle chunks as in
:mod:`elasticml.algorithms.cocoa.cocoa_exchanges`, with coefficients in place of dual variables.

``targets``
    Returned: ``target`` (n,) and ``root`` (n,), zeros if examples have no weights; ``counts`` (3,):
    columns, and rows of targets and of roots.
``columns``
    Returned: ``norms`` (d,), squared, and ``means`` (d,), zeros if nothing is centred.
``pass``
    Broadcast: ``residual`` (n,), minus the slope of the loss, its ``curvature`` (n,) unless that is
    one everywhere, and the penalties ``a1``, ``a2`` of the sum over examples. Every member descends
    on ``sigma'/2 dw.A'HA dw - residual.A dw`` plus its coefficients' penalty, with the curvatures
    H, columns A centred by them with ``centred``, and sigma' the larger of 1 and ``damping`` times
    the number of members. With ``radius`` above 0 a column is screened, that is left out for good,
    if its distance from its constraint at the last certificate's residual, times ``share``, is
    more than the radius allows at the loss's ``smoothness``. Returned: ``dv`` (n,), the change
    ``A dw``; ``l1`` (2,), ``|w|_1`` and its change; ``inner`` (2,), ``w.dw`` and ``|dw|^2``;
    ``visited`` (), visited columns; ``alive`` (), columns not screened; ``partitions`` (), members;
    ``unset`` (), columns that could not take part because their chunk's serial is not ``settle``.
``certify``
    Broadcast: ``residual`` (n,), and the model ``coef`` (d,), from which chunks without recent
    coefficients are filled; it is always sent because only members find out that some are lost. If
    the driver has found a better model, ``taken`` (d,), every chunk takes that. Returned: ``image``
    (n,), ``X w``; ``coef`` (d,); ``slopes`` (d,), products of the columns not screened with the
    residual; ``unset`` (), columns whose coefficients differ from those of the residual; with
    ``parts`` true also ``here`` (d,), 1 for each column, and ``former`` (n,), ``X coef``.
``gather``
    Broadcast: ``wanted`` (m,), numbers of columns. Returned: ``columns`` (m, n), as stored, and
    ``found`` (m,), 1 for each column that a member has. It has no serial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Exchange, Scalar
from elasticml.arrays import F64

TARGETS: Final = "targets"
COLUMNS: Final = "columns"
PASS: Final = "pass"
CERTIFY: Final = "certify"
GATHER: Final = "gather"


def targets_exchange(n: int) -> Exchange:
    """Return the exchange for the targets and the examples' weights."""
    return Exchange(
        operation=TARGETS,
        model={},
        returns={"target": (n,), "root": (n,), "counts": (3,)},
        require="everybody",
    )


def columns_exchange(d: int, root: Mapping[str, F64], *, centred: bool) -> Exchange:
    """Return the exchange for the columns' norms and means."""
    return Exchange(
        operation=COLUMNS,
        model=root,
        returns={"norms": (d,), "means": (d,)},
        parameters={"centred": centred},
        require="everybody",
    )


def gather_exchange(wanted: NDArray[np.int64], n: int) -> Exchange:
    """Return the exchange for some columns' values."""
    return Exchange(
        operation=GATHER,
        model={"wanted": wanted.astype(np.float64)},
        returns={"columns": (wanted.size, n), "found": wanted.shape},
        is_long=True,
    )


def pass_exchange(
    residual: F64,
    curvature: F64 | None,
    root: Mapping[str, F64],
    parameters: Mapping[str, Scalar],
) -> Exchange:
    """Return the exchange for the members' steps at a residual."""
    curvatures = {} if curvature is None else {"curvature": curvature}
    return Exchange(
        operation=PASS,
        model={"residual": residual, **curvatures, **root},
        returns={
            "dv": residual.shape,
            "l1": (2,),
            "inner": (2,),
            "visited": (),
            "alive": (),
            "partitions": (),
            "unset": (),
        },
        parameters=parameters,
    )


def certify_exchange(
    residual: F64,
    root: Mapping[str, F64],
    coef: F64,
    parameters: Mapping[str, Scalar],
    *,
    taken: F64 | None,
) -> Exchange:
    """Return the exchange for the model, its predictions, and all columns' slopes."""
    n, d = residual.shape, coef.shape
    parts = {"here": d, "former": n} if parameters["parts"] else {}
    return Exchange(
        operation=CERTIFY,
        model={
            "residual": residual,
            **root,
            "coef": coef,
            **({} if taken is None else {"taken": taken}),
        },
        returns={"image": n, "coef": d, "slopes": d, "unset": (), **parts},
        parameters=parameters,
    )
