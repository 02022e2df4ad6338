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

from collections.abc import Mapping
from typing import Final

from elasticml.algorithms.base import Exchange, Scalar
from elasticml.arrays import F64

GRADIENT: Final = "gradient"
PROBE: Final = "probe"
CURVATURE: Final = "curvature"
PRODUCT: Final = "product"
HESSIAN: Final = "hessian"


def gradient_exchange(sent: F64, parameters: Mapping[str, Scalar]) -> Exchange:
    """Return the exchange for loss, gradient and weight at ``sent``."""
    return Exchange(
        operation=GRADIENT,
        model={"w": sent},
        returns={"loss": (), "gradient": sent.shape, "weight": ()},
        parameters=parameters,
    )
