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

from typing import Final

TARGETS: Final = "targets"
COLUMNS: Final = "columns"
PASS: Final = "pass"
CERTIFY: Final = "certify"
GATHER: Final = "gather"
