"""Scale in at a knee of the convergence curve: fewer members need fewer rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from elasticml.control.policy import Request, Suggestion, Tune, View
from elasticml.policies.convergence import Point, gap_points, is_knee, next_round, slope
from elasticml.policies.scale_in import SMALL, fewer, retire
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import (
    KEEP_INT,
    AtLeast2,
    Count,
    Flag,
    Share,
    settings_dataclass,
)

#: Share of the chunks reshuffled after the first knee, and its factor at each further knee.
FIRST_SHARE, SHARE_FACTOR = 0.05, 4.0


@settings_dataclass(finite=False, eq=False)
class ScaleInAtKnee(PolicyOptions):
    """Give members back when the gap falls more slowly than on average since the last scale-in.

    After every round with a certified gap,

        short * ratio < long    →    K members become max(minimum, K / factor)

    ``short`` is the slope over the last ``window`` measured rounds, ``long`` the slope since the
    number of members last changed, both of the best gap so far.

    Source: sections 3 and 4 of the elastic-CoCoA paper, with its N = ``window``, d = ``ratio``,
    m = ``factor``. Deviations: slopes are of log10(gap), because on the linear gap every
    exponential has a knee at its fourth round; 2 and 3 members, the slowest in our measurements,
    are skipped unless they are the minimum (``avoid``); optionally the chunks are reshuffled before
    any scale-in, and a scale-in is reverted if it slows the job down.

    Parameters
    ----------
    factor : int
        >= 2.
    minimum : int
        Fewest members, >= 1.
    to : list of int, optional
        The sizes themselves, descending, such as ``[4, 1]``; replaces ``factor``.
    window : int
        Measured rounds of the short slope, >= 1.
    ratio : float
        > 1.
    gap : "log" or "linear"
        Scale of the gap whose slopes are compared.
    axis : "rounds" or "seconds"
        What slopes are taken over.
    layout : "chunks" or "partitions"
        "partitions": all chunks of a member go to one neighbour, as in the paper's static layout
        of ``lcm(K, K', K'', ...)`` partitions; "chunks": they are spread evenly, one by one.
    avoid : list of int
        Sizes that are skipped; ignored with ``to``.
    redeal_first : bool
        At a knee, first raise the share of the chunks that is reshuffled in every round: to 5 %,
        then by a factor of four each time, up to all chunks.
    redeal_share : float
        Share that is reshuffled from the start, 0 to 1.
    revert : bool
        Request the members back if, ``probe`` measured rounds after a scale-in, the gap falls at
        less than half the former rate. The wait before the next scale-in doubles each time.
    probe : int
        Measured rounds, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.ScaleInAtKnee(factor=4).name
    'knee'
    """

    name = "knee"

    factor: AtLeast2 = 4
    minimum: Count = 1
    to: tuple[Count, ...] | None = None
    window: Count = 2
    ratio: Annotated[float, Field(gt=1), KEEP_INT] = 1.25
    gap: Literal["linear", "log"] = "log"
    axis: Literal["rounds", "seconds"] = "rounds"
    layout: Literal["chunks", "partitions"] = "chunks"
    avoid: tuple[Count, ...] = SMALL
    redeal_first: Flag = False
    redeal_share: Share = 0.0
    revert: Flag = False
    probe: Count = 4

    def __post_init__(self) -> None:
        self._since_round = 0
        #: Members before the last scale-in and their rate, until the probe is over.
        self._before: tuple[int, float] | None = None
        self._cool = self.probe
        self._rest_until = 0

    def state(self) -> dict[str, Any]:
        """Return the start of the measurement, and the scale-in that is being probed."""
        return {
            "since_round": self._since_round,
            "before": self._before,
            "cool": self._cool,
            "rest_until": self._rest_until,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        before = state["before"]
        self._since_round = int(state["since_round"])
        self._before = None if before is None else (int(before[0]), float(before[1]))
        self._cool, self._rest_until = int(state["cool"]), int(state["rest_until"])

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Return a scale-in, a larger share to reshuffle, or a revert; usually nothing."""
        members = len(view.working)
        points = gap_points(view.history, members, self._since_round)
        if not points or view.round < self._rest_until:
            return []
        if view.history[-1].gap is None or view.history[-1].gap_is_bound:
            # Nothing new has been measured.
            return []
        if self._before is not None and len(points) > self.probe:
            back = self._go_back(view, points, members)
            if back:
                return back
        knee = is_knee(points, window=self.window, ratio=self.ratio, axis=self.axis, scale=self.gap)
        return self._at_knee(view, points, members) if knee else []

    def _at_knee(self, view: View, points: Sequence[Point], members: int) -> list[Suggestion]:
        short = slope(points[-self.window - 1 :], self.axis, self.gap)
        long = slope(points, self.axis, self.gap)
        unit = "decades" if self.gap == "log" else "gap"
        rates = (
            f"{unit} per {self.axis[:-1]}: {short:.3g} over the last {self.window} gaps, "
            f"{long:.3g} since round {points[0].rounds} with {members} members"
        )
        share = float(view.tuned.get("redeal_share", self.redeal_share))
        if self.redeal_first and share < 1:
            self._since_round = next_round(view.history)
            more = min(1.0, max(FIRST_SHARE, SHARE_FACTOR * share))
            return [Tune(name="redeal_share", value=more, why=f"knee ({rates}): deal more anew")]
        size = self._size(view, members)
        if size is None:
            return []
        self._since_round = next_round(view.history)
        self._before = (members, slope(points[-self.window - 1 :], "seconds"))
        why = f"knee ({rates}): {members} members become {size}"
        return [retire(view, size, why, whole=self.layout == "partitions")]

    def _size(self, view: View, members: int) -> int | None:
        """Return the next smaller number of members; None if there is none."""
        if self.to is not None:
            return next((n for n in sorted(self.to, reverse=True) if n < members), None)
        return fewer(view, self.factor, minimum=self.minimum, avoid=self.avoid)

    def _go_back(self, view: View, points: Sequence[Point], members: int) -> list[Suggestion]:
        """Judge the last scale-in, once, by the rounds measured after it."""
        assert self._before is not None
        former, rate = self._before
        self._before = None
        now = slope(points[-self.probe - 1 :], "seconds")
        if not self.revert or members >= former or now >= 0.5 * rate:
            return []
        self._cool *= 2
        self._rest_until = view.round + self._cool
        self._since_round = next_round(view.history)
        why = (
            f"{members} members bring {now:.3g} decades a second, {former} brought {rate:.3g}: "
            f"back to {former}, no scale-in for {self._cool} rounds"
        )
        return [Request(count=former - members, why=why)]
