"""What ``mode`` decides of a CoCoA job besides the defaults of its settings."""

from __future__ import annotations

from typing import Literal, Protocol

from elasticml.algorithms.cocoa.gap_schedule import Certificate
from elasticml.algorithms.cocoa.paper import PaperMode
from elasticml.specification.algorithms import CoCoA


class Mode(Protocol):
    """The rules of a mode."""

    @property
    def reassigns_chunks(self) -> bool:
        """Whether chunks change between the CPU groups of a member."""
        ...

    def gap_every(self, settings: CoCoA) -> int | Literal["target"] | None:
        """Return the rounds between certificates, or None for a share of the time."""
        ...

    def sigma_per_member(self, settings: CoCoA) -> float:
        """Return sigma' as a multiple of the number of members; 0: by the members' shares."""
        ...

    def reported(self, current: Certificate | None, best: Certificate | None) -> Certificate | None:
        """Return the certificate to report: that of the current model, or the best so far."""
        ...


class DefaultMode:
    """The rules of ``mode: default``."""

    reassigns_chunks = True

    def gap_every(self, settings: CoCoA) -> int | Literal["target"] | None:
        """Return the setting."""
        return settings.given_gap_every

    def sigma_per_member(self, settings: CoCoA) -> float:
        """Return 0."""
        return 0.0

    def reported(self, current: Certificate | None, best: Certificate | None) -> Certificate | None:
        """Report the best model."""
        return best


def mode_of(settings: CoCoA) -> Mode:
    """Return the rules of a job's mode."""
    return PaperMode() if settings.is_paper else DefaultMode()
