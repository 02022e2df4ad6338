"""Loads read from a story: examples and compute time of each slot in each round."""

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
    #: Ascending, without rounds that have no exchange.
    rounds: Floats
    rows: Floats
    seconds: Floats
    #: Chunks that changed owners before each round, (n_rounds,).
    moved: Floats

    @property
    def has_rows(self) -> bool:
        """Whether the story records the slots' numbers of examples."""
        return bool(np.isfinite(self.rows).any())

    @property
    def imbalance(self) -> Floats:
        """Longest compute time divided by the mean, (n_rounds,); 1 is balanced."""
        return _over_slots(np.nanmax, self.seconds) / _over_slots(np.nanmean, self.seconds)


def relative(values: Floats) -> Floats:
    """Divide by each round's mean over its participating slots."""
    means = _over_slots(np.nanmean, values)
    return values / np.where(means > 0, means, math.nan)


def make_loads(records: Sequence[Record]) -> Loads | None:
    """Read the loads; None if no exchange records compute times."""
    seconds: dict[float, dict[int, float]] = {}
    rows: dict[float, dict[int, float]] = {}
    moved: dict[float, float] = {}
    current_rows: dict[int, float] = {}
    has_begun = False
    for record, number in zip(records, rounds_of(records), strict=True):
        if math.isnan(number):
            continue
        match record["event"]:
            case "RoundStarted":
                if not has_begun:
                    moved.clear()  # moves before the first round belong to loading
                has_begun = True
                counts = record.get("rows")
                current_rows = _by_slot(counts) if isinstance(counts, dict) else current_rows
            case "ExchangeEnded":
                spent = seconds.setdefault(number, {})
                computed = record.get("compute_s")
                for slot, took in _by_slot(computed).items():
                    spent[slot] = spent.get(slot, 0.0) + took
                rows.setdefault(number, dict(current_rows))
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


def _by_slot(values: object) -> dict[int, float]:
    named = values if isinstance(values, dict) else {}
    pairs = ((slot_of(name), finite(value, 0.0)) for name, value in named.items())
    return {slot: value for slot, value in pairs if slot is not None and value > 0}


def _table(slots: Sequence[int], columns: Sequence[dict[int, float]]) -> Floats:
    return np.array([[column.get(slot, math.nan) for column in columns] for slot in slots])


def _over_slots(reduce: object, values: Floats) -> Floats:
    """Reduce each round over its slots; NaN, without a warning, for empty rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        reduced: Floats = reduce(values, axis=0)  # type: ignore[operator]
        return reduced
