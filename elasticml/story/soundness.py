"""What a story and its history must say, whatever happened to the job.

Each function yields what is violated, as sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from elasticml.story import records as story
from elasticml.story.history import HistoryRow
from elasticml.story.records import records_of

#: Relative difference of two sums of the same losses in another order.
SLACK: Final = 1e-9


def miscounted(records: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    """Yield the exchanges in which an example is neither in the sum once nor absent.

    Parameters
    ----------
    records : sequence of mapping
        The story.
    rows : int
        Examples of the job.
    """
    for ended in records_of(story.ExchangeEnded, records):
        if ended.examples + ended.absent_examples != rows:
            yield (
                f"exchange {ended.exchange} ({ended.operation}): {ended.examples} examples and "
                f"{ended.absent_examples} absent, wanted {rows} together"
            )
        if int(ended.contributors, 16) & int(ended.missing, 16):
            yield f"exchange {ended.exchange}: a member contributes and is missing"


def unsound(history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the certificates that the objective of another round refutes.

    Only rounds without absent examples are compared: their objectives are of one problem.
    """
    rows = [row for row in map(HistoryRow, history) if not row.absent_examples]
    exact = [r.objective for r in rows if r.objective_kind in (None, "exact")]
    least = min((value for value in exact if value is not None), default=math.inf)
    for row in rows:
        if row.objective is None or row.gap is None:
            continue
        if row.gap < 0.0:
            yield f"round {row.round}: the gap {row.gap} is negative"
        bound = row.objective - row.gap
        if bound > least + SLACK * max(1.0, abs(least)):
            yield f"round {row.round}: none is below {bound} by its gap, and another has {least}"


def untrue(row: HistoryRow, true: float, best: float) -> Iterator[str]:
    """Yield what a row says wrongly of its model.

    Parameters
    ----------
    true : float
        The model's objective over all rows.
    best : float
        An objective that a model has.
    """
    at, slack = f"round {row.round}", SLACK * max(1.0, abs(true))
    if row.objective is None:
        return
    if row.gap_is_bound:
        if row.objective < true - slack:
            yield f"{at}: the bound {row.objective} is below the objective {true}"
    elif row.objective_kind == "exact" and abs(row.objective - true) > slack:
        yield f"{at}: objective {row.objective}, of the model over all rows {true}"
    if row.gap is not None and (row.gap < 0.0 or row.gap < true - best - slack):
        yield f"{at}: gap {row.gap} is below the true one, at least {true - best}"
