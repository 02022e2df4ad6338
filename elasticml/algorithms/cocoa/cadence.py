"""When a certificate is worth its pass over the data.

Work is counted in rows that a pass visits. A certificate's products with all rows take about half
of what a pass over them takes, and a pass that visits few rows still costs a round. About a fifth
of all work goes into certificates: what a pass costs earns a quarter of it. Where a target is
known, the passes tell what their rows add to the gap as they meet them, which comes near to the gap
that a certificate would find: one is taken when that reaches the target, and else as above, or,
where nobody looks at gaps on the way, seldom. From passes that do not tell, the last certificates
say in which round the target will be reached; the one taken there may be paid for later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

#: Share of a pass's work that it earns for certificates.
EARNED: Final = 0.25
#: Work of a certificate, and the least that a pass counts for, as shares of all rows.
CERTIFICATE: Final = 0.5
PASS_MIN: Final = 0.25
#: Certificates' worth of work from which one is taken although the target is not near: where gaps
#: are looked at on the way, and where they are not.
SAVED: Final = 2.0
SELDOM: Final = 4.0
#: How far what the passes tell may be from the gap.
RATIO_MAX: Final = 4.0


@dataclass(slots=True, kw_only=True)
class Cadence:
    """Counts the work of passes and of certificates."""

    #: Rounds from one certificate to the next; None: as above.
    every: int | None
    #: Gap that the job is to reach; 0 when it is not known.
    target: float
    #: Rows of the data set.
    rows: int
    #: Nobody looks at gaps before the target is reached.
    is_seldom: bool = False
    credit: float = 0.0
    #: Passes so far, and at the last certificate.
    passes: int = 0
    certified_at: int = 0
    #: Passes and gap of the last two certificates, oldest first.
    marks: list[tuple[int, float]] = field(default_factory=list)
    #: What the last pass told of the gap.
    told: float = math.nan
    #: The gap that is expected behind the last pass, and what the last certificate found over that.
    expected: float = math.nan
    ratio: float = 1.0

    def passed(self, visited: float, told: float = math.nan) -> None:
        """Note a pass, the rows that it visited, and the gap as it met them."""
        self.passes += 1
        # Rows are met half a pass, in the mean, before its end.
        pace = told / self.told if 0.0 < told < self.told else 1.0
        self.told, self.expected = told, told * math.sqrt(pace)
        self.credit += EARNED * max(visited, PASS_MIN * self.rows)

    def certified(self, gap: float) -> None:
        """Note a certificate and the smallest gap known by now."""
        if self.passes > self.certified_at and self.expected > 0.0:
            self.ratio = min(max(gap / self.expected, 1.0 / RATIO_MAX), RATIO_MAX)
        if self.passes > self.certified_at or not self.marks:
            self.marks = [*self.marks[-1:], (self.passes, gap)]
        else:
            self.marks[-1] = (self.passes, gap)
        # What has been saved up beyond two certificates is not spent.
        cost = CERTIFICATE * self.rows
        self.credit = min(self.credit, SAVED * cost) - cost if self.passes else 0.0
        self.certified_at = self.passes

    def is_due(self) -> bool:
        """Whether the pass just made wants a certificate."""
        since = self.passes - self.certified_at
        if self.every is not None:
            return since >= self.every
        cost = CERTIFICATE * self.rows
        if self.target <= 0.0:
            return self.passes == 1 or self.credit >= cost
        tells = not math.isnan(self.expected)
        if tells and self.ratio * self.expected <= self.target:
            return True
        if tells and self.is_seldom:
            return self.credit >= SELDOM * cost
        # What is saved for the round that reaches the target goes, in part, into the pace.
        if self.passes == 1 or self.credit >= SAVED * cost:
            return True
        if tells:
            return False
        return self.credit >= 0.0 and self._expects_target()

    def _expects_target(self) -> bool:
        if len(self.marks) < 2:
            return True
        (p0, g0), (p1, g1) = self.marks
        if g1 <= 0.0 or g0 <= g1:
            return False
        pace = math.log(g0 / g1) / (p1 - p0)
        return self.passes >= p1 + math.log(g1 / self.target) / pace
