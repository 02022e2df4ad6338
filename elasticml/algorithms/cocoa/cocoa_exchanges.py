"""The exchanges of CoCoA: what is broadcast, what is reduced, and the names of the arrays.

``pass`` and ``certify`` have a ``serial``, one above the last. Chunks carry their coordinates
``alpha``, dual variables or coefficients, as :mod:`elasticml.algorithms.cocoa.coordinates` says.
Both exchanges first *settle*: where a chunk's serial is ``settle``, ``alpha += gamma * step``. An
exchange that is repeated under the same serial finds its chunks settled and starts from the same
coordinates. The step of a certificate is ``alpha`` itself: ``gamma`` is 0 after it, or scales all
coordinates.

By rows
-------
A member's damping follows from its share: ``sigma'_k = max(1, damping S / S_k)`` for each part of
the data that changes without seeing the others. With ``damping`` 1 adding all steps whole is safe,
and equal shares make it K. An update is therefore not also weighted by ``|D_k| / |D|``, which
belongs to averaging. With ``sigma_per_member`` it is that number times K, the papers' rule for any
shares; with ``sigma`` it is that number.

``pass``
    Broadcast: ``v`` (D,), the model in trained coordinates; with scaled columns ``factor`` and
    ``shift`` (d,). Every member maximises its local dual problem in at most ``local_epochs``
    passes over its chunks; with ``exact`` it then sums its steps in float64. Returned: ``dv``
    (D,), the change of the model by the members' steps; ``dual`` (), the change of the sum of
    ``-loss*``;
    ``curvature`` (), see :mod:`elasticml.algorithms.cocoa.line_search`; ``visited`` (), visited
    rows; ``partitions`` (), parts of the data that changed without seeing each other; ``gap`` (),
    the sum of the rows' contributions to the duality gap, each as it was visited, which predicts
    the next certificate (NaN: not known); ``unset`` (), rows that could not take part because their
    chunk's serial is not ``settle``; ``on_cuda`` (), rows visited on a GPU; ``discarded`` (),
    sub-epochs on GPUs that were undone: see :mod:`elasticml.algorithms.cocoa.damping`.
``certify``
    Broadcast: ``sent`` (n_sent,), the model in the chunks' own coordinates. A chunk without state
    gets its dual variables as ``fill`` says: "zero", or "map": ``-loss'`` of its margins. So does a
    chunk that has missed more than a few exchanges; the others keep their own. Returned: ``primal``
    (), the sum of losses at the model; ``dual`` (), the sum of ``-loss*``; ``image`` (n_sent,), the
    sum of ``s_i alpha_i x_i``; ``weight`` (), the sum of ``s_i``; ``unset`` (), rows whose dual
    variables differ from those of the model; and the statistics for bounds, where requested. All in
    float64.
``largest_row``
    Returned, merged by maximum: ``rows`` (2,) and ``target`` (), upper bounds for all rows and
    targets.

Column statistics are requested as :mod:`elasticml.algorithms.column_statistics` says.

By columns
----------
Rows of chunks are columns of X, see :mod:`elasticml.data.chunks.by_columns`: below, n examples and
d columns, everything except the targets multiplied by the square roots of the examples' weights
and, with ``centred``, centred. If examples have weights, their ``root`` (n,) is broadcast with
every exchange that centres.

``targets``
    Returned: ``target`` (n,) and ``root`` (n,), zeros if examples have no weights; ``counts`` (3,):
    columns, and rows of targets and of roots.
``columns``
    Returned: ``norms`` (d,), squared, and ``means`` (d,), zeros if nothing is centred.
``pass``
    Broadcast: ``residual`` (n,), minus the slope of the loss, its ``curvature`` (n,) unless that is
    one everywhere, and the ``weight`` S of all examples. Every member descends on
    ``sigma'/2 dw.A'HA dw - residual.A dw`` plus S times its coefficients' penalty, with the
    curvatures H, columns A centred by them with ``centred``, and sigma' the larger of 1 and
    ``damping`` times the number of members. Returned: ``dv`` (n,), the change ``A dw``; ``sizes``
    (2,), the sum of ``p(w_j)``, see :mod:`elasticml.objectives.penalties`, and its change;
    ``inner`` (2,), ``w.dw`` and ``|dw|^2``; ``visited`` (), visited columns; ``partitions`` (),
    members; ``unset`` (), columns that could not take part because their chunk's serial is not
    ``settle``.
``certify``
    Broadcast: ``residual`` (n,), and the model ``coef`` (d,), from which chunks without recent
    coefficients are filled; it is always sent because only members find out that some are lost. If
    the driver has found a better model, ``taken`` (d,), every chunk takes that. Returned: ``image``
    (n,), ``X w``; ``coef`` (d,); ``slopes`` (d,), products of the columns with the residual;
    ``unset`` (), columns whose coefficients differ from those of the residual; with ``parts`` true
    also ``here`` (d,), 1 for each column, and ``former`` (n,), ``X coef``.
``gather``
    Broadcast: ``wanted`` (m,), numbers of columns. Returned: ``columns`` (m, n), as stored, and
    ``found`` (m,), 1 for each column that a member has. It has no serial.
"""

from __future__ import annotations

from typing import Final, Literal

Fill = Literal["zero", "map"]

PASS: Final = "pass"
CERTIFY: Final = "certify"
#: By rows.
LARGEST_ROW: Final = "largest_row"
#: By columns.
TARGETS: Final = "targets"
COLUMNS: Final = "columns"
GATHER: Final = "gather"
