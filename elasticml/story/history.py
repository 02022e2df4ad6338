"""A row of the history: the state at the beginning of a round, by column.

The trainer, the driver and the journal each add columns, and an algorithm may have columns of its
own. Therefore a row is a mapping; the columns that the code itself reads have names here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Columns about the model with which a round ends; shown in the next row.
NEXT: Final = ("next_objective", "next_gap", "next_gap_is_bound")


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """Typed access to the columns of a row; None for a blank or missing one."""

    columns: Mapping[str, Any]

    def without_round(self) -> dict[str, Any]:
        """Return all columns except the round, which a story record has itself."""
        return {name: value for name, value in self.columns.items() if name != "round"}

    @property
    def round(self) -> int:
        """The round; 0 if missing."""
        return int(self.columns.get("round") or 0)

    @property
    def seconds(self) -> float | None:
        """When the row was added, since the job started."""
        return self.columns.get("seconds")

    @property
    def members(self) -> int:
        """Number of participating members."""
        return int(self.columns.get("members") or 0)

    @property
    def absent_examples(self) -> int:
        """Number of absent examples."""
        return int(self.columns.get("absent_examples") or 0)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent since the job started."""
        return int(self.columns.get("sent_bytes") or 0)

    @property
    def stand_ins(self) -> int:
        """Number of stand-ins."""
        return int(self.columns.get("stand_ins") or 0)

    @property
    def objective(self) -> float | None:
        """The objective."""
        return self.columns.get("objective")

    @property
    def objective_kind(self) -> str | None:
        """What kind of objective it is: exact, estimated or bound."""
        return self.columns.get("objective_kind")

    @property
    def member_objective(self) -> float | None:
        """The objective of a single member's model."""
        return self.columns.get("member_objective")

    @property
    def dual(self) -> float | None:
        """The dual objective that the round has certified, which need not be the best one."""
        return self.columns.get("dual")

    @property
    def gap(self) -> float | None:
        """The certified duality gap."""
        return self.columns.get("gap")

    @property
    def gap_is_bound(self) -> bool:
        """Whether the gap is only an upper bound."""
        return bool(self.columns.get("gap_is_bound"))

    @property
    def epoch(self) -> float | None:
        """Epochs so far."""
        return self.columns.get("epoch")

    @property
    def on_cuda(self) -> float:
        """Number of examples computed on CUDA, whose sums are not reproducible."""
        return float(self.columns.get("on_cuda") or 0.0)

    @property
    def next_objective(self) -> float | None:
        """The objective of the model with which the round ends."""
        return self.columns.get("next_objective")

    @property
    def next_gap(self) -> float | None:
        """The gap of the model with which the round ends."""
        return self.columns.get("next_gap")

    @property
    def next_gap_is_bound(self) -> bool:
        """Whether that gap is only an upper bound."""
        return bool(self.columns.get("next_gap_is_bound"))
