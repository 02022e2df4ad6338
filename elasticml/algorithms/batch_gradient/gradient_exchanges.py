"""The exchanges of batch gradient descent: the arrays sent and reduced, by name.

``gradient``
    Down: ``w`` (n_sent,). Up: ``loss`` (), ``gradient`` (n_sent,), ``weight`` (): sums over the
    examples at ``w``. ``point`` is the serial of w. With ``base``, ``direction`` and ``step``, a
    chunk whose cached margins belong to ``base`` advances them by ``step`` times its cached
    directions instead of multiplying by w; a chunk without them multiplies. ``scratch`` leaves the
    caches unchanged.
``probe``
    Down: ``steps`` (J,), and ``direction`` (n_sent,) if it is new. Up: ``values`` (J,), sums of
    losses at ``w + t_j * direction``; ``slopes`` (J,), their derivatives with respect to t;
    ``uncached`` (), the number of examples left out because their chunk arrived after ``point`` or
    ``direction``.
``curvature``
    As ``probe`` without steps. Up: ``curvature`` (), the loss's second derivative along the
    direction at ``w``; ``uncached``.
``product``
    Down: ``v`` (n_sent,). Up: ``hv`` (n_sent,), the Hessian of the summed loss at ``point`` times
    ``v``; ``uncached`` (), the number of examples left out because their chunk arrived after
    ``point``.
``hessian``
    Down: ``pairs`` (pairs, 2), numbers of models; ``shift`` (n_columns,) if columns are shifted.
    Up: ``gram`` (pairs, n_columns (n_columns + 1) / 2), the lower triangle of ``X~' D X~`` for each
    pair, D being the entries of the losses' Hessians at ``point`` that belong to it, with rows
    ``X~ = X - shift``; ``border`` (pairs, n_columns), ``X~' D 1``; ``mass`` (pairs,), the sums of
    D; ``uncached`` (), as above. Of each chunk a ``share`` of the rows is summed.

For column statistics see :mod:`elasticml.algorithms.column_statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from elasticml.algorithms.base import Exchange, Scalar
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64

Require = Literal["any", "everybody"]

GRADIENT: Final = "gradient"
PROBE: Final = "probe"
CURVATURE: Final = "curvature"
PRODUCT: Final = "product"
HESSIAN: Final = "hessian"
#: Columns times pairs of models from which a Hessian takes the trainer long.
LONG_COLUMNS: Final = 200


def gradient_exchange(
    sent: F64,
    parameters: Mapping[str, Scalar],
    *,
    require: Require = "any",
    keep: bool = False,
    seal: bool = False,
    correct: bool = False,
) -> Exchange:
    """Return the exchange for loss, gradient and weight at ``sent``."""
    return Exchange(
        operation=GRADIENT,
        model={"w": sent},
        returns={"loss": (), "gradient": sent.shape, "weight": ()},
        parameters=parameters,
        keep=keep,
        require=require,
        seal=seal,
        phase="correct" if correct else "compute",
    )


def probe_exchange(
    steps: F64,
    direction: F64 | None,
    parameters: Mapping[str, Scalar],
    *,
    require: Require,
    seal: bool,
) -> Exchange:
    """Return the exchange for the loss at several step lengths, or without steps the curvature."""
    model = {} if direction is None else {"direction": direction}
    if steps.size == 0:
        return Exchange(
            operation=CURVATURE,
            model=model,
            returns={"curvature": (), "uncached": ()},
            parameters=parameters,
            require=require,
            seal=seal,
        )
    return Exchange(
        operation=PROBE,
        model={**model, "steps": steps},
        returns={"values": steps.shape, "slopes": steps.shape, "uncached": ()},
        parameters=parameters,
        require=require,
        seal=seal,
    )


def product_exchange(
    v: F64, parameters: Mapping[str, Scalar], *, require: Require, seal: bool
) -> Exchange:
    """Return the exchange for the Hessian times ``v``, at a point whose margins are cached."""
    return Exchange(
        operation=PRODUCT,
        model={"v": v},
        returns={"hv": v.shape, "uncached": ()},
        parameters=parameters,
        require=require,
        seal=seal,
    )


def hessian_exchange(
    columns: Columns,
    pairs: Sequence[tuple[int, int]],
    parameters: Mapping[str, Scalar],
    *,
    require: Require,
    seal: bool,
) -> Exchange:
    """Return the exchange for the Hessian at a point whose margins are cached."""
    d, n = columns.n_columns, len(pairs)
    shift = {} if columns.shift is None else {"shift": columns.shift}
    return Exchange(
        operation=HESSIAN,
        model={"pairs": np.array(pairs, np.float64), **shift},
        returns={
            "gram": (n, d * (d + 1) // 2),
            "border": (n, d),
            "mass": (n,),
            "uncached": (),
        },
        parameters=parameters,
        require=require,
        seal=seal,
        is_long=d * n >= LONG_COLUMNS,
    )
