"""What must hold for jobs that visit each example once per epoch, checked from their history."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from elasticml.story.history import HistoryRow

#: A learning rate with which no weight changes in 32 bits. The losses that are summed in an epoch
#: are then those of the initial model over all examples, if each was visited exactly once.
FIXED_RATE: Final = 1e-30
#: Relative error of a sum of losses in 32 bits; an example's loss is thousands of times larger.
_SUM_ERROR: Final = 1e-7
#: Epochs have six decimals in a history.
_EPOCH_ERROR: Final = 1e-6


def missampled(
    history: Sequence[Mapping[str, Any]], n_rows: int, loss: float | None
) -> Iterator[str]:
    """Yield the epochs in which examples were lost or visited twice.

    Parameters
    ----------
    history : sequence of mapping
        Rows with ``epoch`` (at the start of a round), ``samples``, ``skipped`` and ``objective``,
        the mean loss of the round's samples.
    n_rows : int
        Examples of an epoch.
    loss : float or None
        Mean loss of all examples with a model that does not change; None for one that does.
    """
    rounds = [row for row in map(HistoryRow, history) if "samples" in row.columns]
    visited: Counter[int] = Counter()
    losses: dict[int, float] = {}
    # A history that begins within a job has lost nothing before.
    lost = rounds[0].columns["skipped"] if rounds and _epoch(rounds[0]) else 0
    for row, then in itertools.zip_longest(rounds, rounds[1:]):
        samples, skipped = row.columns["samples"], row.columns["skipped"] - lost
        lost += skipped
        at = _epoch(row)
        if then is not None and abs((_epoch(then) - at) * n_rows - samples - skipped) > (
            2 * _EPOCH_ERROR * n_rows
        ):
            yield (
                f"round {row.round}: {samples} samples and {skipped} skipped ones, the epoch goes "
                f"from {at} to {_epoch(then)}"
            )
        number = int(at + _EPOCH_ERROR)
        visited[number] += samples + skipped
        loss_sum = samples * (row.objective or 0.0) if not skipped else math.nan
        losses[number] = losses.get(number, 0.0) + loss_sum
    for number in visited:
        if number < _epoch(rounds[0]) or number == max(visited):
            continue  # not whole
        if visited[number] != n_rows:
            yield f"epoch {number} has {visited[number]} examples, wanted {n_rows}"
        found = losses[number]
        if loss is not None and abs(found - n_rows * loss) > _SUM_ERROR * n_rows * loss:
            yield f"the losses of epoch {number} are {found}, wanted {n_rows * loss}"


def _epoch(row: HistoryRow) -> float:
    """Return the epochs at the start of a round."""
    assert row.epoch is not None
    return row.epoch
