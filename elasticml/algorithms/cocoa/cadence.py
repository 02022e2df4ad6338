"""When a certificate is worth its pass over the data.

Certificates cost rows like passes do. About a fifth of all rows go into them: each row that a pass
visits earns a quarter of a row. Where a target is known, the last certificates say in which round
it will be reached; one taken in that round may be paid for later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

#: Rows of certificates that one visited row earns.
EARNED: Final = 0.25


@dataclass(slots=True, kw_only=True)
class Cadence:
    """Counts the work of passes and of certificates."""

    #: Rounds from one certificate to the next; None: as above.
    every: int | None
    #: Gap that the job is to reach; 0 when it is not known.
    target: float
    #: Rows of the data set.
    rows: int
    credit: float = 0.0
    #: Passes so far, and at the last certificate.
    passes: int = 0
    certified_at: int = 0
    #: Passes and gap of the last two certificates, oldest first.
    marks: list[tuple[int, float]] = field(default_factory=list)

    def passed(self, visited: float) -> None:
        """Note a pass and the rows that it visited."""
        self.passes += 1
        self.credit += EARNED * visited

    def certified(self, gap: float) -> None:
        """Note a certificate and the smallest gap known by now."""
        if self.passes > self.certified_at or not self.marks:
            self.marks = [*self.marks[-1:], (self.passes, gap)]
        else:
            self.marks[-1] = (self.passes, gap)
        # What was saved up is not spent twice: a long rest is followed by one certificate.
        self.credit = min(self.credit, float(self.rows)) - self.rows
        self.certified_at = self.passes

    def is_due(self) -> bool:
        """Whether the pass just made wants a certificate."""
        since = self.passes - self.certified_at
        if self.every is not None:
            return since >= self.every
        if self.credit >= self.rows:
            return True
        # After the first pass nothing is known of the pace yet; later debts are paid first.
        return (self.passes == 1 or self.credit >= 0.0) and self._expects_target()

    def _expects_target(self) -> bool:
        if self.target <= 0.0:
            return False
        if len(self.marks) < 2:
            return True
        (p0, g0), (p1, g1) = self.marks
        if g1 <= 0.0 or g0 <= g1:
            return False
        pace = math.log(g0 / g1) / (p1 - p0)
        return self.passes >= p1 + math.log(g1 / self.target) / pace
