"""What a story and its history must say, whatever happened to the job.

Each function yields what is violated, as sentences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from elasticml.ids import member_id
from elasticml.story import records as story
from elasticml.story.history import HistoryRow
from elasticml.story.records import records_of

#: Relative difference of two sums of the same losses in another order.
SLACK: Final = 1e-9
#: Times of a story are rounded.
TICK_S: Final = 2e-6
#: Relative difference of a model and the sum of its coordinates' images, which is rounding.
DRIFT_MAX: Final = 1e-6


def miscounted(records: Sequence[Mapping[str, Any]], rows: int) -> Iterator[str]:
    """Yield the exchanges in which an example is neither in the sum once nor absent.

    A member that takes part and is not in the sum was lost meanwhile.

    Parameters
    ----------
    records : sequence of mapping
        The story.
    rows : int
        Examples of the job.
    """
    lost_s: dict[int, float] = {}
    for record in records:
        for lost in records_of(story.MemberLost, [record]):
            lost_s[member_id(lost.member).slot] = lost.t + TICK_S
        for ended in records_of(story.ExchangeEnded, [record]):
            if ended.examples + ended.absent_examples != rows:
                yield (
                    f"exchange {ended.exchange} ({ended.operation}): {ended.examples} examples and "
                    f"{ended.absent_examples} absent, wanted {rows} together"
                )
            missing, start_s = int(ended.missing, 16), ended.start_t or 0.0
            if int(ended.contributors, 16) & missing:
                yield f"exchange {ended.exchange}: a member contributes and is missing"
            for slot in range(missing.bit_length()):
                if missing >> slot & 1 and lost_s.get(slot, -math.inf) < start_s:
                    yield f"exchange {ended.exchange}: slot {slot} is missing, and was lost before"


def unsound(history: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the certificates that the objective of another round refutes, and wrong images.

    Only rounds without absent examples are compared: their objectives are of one problem. In them
    the model of CoCoA is the image of its coordinates, ``v = A alpha``, which ``drift`` tells.
    """
    rows = [row for row in map(HistoryRow, history) if not row.absent_examples]
    exact = [r.objective for r in rows if r.objective_kind in (None, "exact")]
    least = min((value for value in exact if value is not None), default=math.inf)
    for row in rows:
        if (drift := row.columns.get("drift") or 0.0) > DRIFT_MAX:
            yield f"round {row.round}: the model is {drift} off the image of its coordinates"
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
    error, kinds = row.columns.get("error_bound"), row.columns.get("curvature_from") or ""
    if error is not None and abs(row.objective - true) > error + slack:
        yield f"{at}: the estimate {row.objective} is more than {error} from {true}"
    if re.fullmatch(r"taylor \d+", kinds) and row.objective > true + slack:
        yield f"{at}: the estimate {row.objective} by tangents is above {true}"
    if row.gap_is_bound:
        if row.objective < true - slack:
            yield f"{at}: the bound {row.objective} is below the objective {true}"
    elif row.objective_kind == "exact" and abs(row.objective - true) > slack:
        yield f"{at}: objective {row.objective}, of the model over all rows {true}"
    if row.gap is not None and (row.gap < 0.0 or row.gap < true - best - slack):
        yield f"{at}: gap {row.gap} is below the true one, at least {true - best}"
