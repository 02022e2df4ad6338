"""Choose the number of members that reduces the gap most per container-second (or per second)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from elasticml.control.policy import Request, Suggestion, View
from elasticml.policies.convergence import (
    GAP_MIN,
    Point,
    extrapolated_slope,
    gap_points,
    is_knee,
    next_round,
    slope,
)
from elasticml.policies.scale_in import SMALL, fewer, pause_seconds, retire
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import (
    AtLeast2,
    Count,
    NumberAbove0,
    NumberFrom1,
    settings_dataclass,
)

#: With the objective "seconds", fewer members are kept if they retain this share of the rate. A
#: stricter rule was measured to flap.
SLOWER = 0.5
#: The time left to the target must exceed this many pauses for a change to be worth it.
PAUSES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A change of the number of members that is being evaluated."""

    round: int
    before: int
    wanted: int
    #: Decades of the gap per second with the former members, and the rate they would have by now.
    rate: float
    expected: float


@settings_dataclass(finite=False, eq=False)
class GapPerContainerSecond(PolicyOptions):
    """Try fewer or more members, measure, and revert changes that do not pay.

    ``r(K)`` is d(log10 gap)/dt over the last ``window`` measured rounds with K members.

    * ``objective="container_seconds"``: the value of K members is ``r(K)/K``. Fewer members are
      tried as soon as ``r(K)`` is known, because fewer members make better rounds. They are kept
      unless ``hysteresis * r(K')/K' < r(K)/K``.
    * ``objective="seconds"``: the value is ``r(K)``. At a knee fewer members are tried, and kept
      unless ``r(K') < r(K)/2``. Without a knee more are tried, up to ``maximum``, and kept if
      ``r(K') > hysteresis * r(K)``.

    A trial lasts ``probe`` measured rounds. Because convergence slows down in any case, ``r(K)`` is
    extrapolated to the time of the comparison with the decay seen within its own window. After a
    failed trial there is none for ``cool`` rounds, twice as many after each further failure, and
    the failed size is blocked for as long again.

    Nothing is tried if the target is nearer than twice the pause that moving chunks would cause.

    Source: ours; inventory of the papers' ideas: gap per container-second as the objective.

    Parameters
    ----------
    objective : "container_seconds" or "seconds"
        What a unit of progress should cost least of.
    minimum : int
        Fewest members, >= 1.
    maximum : int, optional
        Most members; default: the number at the start.
    factor : int
        Ratio of two successive sizes, >= 2.
    window, probe : int
        Measured rounds, >= 2.
    hysteresis : float
        >= 1.
    cool : int
        Rounds, >= 1.
    avoid : list of int
        Sizes that are skipped when scaling in.
    target : float, optional
        Gap at which the job stops.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.GapPerContainerSecond().name
    'gap_per_container_second'
    """

    name = "gap_per_container_second"
    scales_out = True

    objective: Literal["container_seconds", "seconds"] = "container_seconds"
    minimum: Count = 1
    maximum: Count | None = None
    factor: AtLeast2 = 4
    window: AtLeast2 = 4
    probe: AtLeast2 = 4
    hysteresis: NumberFrom1 = 1.1
    cool: Count = 8
    avoid: tuple[Count, ...] = SMALL
    target: NumberAbove0 | None = None

    def __post_init__(self) -> None:
        self._trial: Trial | None = None
        self._since_round = 0
        self._rest = self.cool
        self._rest_until = 0
        self._blocked: dict[int, int] = {}
        self._most: int | None = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"maximum: got {self.maximum}, wanted at least {self.minimum}")

    def state(self) -> dict[str, Any]:
        """Return the pending trial, the start of the measurement, and the blocked sizes."""
        return {
            "trial": None if self._trial is None else asdict(self._trial),
            "since_round": self._since_round,
            "rest": self._rest,
            "rest_until": self._rest_until,
            "blocked": {str(size): until for size, until in self._blocked.items()},
            "most": self._most,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self._trial = None if state["trial"] is None else Trial(**state["trial"])
        self._since_round = int(state["since_round"])
        self._rest, self._rest_until = int(state["rest"]), int(state["rest_until"])
        self._blocked = {int(size): int(until) for size, until in state["blocked"].items()}
        self._most = state["most"]

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Return one change of the number of members, or none."""
        members = len(view.working)
        if not members or view.groups or view.leaving or view.requested:
            return []
        if self._most is None:
            self._most = self.maximum or members
        points = gap_points(view.history, members, self._since_round)
        if not points or view.history[-1].gap is None or view.history[-1].gap_is_bound:
            return []
        if self._trial is not None:
            return self._judge(view, points, members, self._trial)
        if view.round < self._rest_until or len(points) <= self.window:
            return []
        return self._try(view, points, members, slope(points[-self.window - 1 :]))

    def _try(
        self, view: View, points: Sequence[Point], members: int, rate: float
    ) -> list[Suggestion]:
        """Try fewer members, or more."""
        knee = is_knee(points, axis="seconds")
        less = fewer(view, self.factor, minimum=self.minimum, avoid=self.avoid)
        if less is not None and (knee or self.objective == "container_seconds"):
            pause = pause_seconds(view, less)
            if self._is_free(less, view.round) and self._pays(points[-1].gap, rate, pause):
                why = (
                    f"{self._rates(members, rate)}; {less} members would do with "
                    f"{rate * less / members * self._margin(members, less):.3g} decades/s, "
                    f"{pause:.3g} s to move{self._prediction(points[-1].gap, rate)}"
                )
                self._begin(view, points, members, less)
                return [retire(view, less, why)]
        more = min(self._most or members, members * self.factor)
        if self.objective == "seconds" and not knee and more > members:
            # Every present member sends a share of its chunks.
            pause = pause_seconds(view, members) * (1 - members / more)
            if self._is_free(more, view.round) and self._pays(points[-1].gap, rate, pause):
                why = (
                    f"{self._rates(members, rate)}; {more} members would do with more than "
                    f"{self.hysteresis * rate:.3g} decades/s"
                    f"{self._prediction(points[-1].gap, rate)}"
                )
                self._begin(view, points, members, more)
                return [Request(count=more - members, why=why)]
        return []

    def _begin(self, view: View, points: Sequence[Point], before: int, wanted: int) -> None:
        """Record the present rate and its extrapolation to the rounds of the trial."""
        seen = points[-self.window - 1 :]
        self._trial = Trial(
            round=view.round,
            before=before,
            wanted=wanted,
            rate=slope(seen),
            expected=extrapolated_slope(seen, self.probe),
        )
        self._since_round = next_round(view.history)

    def _judge(
        self, view: View, points: Sequence[Point], members: int, trial: Trial
    ) -> list[Suggestion]:
        """Keep the new number of members or revert it, once enough rounds have been measured."""
        if members != trial.wanted:
            # The members never came, or others left: there is nothing to judge.
            if view.round - trial.round > PAUSES * self.probe:
                self._trial = None
                self._block(members, trial.wanted, view.round)
            return []
        if len(points) <= self.probe:
            return []
        self._trial = None
        rate = slope(points[-self.probe - 1 :])
        least = trial.expected * members / trial.before * self._margin(trial.before, members)
        if rate >= least:
            self._rest = self.cool
            # The rounds of a successful trial already count for the next comparison.
            self._since_round = next_round(view.history) - self.probe
            return []
        self._block(members, members, view.round)
        self._since_round = next_round(view.history)
        why = (
            f"{self._rates(members, rate)}, {trial.before} brought {trial.rate:.3g} decades/s and "
            f"would bring {trial.expected:.3g} by now; {least:.3g} would have done: "
            f"back to {trial.before}, no trial for {self._rest // 2} rounds"
        )
        if trial.before > members:
            return [Request(count=trial.before - members, why=why)]
        return [retire(view, trial.before, why)]

    def _margin(self, before: int, after: int) -> float:
        """Return the required rate, relative to a rate proportional to the number of members."""
        if self.objective == "container_seconds":
            return 1 / self.hysteresis
        return before / after * (SLOWER if after < before else self.hysteresis)

    def _block(self, members: int, size: int, round: int) -> None:
        """Pause trials after a failure, and block the size for as long again."""
        self._rest_until = round + self._rest
        self._blocked[size] = round + 2 * self._rest
        self._rest *= 2

    def _is_free(self, size: int, round: int) -> bool:
        return round >= self._blocked.get(size, 0)

    def _remaining(self, gap: float, rate: float) -> float:
        """Predict the seconds to the target at the present rate; infinite without a target."""
        if self.target is None or rate <= 0:
            return math.inf
        return max(0.0, math.log10(max(gap, GAP_MIN) / self.target) / rate)

    def _pays(self, gap: float, rate: float, pause: float) -> bool:
        return self._remaining(gap, rate) > PAUSES * pause

    def _rates(self, members: int, rate: float) -> str:
        each = rate / members
        return f"{members} members bring {rate:.3g} decades/s, {each:.3g} a container-second"

    def _prediction(self, gap: float, rate: float) -> str:
        remaining = self._remaining(gap, rate)
        return f", {remaining:.3g} s to the target" if remaining < math.inf else ""
