"""The exchanges of CoCoA: what is broadcast, what is reduced, and the names of the arrays.

Every exchange has a ``serial``, one above the last. Chunks carry their dual variables ``alpha`` as
:mod:`elasticml.algorithms.cocoa.coordinates` says. Both kinds of exchange first *settle*: where a
chunk's serial is ``settle``, ``alpha += gamma * step``. An exchange that is repeated under the same
serial finds its chunks settled and starts from the same state. The step of a certificate is
``alpha`` itself: ``gamma`` is 0 after it, or scales all dual variables.

A member's damping follows from its share: ``sigma'_k = max(1, damping S / S_k)`` for each part of
the data that changes without seeing the others. With ``damping`` 1 adding all steps whole is safe,
and equal shares make it K. An update is therefore not also weighted by ``|D_k| / |D|``, which
belongs to averaging. With ``sigma_per_member`` it is that number times K, the papers' rule for any
shares; with ``sigma`` it is that number.

``pass``
    Broadcast: ``v`` (D,), the model in trained coordinates; with scaled columns ``factor`` and
    ``shift`` (d,). Every member maximises its local dual problem in ``local_epochs`` passes over
    its chunks; with ``exact`` it then sums its steps in float64. Returned: ``dv`` (D,), the change
    of the model by the members' steps; ``dual`` (), the change of the sum of ``-loss*``;
    ``curvature`` (), see :mod:`elasticml.algorithms.cocoa.line_search`; ``visited`` (), visited
    rows; ``partitions`` (), parts of the data that changed without seeing each other; ``gap`` (),
    the sum of the rows' contributions to the duality gap, each as it was visited, which predicts
    the next certificate (NaN: not known); ``unset`` (), rows that could not take part because their
    chunk's serial is not ``settle``; ``on_cuda`` (), rows visited on a GPU; ``groups`` (), groups
    of all members; ``dampings`` (), the sum of their dampings; ``discarded`` (), their passes (on a
    GPU, sub-epochs) that were undone: see :mod:`elasticml.algorithms.cocoa.solver_groups`.
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
"""

from __future__ import annotations

from typing import Final, Literal

Fill = Literal["zero", "map"]

PASS: Final = "pass"
CERTIFY: Final = "certify"
LARGEST_ROW: Final = "largest_row"
