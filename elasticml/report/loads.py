"""Who had how much to do in each round, and how long it took: a story's loads by slot and round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.report.lanes import slot_of
from elasticml.report.run import Record, finite
from elasticml.report.series import rounds_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Examples and compute seconds, (n_slots, n_rounds); NaN where a slot took no part."""

    slots: tuple[int, ...]
    #: Ascending; rounds without an exchange are not among them.
    rounds: Floats
    rows: Floats
    seconds: Floats
    #: Chunks that changed owners ahead of each round, (n_rounds,).
    moved: Floats

    @property
    def has_rows(self) -> bool:
        """Whether the story tells how many examples slots had."""
        return bool(np.isfinite(self.rows).any())

    @property
    def imbalance(self) -> Floats:
        """Longest compute time divided by the mean one, (n_rounds,); 1 is balanced."""
        return _over_slots(np.nanmax, self.seconds) / _over_slots(np.nanmean, self.seconds)


def relative(values: Floats) -> Floats:
    """Divide by each round's mean over the slots that take part in it."""
    means = _over_slots(np.nanmean, values)
    return values / np.where(means > 0, means, math.nan)


def make_loads(records: Sequence[Record]) -> Loads | None:
    """Read the loads; None where no exchange tells how long anybody computed."""
    seconds: dict[float, dict[int, float]] = {}
    rows: dict[float, dict[int, float]] = {}
    moved: dict[float, float] = {}
    now: dict[int, float] = {}
    has_begun = False
    for record, number in zip(records, rounds_of(records), strict=True):
        if math.isnan(number):
            continue
        match record["event"]:
            case "RoundStarted":
                if not has_begun:
                    moved.clear()  # dealing the data before the first round is loading
                has_begun = True
                told = record.get("rows")
                now = _by_slot(told) if isinstance(told, dict) else now
            case "ExchangeEnded":
                spent = seconds.setdefault(number, {})
                computed = record.get("compute_s")
                for slot, took in _by_slot(computed).items():
                    spent[slot] = spent.get(slot, 0.0) + took
                rows.setdefault(number, dict(now))
            case "ChunksMoved":
                moved[number] = moved.get(number, 0.0) + finite(record.get("chunks"), 0.0)
    rounds = sorted(r for r, spent in seconds.items() if spent)
    slots = tuple(sorted({slot for r in rounds for slot in seconds[r]}))
    if not rounds:
        return None
    return Loads(
        slots=slots,
        rounds=np.array(rounds),
        seconds=_table(slots, [seconds[r] for r in rounds]),
        rows=_table(slots, [rows[r] for r in rounds]),
        moved=np.array([moved.get(r, 0.0) for r in rounds]),
    )


def _by_slot(told: object) -> dict[int, float]:
    named = told if isinstance(told, dict) else {}
    pairs = ((slot_of(name), finite(value, 0.0)) for name, value in named.items())
    return {slot: value for slot, value in pairs if slot is not None and value > 0}


def _table(slots: Sequence[int], columns: Sequence[dict[int, float]]) -> Floats:
    return np.array([[column.get(slot, math.nan) for column in columns] for slot in slots])


def _over_slots(reduce: object, values: Floats) -> Floats:
    """Reduce each round over its slots; NaN, and no warning, where nobody is there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found: Floats = reduce(values, axis=0)  # type: ignore[operator]
        return found
