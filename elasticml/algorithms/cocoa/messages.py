"""The exchanges of CoCoA: what goes down, what comes up, under which names.

Every exchange has a ``serial``, one higher than the last one's. Chunks carry, in their state, the
dual variables ``alpha`` at the beginning of the last exchange that they took part in, the ``step``
by which it would change them, and that exchange's ``serial``. Both exchanges first *settle*: where
a chunk's serial is ``settle``, ``alpha += gamma * step``. An exchange that is repeated under the
same serial finds its chunks settled and begins where it began.

How timid a member is follows from its share: ``sigma'_k = max(1, damping S / S_k)`` for each part
of the data that changes without seeing the others. With ``damping`` 1 it is safe to add all steps
whole, and equal shares make it K; so an update is not weighted by ``|D_k| / |D|`` as well, which
belongs to averaging. With ``sigma_per_member`` it is that many times K, the papers' rule whatever
the shares; with ``sigma`` it is that number.

``pass``
    Down: ``v`` (D,), the model in trained coordinates; ``factor`` and ``shift`` (d,) with scaled
    columns. Every member maximises its local dual problem in ``local_epochs`` passes over its
    chunks; with ``exact`` it adds up its steps in float64 when it has done. Up: ``dv`` (D,), the
    change of the model by the members' steps; ``dual`` (), the change of the sum of ``-loss*``;
    ``curvature`` (), see :mod:`line_search`; ``visited`` (), rows visited; ``partitions`` (), parts
    of the data that changed without seeing each other; ``gap`` (), what the rows added to the sum
    of the duality gap, each as it was met, which foretells the next certificate (NaN: not known);
    ``unset`` (), rows that could not take part
    because their chunk's serial is not ``settle``; ``on_cuda`` (), rows visited on a GPU;
    ``groups`` (), groups of all members; ``dampings`` (), the sum of theirs; ``discarded`` (),
    passes of theirs (of a GPU, sub-epochs) that were undone: see :mod:`groups`.
``certify``
    Down: ``sent`` (n_sent,), the model in the chunks' own coordinates. A chunk without state gets
    its dual variables as ``fill`` says: "zero", or "map": ``-loss'`` of its margins. So does a
    chunk that has missed more than :data:`MISSED_MAX` exchanges; one that has missed fewer keeps
    what it had. Up: ``primal`` (), the sum of losses at the model; ``dual`` (), the sum of
    ``-loss*``; ``image`` (n_sent,), the sum of ``s_i alpha_i x_i``; ``weight`` (), the sum of
    ``s_i``; ``unset`` (), rows whose dual variables are not those that the model was made of; and
    the statistics for bounds, where asked for. All in float64.
``largest_row``
    Up, merged by maximum: ``rows`` (2,) and ``target`` (), what no row and no target exceeds.

Column statistics are asked for as :mod:`elasticml.algorithms.column_statistics` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import ON_CUDA, Exchange, Outcome, Scalar
from elasticml.algorithms.scaling import Columns

F64 = NDArray[np.float64]
Require = Literal["any", "everybody"]
Fill = Literal["zero", "map"]

PASS: Final = "pass"
CERTIFY: Final = "certify"
LARGEST_ROW: Final = "largest_row"
#: Serial of no exchange.
NONE: Final = -1
#: Exchanges after which dual variables that missed them are worth less than those of the model.
MISSED_MAX: Final = 2


def scaled(columns: Columns) -> dict[str, F64]:
    """Return what members need to scale rows."""
    parts = {"factor": columns.factor, "shift": columns.shift}
    return {name: part for name, part in parts.items() if part is not None}


def pass_exchange(
    v: F64, columns: Columns, parameters: Mapping[str, Scalar], *, seal: bool
) -> Exchange:
    """Ask for the members' steps from ``v``."""
    return Exchange(
        operation=PASS,
        model={"v": v, **scaled(columns)},
        returns={
            "dv": v.shape,
            "dual": (),
            "curvature": (),
            "visited": (),
            "partitions": (),
            "gap": (),
            "unset": (),
            "groups": (),
            "dampings": (),
            "discarded": (),
            ON_CUDA: (),
        },
        parameters=parameters,
        seal=seal,
    )


def visited_of(outcome: Outcome) -> dict[str, float]:
    """Return what a round says of the rows visited, and of groups where there is something to say.

    How many were visited on a GPU is told where some were; how many groups there were where some
    members had several; the groups' mean damping, and how many passes of theirs were undone, where
    some were.
    """
    arrays = outcome.arrays
    told = {"visited": float(arrays["visited"])}
    if arrays[ON_CUDA]:
        told[ON_CUDA] = float(arrays[ON_CUDA])
    groups, discarded = float(arrays["groups"]), float(arrays["discarded"])
    if groups > outcome.members:
        told["groups"] = groups
    if discarded or arrays["dampings"] < groups:
        told["discarded"] = discarded
        told["group_damping"] = float(arrays["dampings"]) / groups
    return told


def certify_exchange(
    sent: F64,
    columns: Columns,
    parameters: Mapping[str, Scalar],
    *,
    statistics: Mapping[str, tuple[int, ...]],
    require: Require,
    seal: bool,
) -> Exchange:
    """Ask for both objectives at a model, and for the model that belongs to the dual variables."""
    return Exchange(
        operation=CERTIFY,
        model={"sent": sent, **(scaled(columns) if statistics else {})},
        returns={
            "primal": (),
            "dual": (),
            "image": sent.shape,
            "weight": (),
            "unset": (),
            **statistics,
        },
        parameters=parameters,
        require=require,
        keep=True,
        seal=seal,
    )


def largest_row_exchange(columns: Columns) -> Exchange:
    """Ask for the lengths of the largest row and the largest target."""
    return Exchange(
        operation=LARGEST_ROW,
        model=scaled(columns),
        returns={"rows": (2,), "target": ()},
        reduce="max",
        require="everybody",
    )
